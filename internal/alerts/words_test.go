package alerts

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/seed503877ad/limits"
)

func TestDefaultWords(t *testing.T) {
	t.Parallel()
	r := &Rule{Name: "heavy", GroupBy: defaultGroupBy}
	denied := exampleAlerts[0]
	inline := denied
	inline.User, inline.Policy, inline.Denied, inline.FirstAt = "", "", 1, inline.LastAt
	warned := denied
	warned.Type = limits.EventWarning
	calendar := warned
	calendar.Name, calendar.Window = "quota", "day"
	for _, c := range []struct {
		alert       Alert
		title, text string
	}{
		{denied, "user 7 was denied 12 times by policy api (limit 100 per 1m)",
			"Policy api, limit minute of key api:user:7: 100 per 1m.\nFrom 2026-03-01T22:30:00Z to 2026-03-01T22:31:00Z.\nRule heavy."},
		{inline, "key api:user:7 was denied once by limit minute (limit 100 per 1m)",
			"Limit minute of key api:user:7: 100 per 1m.\nAt 2026-03-01T22:31:00Z.\nRule heavy."},
		{warned, "user 7 is close to the limit of policy api (limit 100 per 1m)",
			"Policy api, limit minute of key api:user:7: 100 per 1m.\nFrom 2026-03-01T22:30:00Z to 2026-03-01T22:31:00Z.\nRule heavy."},
		{calendar, "user 7 is close to the limit of policy api (limit 100 per day)",
			"Policy api, limit quota of key api:user:7: 100 per day.\nFrom 2026-03-01T22:30:00Z to 2026-03-01T22:31:00Z.\nRule heavy."},
	} {
		title, text := r.words(&c.alert)
		if title != c.title || text != c.text {
			t.Errorf("%q\n%q, want\n%q\n%q", title, text, c.title, c.text)
		}
	}
}

// TestDefaultWordsOfSeveral: an alert whose events may be of several users, keys or policies does not say that one of them
// was denied that often.
func TestDefaultWordsOfSeveral(t *testing.T) {
	t.Parallel()
	denied := exampleAlerts[0]
	once, inline, warned := denied, denied, denied
	once.Denied, inline.Policy, warned.Type = 1, "", limits.EventWarning
	for _, c := range []struct {
		groupBy string
		alert   Alert
		title   string
		several bool // the text says that what it names is one of them
	}{
		{"policy", denied, "12 denials by policy api (e.g. limit 100 per 1m)", true},
		{"policy, window", once, "1 denial by policy api (limit 100 per 1m)", true},
		{"policy", inline, "key api:user:7 was denied 12 times by limit minute (limit 100 per 1m)", false},
		{"policy", warned, "somebody is close to the limit of policy api (e.g. limit 100 per 1m)", true},
		{"window", denied, "12 denials, e.g. by policy api (limit 100 per 1m)", true},
		{"name", inline, "12 denials, e.g. by limit minute (limit 100 per 1m)", true},
		{"user", denied, "user 7 was denied 12 times, e.g. by policy api (limit 100 per 1m)", true},
		{"user, policy", denied, "user 7 was denied 12 times by policy api (e.g. limit 100 per 1m)", false},
		{"key", denied, "key api:user:7 was denied 12 times, e.g. by policy api (limit 100 per 1m)", true},
		{"user, key", denied, "user 7 was denied 12 times, e.g. by policy api (limit 100 per 1m)", true},
		{"policy, key, name", denied, "key api:user:7 was denied 12 times by policy api (limit 100 per 1m)", false},
	} {
		r := parseGood(t, "rules: [{name: a, groupBy: ["+c.groupBy+"]}]").Rules[0]
		title, text := r.words(&c.alert)
		if several := strings.HasPrefix(text, "One of them: "); title != c.title || several != c.several {
			t.Errorf("by %s: %q, want %q\n%s", c.groupBy, title, c.title, text)
		}
	}
}

func TestTemplatesOfWords(t *testing.T) {
	t.Parallel()
	a := exampleAlerts[0]
	a.Severity, a.User = Critical, "eve\x1b[2J\u202e\nSubject: x"
	for _, c := range []struct{ template, want string }{
		{"{{.User}}", "eve[2J Subject: x"},
		{"{{.Rule}} {{.Severity}} {{.Type}} {{.Policy}} {{.Key}} {{.Name}} {{.Window}} {{.Limit}} {{.Denied}} {{.Events}} {{.First}} {{.Last}}",
			"a critical exceeded api api:user:7 minute 1m 100 12 3 2026-03-01T22:30:00Z 2026-03-01T22:31:00Z"},
		{"{{if gt .Denied 10}}many{{else}}few{{end}}", "many"},
		{"{{if and .Policy (eq .Type `exceeded`)}}{{upper .Policy}}{{end}}", "API"},
		{"{{$.Denied}} {{print .Limit `/` .Window | lower}}", "12 100/1m"},
		{"{{/* a note */}}x", "x"},
		{"  {{.Policy}} is  over ", "api is  over"},
		{"{{if eq .Rule `a`}}{{lt .User 5}}{{end}}", "user eve[2J Subject: x was denied 12 times by policy api (limit 100 per 1m)"}, // it fails for this rule
		{strings.Repeat("x", maxTitleBytes), strings.Repeat("x", maxTitleBytes)},
		{strings.Repeat("x", maxTitleBytes+1), strings.Repeat("x", maxTitleBytes-3) + "…"},
		{"{{if not .Policy}}x{{end}}", "user eve[2J Subject: x was denied 12 times by policy api (limit 100 per 1m)"}, // nothing is no title
	} {
		r := parseGood(t, "rules: [{name: a, title: '"+c.template+"'}]").Rules[0]
		if title, _ := r.words(&a); title != c.want {
			t.Errorf("%s: %q, want %q", c.template, title, c.want)
		}
	}
}

// TestWordsAreBounded: users choose their keys, and templates repeat them.
func TestWordsAreBounded(t *testing.T) {
	t.Parallel()
	a := exampleAlerts[0]
	a.Key, a.User = strings.Repeat("ö", 5000), strings.Repeat("\xff\x00😀", 5000)
	for _, words := range []string{"", ", title: '" + strings.Repeat("{{.User}}", 100) + "', text: '" + strings.Repeat("{{.Key}}", 100) + "'"} {
		r := parseGood(t, "rules: [{name: a"+words+"}]").Rules[0]
		title, text := r.words(&a)
		if len(title) > maxTitleBytes || len(text) > maxTextBytes || !strings.HasSuffix(text, "…") || words != "" && !strings.HasSuffix(title, "…") {
			t.Errorf("%d and %d bytes: %q", len(title), len(text), title)
		}
		if words == "" && !strings.HasSuffix(title, "😀… was denied 12 times by policy api (limit 100 per 1m)") {
			t.Errorf("a long user leaves no room for what was denied: %q", title)
		}
		if cut := words != ""; strings.HasPrefix(title, "😀😀") != cut || strings.HasPrefix(text, "öö") != cut {
			t.Errorf("the words are not those of the template: %.50q and %.50q", title, text)
		}
		if !utf8.ValidString(title+text) || strings.ContainsFunc(title, unicode.IsControl) {
			t.Errorf("%q", title)
		}
	}
}

// TestWordsOfTheEnd: how long the denials went on, in whole seconds.
func TestWordsOfTheEnd(t *testing.T) {
	t.Parallel()
	a := exampleAlerts[0]
	a.LastAt = a.FirstAt + 65_499
	if got, want := resolvedText(&a), "No denial since 2026-03-01 22:31:05 UTC; 12 denied over 1m5s."; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
