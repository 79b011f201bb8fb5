package policy

import (
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

// slips are what a tired person writes, or leaves, in the place of something else.
var slips = []string{"", " ", "\t", ":", "- ", "{", "}", "[", "]", "\"", "'", "#", "&a", "*a", "!!x", "|", ">", "?", "%", "~", "null", "-1", "0",
	"1e9", "010", "0x1f", ".inf", "yes", "1x", "month", "*", "{user}", "{", "user|hash", "\n", "\r\n", "\r", "\x00", "\u2028", "\ufeff", "<<: ", "---\n", "...\n"}

// TestMutilatedFilesAreAnsweredWithTheirLine damages a good file in many ways: each is answered with lines that
// the file has, or is still a file whose requests have an answer.
func TestMutilatedFilesAreAnsweredWithTheirLine(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	chance, refused := rand.New(rand.NewPCG(4, 4)), 0
	for range 1500 {
		text := mutilated(chance, string(data))
		set, err := Parse("f", []byte(text), options)
		if err == nil {
			set.Explain(Question{Now: noon, Tier: "PRO", Attributes: map[string]string{"user": "u", "route": "chat", "ip": "::1"}})
			continue
		}
		refused++
		var e *Error
		if !errors.As(err, &e) || len(e.Problems) == 0 {
			t.Fatalf("%v, without a line, for\n%s", err, text)
		}
		for _, p := range e.Problems {
			if p.Line < 1 || p.Line > 1+strings.Count(strings.ReplaceAll(text, "\r", "\n"), "\n") || p.Message == "" {
				t.Fatalf("%+v for\n%s", p, text)
			}
		}
	}
	if refused < 750 {
		t.Errorf("%d of 1500 refused: that mutilates little", refused)
	}
}

// mutilated damages a text in one to three places.
func mutilated(chance *rand.Rand, text string) string {
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
			lines[i] = lines[i][:from] + slips[chance.IntN(len(slips))] + lines[i][to:]
		}
		text = strings.Join(lines, "")
	}
	return text
}
