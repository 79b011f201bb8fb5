package alerts

import (
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// ruleSlips are what a tired person writes, or leaves, in the place of something else.
var ruleSlips = []string{"", " ", "\t", ":", "- ", "{", "}", "[", "]", "\"", "'", "#", "&a", "*a", "!!x", "|", ">", "%", "~", "null", "-1", "0", "1e9",
	"010", ".inf", "yes", "1x", "{{", "}}", "{{.", "{{end}}", "{{if .User}}", "env:", "file:/", "24:00", "mon-", "\n", "\r\n", "\x00", "\u2028", "---\n"}

// TestMutilatedAlertsFiles damages a good file in many ways: each is answered with lines that the file has, or is still a
// file whose rules work.
func TestMutilatedAlertsFiles(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	chance, refused := rand.New(rand.NewPCG(5, 5)), 0
	for range 1500 {
		text := mutilateRules(chance, string(data))
		if !tryRules(t, []byte(text)) {
			refused++
		}
	}
	if refused < 750 || refused == 1500 {
		t.Errorf("%d of 1500 refused: that mutilates too little, or too much", refused)
	}
}

// TestNoMistakeShowsASecret damages a file in which secrets stand where they should not.
func TestNoMistakeShowsASecret(t *testing.T) {
	t.Parallel()
	const file = `channels:
  - name: ops
    webhook:
      url: "https://T0P-SECRET.example.com/T0P-SECRET"
      secrets: "whsec_T0P-SECRET"
  - name: mail
    smtp: {addr: "mail.example.com:587", from: a@example.com, to: b@example.com, username: x, password: T0P-SECRET}
rules:
  - name: a
    channels: [ops, mail]
`
	chance := rand.New(rand.NewPCG(6, 6))
	for range 3000 {
		text := mutilateRules(chance, file)
		_, err := ParseRules("f", []byte(text), fileOptions)
		if err == nil {
			t.Fatalf("taken:\n%s", text)
		}
		// A name of a field or of a file is shown, and so is a secret that a slip has made into one.
		for line := range strings.Lines(err.Error()) {
			if strings.Contains(line, "T0P-SECRET") && !strings.Contains(line, "unknown field") && !strings.Contains(line, "no such file") {
				t.Errorf("%s for\n%s", line, text)
			}
		}
	}
}

// tryRules reads a file and uses its rules; false when it is refused.
func tryRules(t *testing.T, data []byte) bool {
	r, err := ParseRules("f", data, fileOptions)
	if err == nil {
		useRules(t, r)
		return true
	}
	var e *FileError
	if !errors.As(err, &e) || len(e.Problems) == 0 {
		t.Fatalf("%v, without a line, for\n%s", err, data)
	}
	for _, p := range e.Problems {
		if p.Line < 1 || p.Line > 1+strings.Count(strings.ReplaceAll(string(data), "\r", "\n"), "\n") || p.Message == "" {
			t.Fatalf("%+v for\n%s", p, data)
		}
	}
	return false
}

func useRules(t *testing.T, rules *Rules) {
	for i := range rules.Rules {
		r := &rules.Rules[i]
		for _, a := range exampleAlerts {
			r.Match.fits(&Event{Type: a.Type, Key: a.Key, Policy: a.Policy, User: a.User})
			if title, text := r.words(&a); title == "" || text == "" || len(title) > maxTitleBytes || len(text) > maxTextBytes {
				t.Fatalf("title %q, text %q", title, text)
			}
		}
		now := time.Date(2026, 3, 29, 0, 59, 0, 0, time.UTC)
		if until, quiet := r.quietUntil(now); quiet != until.After(now) || r.Within < time.Second || r.ResolveAfter < 30*time.Second || r.Threshold < 1 {
			t.Fatalf("%+v: quiet %t until %s", r, quiet, until)
		}
	}
}

func mutilateRules(chance *rand.Rand, text string) string {
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
			lines[i] = lines[i][:from] + ruleSlips[chance.IntN(len(ruleSlips))] + lines[i][to:]
		}
		text = strings.Join(lines, "")
	}
	return text
}

func FuzzAlertsFile(f *testing.F) {
	data, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`rules: [{name: a, title: "{{if .User}}{{.Denied}}{{end}}", quietHours: [{days: [fri-mon], from: "22:00", to: "07:00"}]}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 10_000 || strings.Contains(string(data), "file:/") {
			return // long ones take long, and no file of this machine is to be read
		}
		tryRules(t, data)
	})
}
