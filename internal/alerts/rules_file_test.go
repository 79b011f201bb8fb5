package alerts

import (
	"encoding/base64"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/yamlfile/yamltest"
)

// signingKey is the value of OPS_SECRET.
var signingKey = []byte("0123456789abcdef0123456789abcdef")

var fileEnv = map[string]string{
	"OPS_SECRET":     "whsec_" + base64.StdEncoding.EncodeToString(signingKey),
	"OPS_OLD_SECRET": "whsec_" + base64.StdEncoding.EncodeToString([]byte("fedcba9876543210fedcba98")),
	"SLACK_URL":      "https://chat.example.com/hooks/T0P-SECRET",
	"SMTP_PASSWORD":  "T0P-SECRET",
	"BAD_SECRET":     "whsec_T0P-SECRET",
	"SHORT_SECRET":   "whsec_" + base64.StdEncoding.EncodeToString([]byte("T0P-SECRET")),
	"BARE_SECRET":    base64.StdEncoding.EncodeToString(signingKey),
	"BAD_URL":        "T0P-SECRET",
	"EMPTY":          "",
}

var fileOptions = FileOptions{LookupEnv: func(name string) (string, bool) { v, ok := fileEnv[name]; return v, ok }}

func parseGood(t testing.TB, text string) *Rules {
	t.Helper()
	r, err := ParseRules("test.yaml", []byte(text), fileOptions)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func fullRules(t testing.TB) *Rules {
	t.Helper()
	data, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return parseGood(t, string(data))
}

// withoutCompiled drops compiled fields, which other tests check.
var withoutCompiled = cmp.Options{cmpopts.IgnoreFields(Rule{}, "Words", "Quiet")}

func TestEveryFieldOfTheFile(t *testing.T) {
	t.Parallel()
	want := &Rules{
		Throttle: Throttle{Limit: 20, Window: "1h"},
		Channels: []ChannelSpec{
			{Name: "nats", Kind: ChannelNATS, Resolved: true},
			{Name: "log", Kind: ChannelLog},
			{Name: "ops", Kind: ChannelWebhook, Webhook: &WebhookSpec{URL: "https://example.com/hook",
				Secrets: [][]byte{signingKey, []byte("fedcba9876543210fedcba98")}}},
			{Name: "chat", Kind: ChannelSlack, Slack: &SlackSpec{URL: fileEnv["SLACK_URL"]}},
			{Name: "mail", Kind: ChannelSMTP, Resolved: true, SMTP: &SMTPSpec{Addr: "mail.example.com:587", TLS: "starttls", Username: "limits",
				Password: "T0P-SECRET", From: "limits@example.com", To: []string{"ops@example.com", "night@example.com"}}},
		},
		Rules: []Rule{
			{
				Name:      "heavy-denials",
				Match:     Match{Types: []string{limits.EventExceeded}, Policies: []string{"api", "chat-*"}, Keys: []string{"api:*"}, Users: []string{"7", "8*"}},
				Threshold: 5, Within: 10 * time.Minute, Severity: Critical, GroupBy: []string{"user", "policy"},
				Dedup: 30 * time.Minute, ResolveAfter: 15 * time.Minute,
				Throttle: &Throttle{Name: "heavy-denials", Limit: 5, Window: "1h"}, Channels: []string{"ops", "chat", "mail", "nats"},
			},
			{
				Name: "close", Match: Match{Types: []string{limits.EventWarning}}, Threshold: 1, Within: 10 * time.Minute, Severity: Info,
				GroupBy: []string{"user", "policy", "window"}, Dedup: 10 * time.Minute, ResolveAfter: 10 * time.Minute, Channels: []string{"log"},
			},
		},
	}
	got := fullRules(t)
	if d := cmp.Diff(want, got, withoutCompiled); d != "" {
		t.Error(d)
	}
	if len(got.Rules[0].Quiet) != 2 || got.Rules[0].Words.title == nil || got.Rules[0].Words.text == nil {
		t.Errorf("%+v", got.Rules[0])
	}
}

func TestDefaultRules(t *testing.T) {
	t.Parallel()
	want := &Rules{
		Throttle: Throttle{Limit: 20, Window: "1h"},
		Channels: []ChannelSpec{{Name: "nats", Kind: ChannelNATS, Resolved: true}, {Name: "log", Kind: ChannelLog, Resolved: true}},
		Rules: []Rule{{
			Name: "denials", Match: Match{Types: []string{limits.EventExceeded}}, Threshold: 5, Within: 10 * time.Minute, Severity: Warning,
			GroupBy: []string{"user", "policy", "window"}, Dedup: 10 * time.Minute, ResolveAfter: 10 * time.Minute, Channels: []string{"nats", "log"},
		}},
	}
	if d := cmp.Diff(want, Default(), withoutCompiled); d != "" {
		t.Error(d)
	}
}

// TestDefaultsDependOnOtherFields: a warning is one denial, and a counter that goes on denying says so only every 10 s.
func TestDefaultsDependOnOtherFields(t *testing.T) {
	t.Parallel()
	for fields, want := range map[string]Rule{
		"":                                    {Threshold: 5, ResolveAfter: 10 * time.Minute},
		"match: {type: warning}":              {Threshold: 1, ResolveAfter: 10 * time.Minute},
		"match: {type: [warning, exceeded]}":  {Threshold: 5, ResolveAfter: 10 * time.Minute},
		"threshold: {within: 29s}":            {Threshold: 5, ResolveAfter: 30 * time.Second},
		"threshold: {denials: 9, within: 2h}": {Threshold: 9, ResolveAfter: 2 * time.Hour},
	} {
		r := parseGood(t, "rules: [{name: a, "+fields+"}]").Rules[0]
		if r.Threshold != want.Threshold || r.ResolveAfter != want.ResolveAfter {
			t.Errorf("%s: %d denials, resolved after %s; want %d and %s", fields, r.Threshold, r.ResolveAfter, want.Threshold, want.ResolveAfter)
		}
	}
}

// TestRulesThatMayMiscount are those that count several denials within less than the 10 s between two events of a counter.
func TestRulesThatMayMiscount(t *testing.T) {
	t.Parallel()
	r := parseGood(t, `rules: [{name: nine, threshold: {within: 9s}}, {name: ten, threshold: {within: 10s}}, {name: one, threshold: {denials: 1, within: 9s}},
		{name: warned, match: {type: warning}, threshold: {denials: 3, within: 8s}}, {name: both, match: {type: [warning, exceeded]}, threshold: {denials: 2, within: 1s}}]`)
	if got, want := slices.Sorted(maps.Keys(maps.Collect(r.Miscounting()))), []string{"both", "nine"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestBadAlertsFiles: every file has one mistake, and its first line has the expected error. No error shows a secret, not even
// one in a wrong place.
func TestBadAlertsFiles(t *testing.T) {
	t.Parallel()
	yamltest.BadFiles(t, func(file string, data []byte) error {
		_, err := ParseRules("f", data, fileOptions)
		if err != nil && strings.Contains(err.Error(), "T0P-SECRET") {
			t.Errorf("%s: %v: shows a secret", file, err)
		}
		return err
	})
}

// TestAllAlertsFileErrorsAreReported in one run of the program, not in one run for each mistake.
func TestAllAlertsFileErrorsAreReported(t *testing.T) {
	t.Parallel()
	_, err := ParseRules("alerts.yaml", []byte(`throttle: {limit: 0, window: 1h}
channels:
  - name: ops
    webhook: {url: "ftp://example.com", secrets: "env:NONE"}
rules:
  - name: a
    severty: info
    threshold: {denials: 5, within: 1x}
  - name: a
    title: "{{.Usr}}"
`), fileOptions)
	if lines, want := yamltest.Lines(t, err), []int{1, 4, 4, 7, 8, 9, 10}; !slices.Equal(lines, want) {
		t.Errorf("lines %v, want %v:\n%v", lines, want, err)
	}
	if !strings.Contains(err.Error(), `alerts.yaml:7: rules[0].severty: unknown field "severty" (did you mean "severity"?)`) {
		t.Error(err)
	}
}

// TestRulesThatAreWrittenDifferentlyMaySendTheSameAlerts: the order of a list says nothing, and * as much as no pattern.
func TestRulesThatAreWrittenDifferentlyMaySendTheSameAlerts(t *testing.T) {
	t.Parallel()
	for one, other := range map[string]string{
		"groupBy: [user, policy]":              "groupBy: [policy, user]",
		"match: {policy: [p, q]}":              "match: {policy: [q, p]}",
		"match: {type: [exceeded, warning]}":   "match: {type: [limits.warning, exceeded]}",
		"match: {key: k}":                      `match: {key: [k], user: "*"}`,
		`match: {policy: "**"}`:                "match: {type: exceeded}",
		"groupBy: [user, policy, window]":      "severity: info",
		"match: {user: [a, b, c]}, dedup: 10m": "match: {user: [c, a, b]}",
	} {
		_, err := ParseRules("f", []byte("rules: [{name: a, "+one+"},\n {name: b, "+other+"}]"), fileOptions)
		if err == nil || !strings.HasPrefix(err.Error(), "f:2: rules[1]: sends a channel the same alerts as rules[0]") {
			t.Errorf("%s, and %s: %v", one, other, err)
		}
	}
}

// TestRulesThatSendDifferentAlertsAreAccepted, also to one channel.
func TestRulesThatSendDifferentAlertsAreAccepted(t *testing.T) {
	t.Parallel()
	const rule = "{name: a, match: {type: exceeded, policy: p, key: k, user: u}, threshold: {denials: 5, within: 10m}, groupBy: [user], channels: log}"
	for from, to := range map[string]string{"": "", "type: exceeded": "type: warning", "policy: p": "policy: q", "key: k": "key: l", "user: u": "user: v",
		"denials: 5": "denials: 6", "within: 10m": "within: 11m", "groupBy: [user]": "groupBy: [key]", "channels: log": "channels: nats"} {
		other := strings.Replace(strings.Replace(rule, "name: a", "name: b", 1), from, to, 1)
		_, err := ParseRules("f", []byte("rules: ["+rule+",\n "+other+"]"), fileOptions)
		if same := err != nil && strings.HasPrefix(err.Error(), "f:2: rules[1]: sends a channel the same alerts as rules[0]"); same != (from == "") || err != nil && !same {
			t.Errorf("%q instead of %q: %v", to, from, err)
		}
	}
}

// TestEmptyRuleIsOneMistake: what it lacks is not reported, too.
func TestEmptyRuleIsOneMistake(t *testing.T) {
	t.Parallel()
	_, err := ParseRules("f", []byte("rules:\n  -\n  -\n"), fileOptions)
	if lines, want := yamltest.Lines(t, err), []int{2, 3}; !slices.Equal(lines, want) {
		t.Errorf("lines %v, want %v:\n%v", lines, want, err)
	}
}

// TestSecretsFromFiles reads secrets from files, and checks the errors if they are missing or
// invalid.
func TestSecretsFromFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "file:" + filepath.ToSlash(p)
	}
	parse := func(secret string, o FileOptions) (*Rules, error) {
		return ParseRules("f", []byte(`channels: [{name: ops, webhook: {url: "https://example.com", secrets: "`+secret+`"}}]
rules: [{name: a, channels: ops}]`), o)
	}
	r, err := parse(path("good", fileEnv["OPS_SECRET"]+"\n"), fileOptions)
	if err != nil || string(r.Channels[2].Webhook.Secrets[0]) != string(signingKey) {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := parse(path("full", fileEnv["OPS_SECRET"]+strings.Repeat("\n", 4096-len(fileEnv["OPS_SECRET"]))), fileOptions); err != nil {
		t.Errorf("a file of 4096 bytes: %v", err)
	}
	for secret, want := range map[string]string{
		path("empty", "\n"):                            "is empty",
		path("long", strings.Repeat("T0P-", 1024)+"x"): "has more than 4096 bytes",
		path("other", "T0P-SECRET"):                    "is not a Standard Webhooks secret",
		"file:" + filepath.ToSlash(dir):                "is not a regular file",
		"file:" + filepath.ToSlash(dir) + "/nothing":   "no such file",
	} {
		if _, err := parse(secret, fileOptions); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "T0P-") {
			t.Errorf("%s: %v, want %s", secret, err, want)
		}
		if r, err := parse(secret, FileOptions{NoSecrets: true}); err != nil || len(r.Channels[2].Webhook.Secrets) != 1 {
			t.Errorf("%s is read where no secrets are: %v", secret, err)
		}
	}
}

func TestForceReloadReadsChangedSecret(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret, file := filepath.Join(dir, "secret"), filepath.Join(dir, "alerts.yaml")
	put := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(secret, fileEnv["OPS_SECRET"])
	put(file, `channels: [{name: ops, webhook: {url: "https://example.com", secrets: "file:`+filepath.ToSlash(secret)+`"}}]
rules: [{name: a, channels: ops}]`)
	k, err := NewRulesKeeper(t.Context(), file, fileOptions, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	key := func() string { return string(k.Current().Channels[2].Webhook.Secrets[0]) }
	put(secret, fileEnv["OPS_OLD_SECRET"])
	if err := k.Reload(); err != nil || key() != string(signingKey) {
		t.Errorf("%q, %v", key(), err)
	}
	if err := k.ForceReload(); err != nil || key() == string(signingKey) {
		t.Errorf("%q, %v", key(), err)
	}
	put(secret, "")
	if err := k.ForceReload(); err == nil || key() == string(signingKey) || k.Report().Failures != 1 {
		t.Errorf("%v, %+v", err, k.Report())
	}
}

func TestRuleMatch(t *testing.T) {
	t.Parallel()
	e := &Event{Type: limits.EventExceeded, Policy: "api", Key: "api:user:7", User: "7"}
	inline := &Event{Type: limits.EventExceeded, Key: "global"}
	for _, c := range []struct {
		match  string
		event  *Event
		fitted bool
	}{
		{`{}`, e, true}, {`{type: warning}`, e, false}, {`{type: [warning, exceeded]}`, e, true}, {`{type: limits.exceeded}`, e, true},
		{`{policy: api}`, e, true}, {`{policy: ap}`, e, false}, {`{policy: [x, "a*"]}`, e, true}, {`{policy: "*"}`, inline, true},
		{`{policy: "a*"}`, inline, false}, {`{key: "api:*:7"}`, e, true}, {`{key: "api:*:8"}`, e, false}, {`{key: global}`, inline, true},
		{`{user: "7"}`, e, true}, {`{user: ["8", "9"]}`, e, false}, {`{user: "7*", policy: chat}`, e, false}, {`{user: "7"}`, inline, false},
	} {
		r := parseGood(t, "rules: [{name: a, match: "+strings.Replace(c.match, "{}", "{type: exceeded}", 1)+"}]")
		if got := r.Rules[0].Match.matches(c.event); got != c.fitted {
			t.Errorf("%s over %+v: %t", c.match, c.event, got)
		}
	}
}

// TestExampleAlertsFilesAreValid: the file in examples, and the one in the documentation.
func TestExampleAlertsFilesAreValid(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../examples/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	example, err := ParseRules("alerts.yaml", data, FileOptions{NoSecrets: true})
	if err != nil || len(example.Rules) != 3 || len(example.Channels) != 5 {
		t.Fatalf("%+v, %v", example, err)
	}
	doc, err := os.ReadFile("../../docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(doc), "```yaml\n")
	text, _, found := strings.Cut(text, "```\n")
	if !found {
		t.Fatal("docs/alerts.md has no file")
	}
	for _, r := range []*Rules{example, parseGood(t, text)} {
		for day := range 7 { // Berlin is an hour ahead
			at := time.Date(2026, 1, 19+day, 2, 0, 0, 0, time.UTC)
			if _, quiet := r.Rules[0].quietUntil(at); !quiet {
				t.Errorf("rule %s is not quiet in the night to %s", r.Rules[0].Name, at.Weekday())
			}
		}
	}
	for _, name := range wordNames {
		if !strings.Contains(string(doc), "`{{."+name+"}}`") {
			t.Errorf("docs/alerts.md does not tell of {{.%s}}", name)
		}
	}
}
