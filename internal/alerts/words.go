package alerts

import (
	"errors"
	"fmt"
	"strings"
	"text/template"
	"time"
	"unicode"

	"github.com/seed503877ad/limits"
)

// Bounds of the words of an alert, in bytes.
const (
	maxTitleBytes = 200
	maxTextBytes  = 2000
)

// Words are the templates of an alert's title and text; nil for the usual words.
type Words struct{ title, text *template.Template }

// WordFields are what the templates of title and text may say: {{.User}}, {{.Denied}} and so on.
type WordFields struct {
	// Rule and Severity are those of the alert; Type is exceeded or warning.
	Rule, Severity, Type string
	// User is whom it is about, empty where there is none.
	User string
	// Policy is empty for an inline limit; Key, Name and Window are of the limit that was crossed last, and Limit is what
	// it admits in a window.
	Policy, Key, Name, Window string
	Limit                     int64
	// Denied and Events count what came until it is raised.
	Denied, Events int64
	// First and Last are when the first and the last event were, such as 2026-03-01T22:30:00Z.
	First, Last string
}

func wordFields(rule string, a *Alert) WordFields {
	return WordFields{
		Rule: rule, Severity: string(a.Severity), Type: shortType(a.Type), User: a.User, Policy: a.Policy, Key: a.Key, Name: a.Name,
		Window: a.Window, Limit: a.Limit, Denied: a.Denied, Events: a.Events, First: wordTime(a.FirstAt), Last: wordTime(a.LastAt),
	}
}

func shortType(t string) string { return strings.TrimPrefix(t, "limits.") }

func wordTime(millis int64) string { return time.UnixMilli(millis).UTC().Format(time.RFC3339) }

// words gives the title and the text of an alert. A template that fails over an alert, which one that was tried over the
// examples does for odd values at most, leaves the usual words: the alert is told in any case.
func (r *Rule) words(a *Alert) (title, text string) {
	f := wordFields(r.Name, a)
	title, err := render(r.Words.title, &f, maxTitleBytes)
	if title = clean(title, "", maxTitleBytes); err != nil || title == "" {
		title = clean(usualTitle(&f), "", maxTitleBytes)
	}
	text, err = render(r.Words.text, &f, maxTextBytes)
	if text = clean(text, "\n", maxTextBytes); err != nil || text == "" {
		text = clean(usualText(&f), "\n", maxTextBytes)
	}
	return title, text
}

// usualTitle is such as: user 7 was denied 12 times by policy api (limit 100 per 1m).
func usualTitle(f *WordFields) string {
	who, by := "user "+f.User, "policy "+f.Policy
	if f.User == "" {
		who = "key " + f.Key
	}
	if f.Policy == "" {
		by = "limit " + f.Name
	}
	rate := fmt.Sprintf("(limit %d per %s)", f.Limit, f.Window)
	if f.Type == shortType(limits.EventWarning) {
		return fmt.Sprintf("%s is close to the limit of %s %s", who, by, rate)
	}
	return fmt.Sprintf("%s was denied %s by %s %s", who, times(f.Denied), by, rate)
}

func times(n int64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// usualText says what the title leaves out.
func usualText(f *WordFields) string {
	what := fmt.Sprintf("Limit %s of key %s: %d per %s.", f.Name, f.Key, f.Limit, f.Window)
	if f.Policy != "" {
		what = fmt.Sprintf("Policy %s, limit %s of key %s: %d per %s.", f.Policy, f.Name, f.Key, f.Limit, f.Window)
	}
	when := "At " + f.Last + "."
	if f.First != f.Last {
		when = "From " + f.First + " to " + f.Last + "."
	}
	return fmt.Sprintf("%s\n%s\nRule %s.", what, when, f.Rule)
}

// render runs a template; none gives nothing.
func render(t *template.Template, f *WordFields, most int) (string, error) {
	if t == nil {
		return "", nil
	}
	w := &boundedWriter{left: 4 * most} // more than most, because clean removes some and has to see that it cut the rest
	if err := t.Execute(w, f); err != nil && !errors.Is(err, errWordsFull) {
		return "", err
	}
	return w.b.String(), nil
}

var errWordsFull = errors.New("the words are too long")

// boundedWriter takes so many bytes and ends the template then.
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

// clean removes what cannot be printed, because users choose their keys, and cuts to a length in bytes.
func clean(s, allowed string, most int) string {
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
	if b.Len() <= most {
		return b.String()
	}
	return strings.ToValidUTF8(b.String()[:most-len("…")], "") + "…"
}
