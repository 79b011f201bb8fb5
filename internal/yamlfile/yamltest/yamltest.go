// Package yamltest has helpers to test parsers of YAML files that report mistakes with a *[yamlfile.Error].
package yamltest

import (
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed503877ad/limits/internal/yamlfile"
)

var update = flag.Bool("update-bad", false, "write the error of each bad file into its first line")

// Lines returns the lines of the mistakes in err, in order. Any other error ends the test.
func Lines(t testing.TB, err error) (lines []int) {
	t.Helper()
	var e *yamlfile.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v; want an error with lines", err)
	}
	for _, p := range e.Problems {
		lines = append(lines, p.Line)
	}
	return lines
}

// Refused reports whether err is an error. It ends the test if the error has no lines, or lines that the text does not
// have.
func Refused(t testing.TB, err error, text string) bool {
	t.Helper()
	if err == nil {
		return false
	}
	last := 1 + strings.Count(strings.ReplaceAll(text, "\r", "\n"), "\n")
	lines := Lines(t, err)
	if len(lines) == 0 || slices.Min(lines) < 1 || slices.Max(lines) > last {
		t.Fatalf("%v: lines %v of %d, for\n%s", err, lines, last, text)
	}
	var e *yamlfile.Error
	errors.As(err, &e)
	if slices.ContainsFunc(e.Problems, func(p yamlfile.Problem) bool { return p.Message == "" }) {
		t.Fatalf("%+v: a mistake without a message, for\n%s", e.Problems, text)
	}
	return true
}

// BadFiles parses the files in testdata/bad. Each has one mistake, and its first line has the expected error, which the flag
// -update-bad updates.
func BadFiles(t *testing.T, parse func(file string, data []byte) error) {
	t.Helper()
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) < 60 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		first, rest, _ := strings.Cut(string(data), "\n")
		err = parse(file, data)
		if lines := Lines(t, err); len(lines) != 1 {
			t.Errorf("%s: %v; want one mistake", file, err)
			continue
		}
		_, said, _ := strings.Cut(err.Error(), ":")
		got := "# want: line " + said
		if *update {
			if err := os.WriteFile(file, []byte(got+"\n"+rest), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if got != first {
			t.Errorf("%s:\n got %s\nwant %s", file, got, first)
		}
	}
}

// slips are texts that people write by mistake in the place of others.
var slips = []string{"", " ", "\t", ":", "- ", "{", "}", "[", "]", "\"", "'", "#", "&a", "*a", "!!x", "|", ">", "?", "%", "~", "null", "-1", "0",
	"1e9", "010", "0x1f", ".inf", "yes", "1x", "\n", "\r\n", "\r", "\x00", "\u2028", "\ufeff", "<<: ", "---\n", "...\n"}

// Mutilated damages a text in one to three places. more are slips that are typical for this kind of file.
func Mutilated(chance *rand.Rand, text string, more []string) string {
	all := slices.Concat(slips, more)
	for range 1 + chance.IntN(3) {
		lines := strings.SplitAfter(text, "\n")
		i, j := chance.IntN(len(lines)), chance.IntN(len(lines))
		switch chance.IntN(6) {
		case 0:
			lines = slices.Delete(lines, i, i+1)
		case 1:
			lines = slices.Insert(lines, i, lines[j])
		case 2:
			lines[i], lines[j] = lines[j], lines[i]
		case 3:
			lines[i] = strings.Repeat(" ", chance.IntN(8)) + strings.TrimLeft(lines[i], " ")
		default:
			from := chance.IntN(len(lines[i]) + 1)
			to := min(len(lines[i]), from+chance.IntN(8))
			lines[i] = lines[i][:from] + all[chance.IntN(len(all))] + lines[i][to:]
		}
		text = strings.Join(lines, "")
	}
	return text
}
