package alerts

import (
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/yamlfile/yamltest"
)

// ruleSlips are typical slips in alerts files.
var ruleSlips = []string{"{{", "}}", "{{.", "{{end}}", "{{if .User}}", "env:", "file:/", "24:00", "mon-"}

// TestMutilatedAlertsFiles damages a valid file in many ways. Each result is refused with errors at lines of the file, or is
// still a file whose rules work.
func TestMutilatedAlertsFiles(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	chance, refused := rand.New(rand.NewPCG(5, 5)), 0
	for range 1500 {
		text := yamltest.Mutilated(chance, string(data), ruleSlips)
		if !tryRules(t, []byte(text)) {
			refused++
		}
	}
	if refused < 750 || refused == 1500 {
		t.Errorf("%d of 1500 refused: that mutilates too little, or too much", refused)
	}
}

// TestErrorsHideSecrets damages a file that has secrets in wrong places.
func TestErrorsHideSecrets(t *testing.T) {
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
		text := yamltest.Mutilated(chance, file, ruleSlips)
		_, err := ParseRules("f", []byte(text), fileOptions)
		if err == nil {
			t.Fatalf("taken:\n%s", text)
		}
		// Errors show file names, and so a secret that a slip has turned into a file name.
		for line := range strings.Lines(err.Error()) {
			if strings.Contains(line, "T0P-SECRET") && !strings.Contains(line, "no such file") {
				t.Errorf("%s for\n%s", line, text)
			}
		}
	}
}

// TestASecretInTheWrongPlaceIsNotShown: as the name of a field, or before the host of a mail server.
func TestASecretInTheWrongPlaceIsNotShown(t *testing.T) {
	t.Parallel()
	for channel, want := range map[string]string{
		`slack: {https://hooks.slack.com/T0P-SECRET}`:       `f:2: channels[0].slack["…"]: unknown field; want one of url`,
		`slack: {https://hooks.slack.com/T0P-SECRET: a}`:    `f:2: channels[0].slack["…"]: unknown field; want one of url`,
		`webhook: {whsec_T0P-SECRET: a}`:                    `f:2: channels[0].webhook["…"]: unknown field; want one of url, secrets`,
		`slack: {url: "https://a", urk: a}`:                 `f:2: channels[0].slack.urk: unknown field "urk" (did you mean "url"?); want one of url`,
		`slack: {url: "https://a", 7: a, &T0P-SECRET b: a}`: `f:2: channels[0].slack["…"]: a name must be plain text; quote it`,
		`smtp: {addr: "me:T0P-SECRET@mail.example.com:587", from: a@example.com, to: b@example.com}`: `f:2: channels[0].smtp.addr: ` +
			`"***@mail.example.com:587" is not a server address: it is not host:port; want host:port such as mail.example.com:587`,
		`smtp: {addr: "smtp://me:T0P-SECRET@mail.example.com:587", from: a@example.com, to: b@example.com}`: `f:2: channels[0].smtp.addr: ` +
			`"smtp://***@mail.example.com:587" is not a server address: it is not host:port; want host:port such as mail.example.com:587`,
	} {
		_, err := ParseRules("f", []byte("channels:\n- {name: ops, "+channel+"}\nrules: [{name: a, channels: ops}]\n"), fileOptions)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "T0P-SECRET") {
			t.Errorf("%s:\n%v\nlacks, or shows the secret\n%s", channel, err, want)
		}
	}
}

// tryRules reads a file and uses its rules. It returns false if the file is refused.
func tryRules(t *testing.T, data []byte) bool {
	r, err := ParseRules("f", data, fileOptions)
	if yamltest.Refused(t, err, string(data)) {
		return false
	}
	useRules(t, r)
	return true
}

func useRules(t *testing.T, rules *Rules) {
	for i := range rules.Rules {
		r := &rules.Rules[i]
		for _, a := range exampleAlerts {
			r.Match.matches(&Event{Type: a.Type, Key: a.Key, Policy: a.Policy, User: a.User})
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
