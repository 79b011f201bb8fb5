package alerts

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"time"
	"unicode"

	"github.com/seed503877ad/limits"
)

// Bounds of an alert's title and text, and of a user or key in the default title, in bytes.
const (
	maxTitleBytes   = 200
	maxTextBytes    = 2000
	maxSubjectBytes = 48
)

// Words are the templates of an alert's title and text; nil for the default.
type Words struct{ title, text *template.Template }

// WordFields are the fields that templates of title and text may use: {{.User}}, {{.Denied}} and so on.
type WordFields struct {
	// Rule and Severity are those of the alert; Type is exceeded or warning.
	Rule, Severity, Type string
	// User is the user whom the alert is about; empty for none.
	User string
	// Policy is empty for an inline limit. Key, Name and Window are of a limit that was crossed: the last one of the user
	// and policy that opened the alert. Limit is how much it allows in a window.
	Policy, Key, Name, Window string
	Limit                     int64
	// Denied and Events are the counts when the alert is raised.
	Denied, Events int64
	// First and Last are the times of the first and the last event, such as 2026-03-01T22:30:00Z.
	First, Last string
}

func wordFields(rule string, a *Alert) WordFields {
	return WordFields{
		Rule: rule, Severity: string(a.Severity), Type: shortType(a.Type), User: a.User, Policy: a.Policy, Key: a.Key, Name: a.Name,
		Window: a.Window, Limit: a.Limit, Denied: a.Denials(), Events: a.Events, First: formatRFC3339(a.FirstAt), Last: formatRFC3339(a.LastAt),
	}
}

func shortType(t string) string { return strings.TrimPrefix(t, "limits.") }

func formatRFC3339(millis int64) string { return time.UnixMilli(millis).UTC().Format(time.RFC3339) }

// words renders the title and the text of an alert. If a template fails, the default is used, so that the alert is sent in
// any case. That is rare: templates are tried on examples when the file is read.
func (r *Rule) words(a *Alert) (title, text string) {
	f := wordFields(r.Name, a)
	if title = sanitize(render(r.Words.title, &f, maxTitleBytes), "", maxTitleBytes); title == "" {
		title = sanitize(defaultTitle(&f, r.GroupBy), "", maxTitleBytes)
	}
	if text = sanitize(render(r.Words.text, &f, maxTextBytes), "\n", maxTextBytes); text == "" {
		text = sanitize(defaultText(&f, r.GroupBy), "\n", maxTextBytes)
	}
	return title, text
}

// defaultTitle returns for example: user 7 was denied 12 times by policy api (limit 100 per 1m). It names nobody if the
// alert is about several: 12 denials by policy api (e.g. limit 100 per 1m). It counts denials and not requests, because a
// request that two limits deny is in an event of each.
func defaultTitle(f *WordFields, groupBy []string) string {
	by := "policy " + f.Policy
	if f.Policy == "" {
		by = "limit " + f.Name
	}
	how, example := " by ", ""
	switch {
	case !slices.Contains(groupBy, "policy"):
		how = ", e.g. by "
	case f.Policy != "" && !slices.Contains(groupBy, "window") && !slices.Contains(groupBy, "name"):
		example = "e.g. "
	}
	rate := fmt.Sprintf("(%slimit %d per %s)", example, f.Limit, f.Window)
	subject := subjectOf(f, groupBy)
	if f.Type == shortType(limits.EventWarning) {
		return fmt.Sprintf("%s is close to the limit of %s %s", cmp.Or(subject, "somebody"), by, rate)
	}
	if subject == "" {
		return counted(f.Denied, "denial") + how + by + " " + rate
	}
	return fmt.Sprintf("%s was denied %s%s%s %s", subject, times(f.Denied), how, by, rate)
}

// subjectOf names the user or the key that all events of an alert have in common, cut to what a title has room for. It is
// empty if they may be of several.
func subjectOf(f *WordFields, groupBy []string) string {
	byUser := slices.Contains(groupBy, "user")
	switch {
	case byUser && f.User != "":
		return "user " + sanitize(f.User, "", maxSubjectBytes)
	case byUser, slices.Contains(groupBy, "key"), f.Policy == "" && slices.Contains(groupBy, "policy"):
		return "key " + sanitize(f.Key, "", maxSubjectBytes)
	}
	return ""
}

func times(n int64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// defaultText returns what the default title leaves out: the key, the times and the rule.
func defaultText(f *WordFields, groupBy []string) string {
	what := fmt.Sprintf("Limit %s of key %s: %d per %s.", f.Name, f.Key, f.Limit, f.Window)
	if f.Policy != "" {
		what = fmt.Sprintf("Policy %s, limit %s of key %s: %d per %s.", f.Policy, f.Name, f.Key, f.Limit, f.Window)
	}
	if subjectOf(f, groupBy) == "" || !slices.Contains(groupBy, "policy") {
		what = "One of them: " + what
	}
	when := "At " + f.Last + "."
	if f.First != f.Last {
		when = "From " + f.First + " to " + f.Last + "."
	}
	return fmt.Sprintf("%s\n%s\nRule %s.", what, when, f.Rule)
}

// render executes a template. It returns an empty text for nil and for one that fails, and stops after somewhat more than
// max bytes.
func render(t *template.Template, f *WordFields, max int) string {
	if t == nil {
		return ""
	}
	w := &boundedWriter{left: 4 * max} // more than max, because sanitize removes some, and marks a text that it cuts
	if err := t.Execute(w, f); err != nil && !errors.Is(err, errWordsFull) {
		return ""
	}
	return w.b.String()
}

var errWordsFull = errors.New("the words are too long")

// boundedWriter accepts left more bytes, then ends the template with errWordsFull.
type boundedWriter struct {
	b    strings.Builder
	left int
}

func (w *boundedWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	w.b.Write(p[:n])
	if w.left -= n; n < len(p) {
		return n, errWordsFull
	}
	return n, nil
}

// sanitize makes a text fit to be shown, because a key, for example, is chosen by a user. It keeps printable and allowed
// characters, replaces other white space by spaces, removes the rest, and cuts the text to max bytes.
func sanitize(s, allowed string, max int) string {
	var b strings.Builder
	for _, c := range strings.TrimSpace(strings.ToValidUTF8(s, "")) {
		switch {
		case strings.ContainsRune(allowed, c), unicode.IsPrint(c):
		case unicode.IsSpace(c):
			c = ' '
		default:
			continue
		}
		b.WriteRune(c)
	}
	if b.Len() <= max {
		return b.String()
	}
	return strings.ToValidUTF8(b.String()[:max-len("…")], "") + "…"
}
