package yamlfile

import (
	"strings"
	"testing"
)

// TestCommonMistakesHaveHints: the library's messages about an unquoted text, or a tab, do not
// say how to correct it.
func TestCommonMistakesHaveHints(t *testing.T) {
	t.Parallel()
	const quote, tab = `; quote texts that contain { } [ ] or * & or a colon and a space, such as "x:{user}"`, "; indent with spaces, not with tabs"
	for text, want := range map[string]string{
		"match: {user: a, key: x:{user}}\n":  quote,
		"match: {user: *}\n":                 quote,
		"match:\n  user: *\n":                quote,
		"title: {{.User}} denied\n":          quote,
		"title: {user} denied\n":             quote + ", and start all fields of a mapping in the same column",
		"title: Hi: there {used}\n":          quote + ", and start all fields of a mapping in the same column",
		"title: {user}\n":                    `must be text; got a mapping; quote a text that contains { }, such as "x:{user}"`,
		"title: % of it\n":                   "; quote a text that begins with %",
		"title: @all\n":                      "; quote the text",
		"match:\n\tuser: a\n":                tab,
		"match:\n  user: a\n\tkey: b\n":      tab,
		"match: {user: a,\tkey: b}\n":        "; separate with spaces, not with tabs",
		"match: {\tuser: a}\n":               "; separate with spaces, not with tabs",
		"match:\n  user:\u00a0a\n  key: b\n": "; the line has the space U+00A0, which is none in YAML; type it anew",
		"match:\n  user:\u3000a\n  key: b\n": "; the line has the space U+3000, which is none in YAML; type it anew",
		"match:\n  user: a\n key: b\n":       ", and start all fields of a mapping in the same column",
	} {
		p, v := New(Format{Name: "pair", Want: "match"}), &struct {
			Match struct {
				User string `json:"user"`
				Key  string `json:"key"`
			} `json:"match"`
			Title string `json:"title"`
		}{}
		p.Read([]byte(text), v)
		if err := p.Err("f"); err == nil || !strings.HasSuffix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
	}
}

// TestADurationWithoutAUnit: the message asks for a unit, and not for quotes, which would not help.
func TestADurationWithoutAUnit(t *testing.T) {
	t.Parallel()
	for private, want := range map[bool]string{
		false: `f:1: a[0].within: "60" has no unit; want a number with a unit, such as 60s`,
		true:  "f:1: a[0].within: want a number with a unit, such as 60s",
	} {
		p, v := New(Format{Name: "pair", Want: "a", Private: private, Durations: []string{"within"}}), &struct {
			A []struct {
				Within string `json:"within"`
			} `json:"a"`
		}{}
		p.Read([]byte("a: [{within: 60}]\n"), v)
		if err := p.Err("f"); err == nil || err.Error() != want {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

// TestInvalidUTF8IsReportedOnce, with the first line that is not UTF-8, and not for each of its
// characters.
func TestInvalidUTF8IsReportedOnce(t *testing.T) {
	t.Parallel()
	_, err := parsePair("f", []byte("a: 7\r\n# gr\xfc\xdfe\r\nb: 7 # gr\xfc\xdfe\r\n"))
	if err == nil || err.Error() != "f:2: the file is not in UTF-8; save it as UTF-8" {
		t.Error(err)
	}
}
