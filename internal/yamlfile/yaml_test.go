package yamlfile

import (
	"encoding/binary"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
)

// mark is the byte order mark of UTF-8, as editors on Windows write it.
const mark = "\xef\xbb\xbf"

// TestAByteOrderMarkIsSkipped: a file has the same content, and the same mistakes on the same lines, with and without one.
func TestAByteOrderMarkIsSkipped(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"right":               "a: 7\nb: 7\n",
		"of Windows":          "a: 7\r\nb: 7\r\n",
		"behind a comment":    "# pair\na: 7\nb: 7\n",
		"behind ---":          "---\na: 7\nb: 7\n",
		"wrong on line 1":     "c: 7\nb: 7\n",
		"wrong on line 2":     "a: 7\nb: x\n",
		"given twice":         "a: 7\na: 7\n",
		"no YAML on line 1":   "a: [\n",
		"no YAML on line 3":   "a: 7\n\n\tb: 7\n",
		"a line of 4096":      "a: " + strings.Repeat("7", maxLineBytes-3) + "\n",
		"brackets, too many":  "a: " + strings.Repeat("[", 65) + "\n",
		"nothing":             "",
		"another document":    "---\na: 7\n---\nb: 7\n",
		"more lists than may": strings.Repeat("- ", 65) + "a\n",
	} {
		want, wantErr := parsePair("f", []byte(text))
		got, err := parsePair("f", []byte(mark+text))
		if *got != *want || (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
			t.Errorf("%s: %+v, %v; without the mark %+v, %v", name, got, err, want, wantErr)
		}
	}
	if v, err := parsePair("f", []byte(mark+"a: 7\nb: 7\n")); err != nil || v.A != 7 || v.B != 7 {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestUTF16IsReported: a file in UTF-16 is not reported as invalid YAML.
func TestUTF16IsReported(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]binary.AppendByteOrder{"little": binary.LittleEndian, "big": binary.BigEndian} {
		for _, text := range []string{"\ufeffa: 7\nb: 7\n", "a: 7\nb: 7\n"} {
			var data []byte
			for _, unit := range utf16.Encode([]rune(text)) {
				data = order.AppendUint16(data, unit)
			}
			if _, err := parsePair("f", data); err == nil || err.Error() != "f:1: the file is in UTF-16; save it as UTF-8" {
				t.Errorf("%s endian, %q: %v", name, text, err)
			}
		}
	}
}

// TestLineEndingsDoNotMatter: a file with the line ends of Windows has the same content, and
// mistakes on the same lines.
func TestLineEndingsDoNotMatter(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"a: 7\nb: 7\n",
		"# one\n# two\na: 7 # three\n\n# four\nb: 7\nc: 1\n",
		"a: \"x\n  y\"\nb: 'x\n\n  y'\nc: 1\n",
		"a: |\n  x\n  y\nb: >\n  x\n  y\n",
		"a: # of a\n  7\nb: [7,\n # of b\n 7]\nd: 1\n",
		"a: 7\n\n\tb: 7\n",
	} {
		read := func(text string) (v struct{ A, B string }, err error) {
			p := New(Format{Name: "pair", Want: "a"})
			var texts struct {
				A string `json:"a"`
				B string `json:"b"`
			}
			p.Read([]byte(text), &texts)
			return struct{ A, B string }(texts), p.Err("f")
		}
		want, wantErr := read(text)
		for _, end := range []string{"\r\n", "\r"} {
			got, err := read(strings.ReplaceAll(text, "\n", end))
			if got != want || (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
				t.Errorf("%q with %q: %+v, %v; want %+v, %v", text, end, got, err, want, wantErr)
			}
		}
	}
}

// TestUnsupportedYAMLIsExplained: each unsupported feature is reported with its line and how to
// correct it, and none hides another.
func TestUnsupportedYAMLIsExplained(t *testing.T) {
	t.Parallel()
	const alone = "a name must be plain text, without anchor, alias, tag or ?; write it alone, or quote it"
	for text, want := range map[string]string{
		"a: *@example.com\n":   `f:1: invalid YAML: '@' is a reserved character; quote the text`,
		"a: *.example.com\n":   `f:1: a: anchors, aliases and tags are not supported; write the value out, and quote a text that begins with &, * or !`,
		"a: !x 7\n":            `f:1: a: anchors, aliases and tags are not supported; write the value out, and quote a text that begins with &, * or !`,
		"a: 7\n<<: *b\n":       `f:2: ["<<"]: << (merge) is not supported; write the fields out`,
		"a: 7\n? b\n: 7\n":     `f:2: ["? b"]: ` + alone,
		"&x a: 7\n":            `f:1: ["&x a"]: ` + alone,
		"a: 7\n10: 7\ntrue: 7": `f:2: 10: a name must be plain text; quote "10"` + "\n" + `f:3: true: a name must be plain text; quote "true"`,
	} {
		if _, err := parsePair("f", []byte(text)); err == nil || err.Error() != want {
			t.Errorf("%q:\n%v\nwant\n%s", text, err, want)
		}
	}
}

// TestDirectivesAreSkipped: %YAML 1.2 before the --- is not a document.
func TestDirectivesAreSkipped(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"%YAML 1.2\n---\na: 7\nb: 7\n":          "",
		"# pair\n%YAML 1.1\n--- \na: 7\nb: 7\n": "",
		"%YAML 1.2\n---\na: x\n":                "f:3: a: must be a whole number; got the text \"x\"",
		"%YAML 1.2\n---\na: 7\n---\nb: 7\n":     "f:5: document: a second YAML document; a pair has only one; remove the ---",
		"%YAML 1.2\n---\n":                      "f:1: the file is empty; want a:",
	} {
		v, err := parsePair("f", []byte(text))
		if want == "" && (err != nil || v.A != 7 || v.B != 7) || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%q: %+v, %v; want %s", text, v, err, want)
		}
	}
}

// TestPlainNumbersAreNumbers: what JSON and the schemas accept as a number is a number, and not
// an unquoted text.
func TestPlainNumbersAreNumbers(t *testing.T) {
	t.Parallel()
	for written, want := range map[string]string{ // a number, a text, or neither
		"0.00001": "number", "1e-05": "number", "1e-1": "number", "1E+2": "number", "-1e2": "number", "1.5e-3": "number",
		"10": "number", "0": "number", "-0.5": "number", ".5": "number", "1e400": "neither",
		"010": "neither", "1_0": "neither", "1_0.5": "neither", "00": "neither", "00.5": "neither", "+5": "neither", "0x1f": "neither",
		"0o7": "neither", "0b1": "neither", ".inf": "neither", ".nan": "neither", "01e5": "neither", "true": "neither",
		"99999999999999999999": "number", "-99999999999999999999": "number", "1e": "text", "e5": "text", "1e5x": "text", `"1e-1"`: "text", `'1e-1'`: "text", `"10"`: "text", "1.2.3": "text",
	} {
		var v struct {
			N *float64 `json:"n"`
			T string   `json:"t"`
		}
		read := func(field string) bool {
			p := New(Format{Name: "pair", Want: "n"})
			p.Read([]byte(field+": "+written+"\n"), &v)
			return p.Err("f") == nil
		}
		got := "neither"
		switch number, text := read("n"), read("t"); {
		case number && text:
			got = "both"
		case number:
			want64, _ := strconv.ParseFloat(written, 64)
			if got = "number"; *v.N != want64 {
				t.Errorf("%s is read as %v", written, *v.N)
			}
		case text:
			got = "text"
		}
		if got != want {
			t.Errorf("%s is %s, want %s", written, got, want)
		}
	}
}

// TestTooLargeNumberIsNotText, although the library says so.
func TestTooLargeNumberIsNotText(t *testing.T) {
	t.Parallel()
	for _, number := range []string{"9223372036854775808", "99999999999999999999", "-99999999999999999999"} {
		want := `f:1: a: "` + number + `" is not a plain decimal number, or is too large; write it without +, _, letters and leading zeros`
		if _, err := parsePair("f", []byte("a: "+number+"\nb: 7\n")); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestHashCoversWholeFile: it includes the byte order mark, as that of sha256sum does.
func TestHashCoversWholeFile(t *testing.T) {
	t.Parallel()
	path, data := filepath.Join(t.TempDir(), "p.yaml"), append([]byte(mark), version(1)...)
	write(t, path, data)
	k, _ := keep(t, path)
	if got := k.Report().Hash; got != Hash(data) || got == Hash(version(1)) || valueOf(t, k) != 1 {
		t.Errorf("hash %s, want %s", got, Hash(data))
	}
}
