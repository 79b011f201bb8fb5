package alerts

// Words are the templates of an alert's title and text.
type Words struct{}

// words gives the title and the text of an alert.
func (r *Rule) words(*Alert) (title, text string) { return r.Name, "" }
