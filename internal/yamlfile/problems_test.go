package yamlfile

import (
	"fmt"
	"strings"
	"testing"
)

// example is a file with fields of every kind.
type example struct {
	Name  string            `json:"name"`
	Count int64             `json:"count"`
	Part  float64           `json:"part"`
	On    bool              `json:"on"`
	List  []string          `json:"list"`
	Map   map[string]string `json:"map"`
}

func readExample(private bool, text string) error {
	p := New(Format{Name: "example file", Want: "name", Shorten: "shorten it", Private: private})
	p.Read([]byte(text), &example{})
	return p.Err("f")
}

// TestEachMistakeIsExplained, and a private file shows no texts and no names that may be secrets.
func TestEachMistakeIsExplained(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want, private string }{
		{`name: ""`, "name: is empty; fill it, or remove it", ""},
		{"name:", "name: has no value; give one, or remove it", ""},
		{"name: [x]", "name: must be text; got a list", ""},
		{"name: {x}", `name: must be text; got a mapping; quote a text that contains { }, such as "x:{user}"`, ""},
		{"name:\n  x: a\n  y: b", "name: must be text; got a mapping", ""},
		{"name: 7", `name: must be text; quote it: "7"`, "name: must be text; quote it"},
		{"name: a\u200bb", `name: "a\u200bb" contains the character U+200B, which is not printable; remove it`, "name: contains the character U+200B, which is not printable; remove it"},
		{"name: a\ufffdb", `name: "a�b" contains the character U+FFFD, which is not printable; remove it`, "name: contains the character U+FFFD, which is not printable; remove it"},
		{"count: x", `count: must be a whole number; got the text "x"`, "count: must be a whole number; got text"},
		{`count: "7"`, `count: must be a whole number; got the text "7"; remove the quotes`, "count: must be a whole number; got text; remove the quotes"},
		{"count: true", `count: must be a whole number; got "true"`, "count: must be a whole number; got a number or a word"},
		{"count: 010", `count: "010" is not a plain decimal number, or is too large; write it without +, _, letters and leading zeros`, ""},
		{"count: +7", `count: "+7" is not a plain decimal number, or is too large; write it without +, _, letters and leading zeros`, ""},
		{`part: "0.5"`, `part: must be a plain decimal number such as 0.5; got the text "0.5"; remove the quotes`, "part: must be a plain decimal number such as 0.5; got text; remove the quotes"},
		{`on: "true"`, `on: must be true or false; got the text "true"; remove the quotes`, "on: must be true or false; got text; remove the quotes"},
		{"on: yes", `on: must be true or false; got the text "yes"`, "on: must be true or false; got text"},
		{"list: x", `list: must be a list; got the text "x"`, "list: must be a list; got text"},
		{"list: []", "list: is empty; fill it, or remove it", ""},
		{"map: {}", "map: is empty; fill it, or remove it", ""},
		{"map: {k: [x]}", "map.k: must be text; got a list", ""},
		{"map: {k: a, k: b}", "map.k: is given twice; remove one", ""},
		{"nme: x", `nme: unknown field "nme" (did you mean "name"?); want one of name, count, part, on, list, map`, ""},
		{"s3cret: x", `s3cret: unknown field "s3cret"; want one of name, count, part, on, list, map`, `["…"]: unknown field; want one of name, count, part, on, list, map`},
		{"name: x\n---\nname: y", "document: a second YAML document; an example file has only one; remove the ---", ""},
	} {
		if c.private == "" {
			c.private = c.want
		}
		for private, want := range map[bool]string{false: c.want, true: c.private} {
			err := readExample(private, c.text)
			if _, said, _ := strings.Cut(fmt.Sprint(err), ": "); said != want {
				t.Errorf("%q, private %t:\n%v\nwant %s", c.text, private, err, want)
			}
		}
	}
}

// TestEachHiddenNameIsReported: names that may be secrets are hidden, but not from the number of mistakes.
func TestEachHiddenNameIsReported(t *testing.T) {
	t.Parallel()
	const what = "unknown field; want one of name, count, part, on, list, map"
	want := "f:1: [\"…\"]: " + what + "\nf:2: [\"……\"]: " + what
	if err := readExample(true, "s3cret: x\nt0ken: y\n"); err == nil || err.Error() != want {
		t.Errorf("%v\nwant\n%s", err, want)
	}
}

// TestMistakesAreInOrderOfTheirPlace in the file; on one line in that of their paths.
func TestMistakesAreInOrderOfTheirPlace(t *testing.T) {
	t.Parallel()
	p := New(Format{Name: "example file", Want: "name"})
	p.Read([]byte("name: x\nmap: {a: x, b: x}\nlist: [x]\n"), &example{})
	p.Add("list[0]", "third")
	p.Add("map.b", "second")
	p.Add("map.a", "first")
	p.Add("map.a", "again") // follows from the one before
	p.Add(`map["x.y"].z`, "not in the file")
	want := "f:2: map.a: first\nf:2: map.b: second\nf:2: map[\"x.y\"].z: not in the file\nf:3: list[0]: third"
	if err := p.Err("f"); err == nil || err.Error() != want {
		t.Errorf("%v\nwant\n%s", err, want)
	}
	for path, has := range map[string]bool{"map": true, "map.a": true, "map.c": false, "ma": false, "list": true, "name": false} {
		if p.Has(path) != has {
			t.Errorf("a mistake at or below %s: %t", path, !has)
		}
	}
}

// TestAtMostAHundredMistakesAreListed, and the last line says that there are more.
func TestAtMostAHundredMistakesAreListed(t *testing.T) {
	t.Parallel()
	for n, more := range map[int]bool{100: false, 101: true} {
		err := readExample(false, "list:\n"+strings.Repeat("  - 7\n", n))
		lines := strings.Split(fmt.Sprint(err), "\n")
		if last := lines[len(lines)-1]; (last == "f:101: there are more mistakes; fix these first") != more || len(lines) != n {
			t.Errorf("%d mistakes: %d lines, the last is %s", n, len(lines), last)
		}
	}
}

// TestSuggestionsAreSimilar: of the most similar words the first, and none if all are too different, or longer than 64 bytes.
func TestSuggestionsAreSimilar(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"mod": "mode", "nodes": "modes", "modo": "mode", "mo": "", "limit": "", "windowss": "window",
		strings.Repeat("x", 64): "", strings.Repeat("x", 65): ""} {
		if want != "" {
			want = fmt.Sprintf(" (did you mean %q?)", want)
		}
		if got := DidYouMean(word, []string{"mode", "modes", "moda", "window", strings.Repeat("x", 65)}).String(); got != want {
			t.Errorf("for %s:%s, want%s", word, got, want)
		}
	}
}

// TestQuotedTextsAreShort, and stay valid UTF-8.
func TestQuotedTextsAreShort(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		strings.Repeat("x", 64):       `"` + strings.Repeat("x", 64) + `"`,
		strings.Repeat("x", 65):       `"` + strings.Repeat("x", 64) + `…"`,
		"x" + strings.Repeat("é", 40): `"x` + strings.Repeat("é", 31) + `…"`,
		"a\"\n":                       `"a\"\n"`,
	} {
		if got := Quote(text); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestTimesOfDay(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"00:00": 0, "23:59": 1439, "24:00": 1440, "24:01": -1, "12:60": -1, "1:00": -1, "01:0": -1, "01:0x": -1, "01:0:": -1, "0::00": -1, "x1:00": -1, "1x:00": -1,
		"01:x0": -1, "01-00": -1, "01:000": -1, "": -1, "٠١:00": -1} {
		p := New(Format{})
		at, ok := p.timeOfDay(text, "from", 24*60)
		if ok != (want >= 0) || ok && at != want || p.Has("from") == ok {
			t.Errorf("%q is %d, %t, want %d; the mistakes are %v", text, at, ok, want, p.Err("f"))
		}
	}
}
