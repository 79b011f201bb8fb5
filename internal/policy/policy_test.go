package policy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/yamlfile"
	"github.com/seed503877ad/limits/internal/yamlfile/yamltest"
)

var options = Options{HashKey: []byte("0123456789abcdef"), Warning: 0.1}

// noon is a Monday.
var noon = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

func full(t testing.TB) *Set {
	t.Helper()
	s, err := Load("testdata/full.yaml", options)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func parse(t testing.TB, text string) *Set {
	t.Helper()
	s, err := Parse("test.yaml", []byte(text), options)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestBadFiles: every file has one mistake, and its first line has the expected error.
func TestBadFiles(t *testing.T) {
	t.Parallel()
	yamltest.BadFiles(t, func(file string, data []byte) error {
		o := options
		if strings.HasSuffix(file, "no-hash-key.yaml") {
			o.HashKey = nil
		}
		_, err := Parse("f", data, o)
		return err
	})
}

// TestAllMistakesAreReported at once, and not one at a time.
func TestAllMistakesAreReported(t *testing.T) {
	t.Parallel()
	_, err := Parse("limits.yaml", []byte(`policies:
  - name: a
    mod: shadow
    limits:
      - {key: "{user", limit: 5, window: 1m}
      - {name: b, key: k, limit: 5, window: 1x}
  - name: a
    limits:
      - {key: k, limit: 0, window: 1m}
`), options)
	if lines, want := yamltest.Lines(t, err), []int{3, 5, 6, 7, 9}; !slices.Equal(lines, want) {
		t.Errorf("lines %v, want %v:\n%v", lines, want, err)
	}
	if !strings.HasPrefix(err.Error(), `limits.yaml:3: policies[0].mod: unknown field "mod" (did you mean "mode"?)`) {
		t.Error(err)
	}
}

// TestMistakesOfAScheduleAreFoundLimitByLimit matters if a file has more of them than are listed.
func TestMistakesOfAScheduleAreFoundLimitByLimit(t *testing.T) {
	t.Parallel()
	text := "attributes: [user" + strings.Repeat(", user", 99) + `]
policies:
  - name: p
    limits:
      - {name: a, key: "{user}", limit: 1000000000, window: 1m}
      - {name: b, key: "{user}", limit: 1, window: 1m}
    schedule:
      - {from: "00:00", to: "12:00", factor: 2, limits: {b: {anchor: never}}}
`
	_, err := Parse("f", []byte(text), options)
	var e *Error
	if !errors.As(err, &e) || !e.More || e.Problems[len(e.Problems)-1].Path != "policies[0].schedule[0].factor" {
		t.Errorf("the last mistake of the list is not that of the factor: %v", err)
	}
}

// TestSuggestedNamesAreUnique, even if two limits have the same name.
func TestSuggestedNamesAreUnique(t *testing.T) {
	t.Parallel()
	_, err := Parse("f", []byte(`policies:
  - name: p
    limits:
      - {name: minute, key: k, limit: 5, window: 1m}
      - {name: minute, key: k, limit: 9, window: 1m}
      - {name: day, key: k, limit: 9, window: 1d}
    tiers: {PRO: {minut: {limit: 9}}}
`), options)
	if want := `unknown limit "minut" (did you mean "minute"?); want one of minute, day`; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v; want %s at the end", err, want)
	}
}

// TestMistakeIsReportedAtChange: a mistake is reported at the change, and not at the limit, which
// is valid without it. There it would hide the mistakes of other changes.
func TestMistakeIsReportedAtChange(t *testing.T) {
	t.Parallel()
	_, err := Parse("f", []byte(`policies:
  - name: p
    limits:
      - {name: m, key: k, limit: 5, window: day, timezone: Europe/Berlin}
      - {name: b, key: k, limit: 5, window: 1m, algorithm: token_bucket, burst: 5}
      - {name: a, key: k, limit: 5, window: 1d, algorithm: fixed_window, anchor: first_use}
      - {name: u, key: k, limit: unlimited}
      - {name: c, key: k, limit: 5, window: 1m}
    tiers:
      A:
        m: {window: 1h}
        b: {algorithm: sliding_window}
        a: {algorithm: token_bucket}
        u: {limit: 5}
        c: {algorithm: token_bucket, burst: 3}
      B:
        m: {window: 2h, timezone: Europe/Paris}
        b: {window: day}
    schedule:
      - from: "00:00"
        to: "08:00"
        limits:
          c: {algorithm: fixed_window}
`), options)
	const calendar = "timezone needs a calendar period (minute, hour, day, week, month); this limit has window "
	want := `f:11: policies[0].tiers.A.m: ` + calendar + `1h; add timezone: UTC
f:12: policies[0].tiers.A.b: burst needs algorithm token_bucket; this limit has sliding_window; add burst: 0
f:13: policies[0].tiers.A.a: anchor first_use needs algorithm fixed_window; this limit has token_bucket; add anchor: aligned
f:14: policies[0].tiers.A.u.window: is missing; want a duration such as 1m, or minute, hour, day, week, month
f:17: policies[0].tiers.B.m.timezone: ` + calendar + `2h
f:18: policies[0].tiers.B.b: a calendar period needs algorithm fixed_window; this limit has token_bucket; add algorithm: fixed_window
f:23: policies[0].schedule[0].limits.c: burst needs algorithm token_bucket; this limit has fixed_window; add burst: 0 (combined with policies[0].tiers.A.c)`
	if d := cmp.Diff(want, fmt.Sprint(err)); d != "" {
		t.Error(d)
	}
}

func names(limits []engine.Limit) (out []string) {
	for _, l := range limits {
		out = append(out, l.Policy+"/"+l.Label()+" "+l.Key)
	}
	return out
}

func TestResolve(t *testing.T) {
	t.Parallel()
	s := full(t)
	for name, c := range map[string]struct {
		q    Question
		want []string
	}{
		"named":                              {Question{Policy: "chat", Attributes: map[string]string{"user": "7"}}, []string{"chat/minute gen:7", "chat/day gen:7"}},
		"unlimited tier":                     {Question{Policy: "chat", Tier: "ENTERPRISE", Attributes: map[string]string{"user": "7"}}, []string{"chat/minute gen:7"}},
		"matched":                            {Question{Attributes: map[string]string{"user": "7", "route": "chat-v3"}}, []string{"chat/minute gen:7", "chat/day gen:7"}},
		"two match":                          {Question{Attributes: map[string]string{"user": "a:b", "route": "chat"}}, []string{"chat/minute gen:a:b", "chat/day gen:a:b", "trial/burst u:a%3Ab:chat"}},
		"first of a group":                   {Question{Attributes: map[string]string{"user": "7", "endpoint": "/v1/bulk-enrich"}}, []string{"enrichment/month quota:7"}},
		"last of a group":                    {Question{Attributes: map[string]string{"user": "7", "endpoint": "/v1/x"}}, []string{"api/month quota:7"}},
		"exempt":                             {Question{Attributes: map[string]string{"user": "7", "endpoint": "/v1/bulk-enrich", "auth": "jwt"}}, nil},
		"named, another of its group fits":   {Question{Policy: "api", Attributes: map[string]string{"user": "7", "endpoint": "/v1/bulk-enrich"}}, []string{"api/month quota:7"}},
		"named, its match does not fit":      {Question{Policy: "enrichment", Attributes: map[string]string{"user": "7", "endpoint": "/v1/x"}}, []string{"enrichment/month quota:7"}},
		"exempt and named":                   {Question{Policy: "api", Attributes: map[string]string{"auth": "jwt"}}, nil},
		"none matches":                       {Question{Attributes: map[string]string{"user": "7", "route": "x"}}, nil},
		"an attribute of the key is missing": {Question{Attributes: map[string]string{"endpoint": "/v1/x"}}, nil},
		"hashed": {Question{Policy: "open", Attributes: map[string]string{"ip": "2001:DB8::1", "email": "A@B.example"}},
			[]string{"open/global open", "open/ip ip:ca336460f17df79afad8308fa734551d", "open/email email:e9926fca69a8040d2588355b026831ba"}},
	} {
		c.q.Now = noon
		r, err := s.Resolve(c.q)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(c.want, names(r.Limits)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		for i := range r.Limits {
			if err := r.Limits[i].Validate(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestStrictestOnErrorApplies: that of the policies that are enforced. If there is none, it is
// that of the options.
func TestStrictestOnErrorApplies(t *testing.T) {
	t.Parallel()
	text := "policies:\n"
	for _, p := range []string{"local, on_error: local", "shadow, mode: shadow, on_error: deny", "default", "deny, on_error: deny", "allow, on_error: allow"} {
		name, _, _ := strings.Cut(p, ",")
		text += fmt.Sprintf("- {name: %s, match: {%s: '*'}, limits: [{name: l, key: k, limit: 1, window: 1m}]}\n", p, name)
	}
	for _, c := range []struct {
		applies string
		want    [2]engine.OnError // if the options say deny, and allow
	}{
		{"", [2]engine.OnError{engine.OnErrorDeny, engine.OnErrorAllow}},
		{"default", [2]engine.OnError{engine.OnErrorDeny, engine.OnErrorAllow}},
		{"shadow", [2]engine.OnError{engine.OnErrorDeny, engine.OnErrorAllow}},
		{"local", [2]engine.OnError{engine.OnErrorLocal, engine.OnErrorLocal}},
		{"local shadow allow", [2]engine.OnError{engine.OnErrorLocal, engine.OnErrorLocal}},
		{"local deny allow", [2]engine.OnError{engine.OnErrorDeny, engine.OnErrorDeny}},
		{"local default", [2]engine.OnError{engine.OnErrorDeny, engine.OnErrorLocal}},
		{"shadow allow", [2]engine.OnError{engine.OnErrorAllow, engine.OnErrorAllow}},
	} {
		for i, or := range []engine.OnError{engine.OnErrorDeny, engine.OnErrorAllow} {
			with := options
			with.OnError = or
			s, err := Parse("f", []byte(text), with)
			if err != nil {
				t.Fatal(err)
			}
			q := Question{Attributes: map[string]string{}, Now: noon}
			for name := range strings.FieldsSeq(c.applies) {
				q.Attributes[name] = "x"
			}
			r, err := s.Resolve(q)
			if err != nil || r.OnError != c.want[i] {
				t.Errorf("%q, else %s: %s, %v; want %s", c.applies, or, r.OnError, err, c.want[i])
			}
			for _, l := range r.Limits {
				if l.Shadow != (l.Policy == "shadow") {
					t.Errorf("policy %s is in shadow: %v", l.Policy, l.Shadow)
				}
			}
		}
	}
}

func TestResolveErrors(t *testing.T) {
	t.Parallel()
	s := full(t)
	if _, err := s.Resolve(Question{Policy: "cha"}); !errors.Is(err, ErrUnknownPolicy) {
		t.Error(err)
	}
	for _, q := range []Question{
		{Policy: "chat"},
		{Policy: "chat", Attributes: map[string]string{"user": ""}},
		{Policy: "open", Attributes: map[string]string{"ip": "nowhere", "email": "a"}},
		{Attributes: map[string]string{"route": "chat", "user": strings.Repeat("x", 255)}},
	} {
		_, err := s.Resolve(q)
		var ae *AttributeError
		if !errors.As(err, &ae) || ae.Policy == "" || ae.Limit == "" || ae.Attribute == "" {
			t.Errorf("%+v: %v", q, err)
		}
	}
	var many strings.Builder
	many.WriteString("policies:\n")
	for _, name := range []string{"a", "b", "c"} {
		many.WriteString("  - name: " + name + "\n    match: {user: '*'}\n    limits:\n")
		for i := range 6 {
			many.WriteString("      - {name: l" + string(rune('0'+i)) + ", key: k, limit: 1, window: 1m}\n")
		}
	}
	if _, err := parse(t, many.String()).Resolve(Question{Attributes: map[string]string{"user": "7"}}); !errors.Is(err, ErrTooManyLimits) {
		t.Error(err)
	}
}

func TestSchedule(t *testing.T) {
	t.Parallel()
	s := parse(t, `
policies:
  - name: p
    limits: [{name: l, key: k, limit: 10, window: 1m, algorithm: token_bucket, burst: 3}]
    tiers: {pro: {l: {limit: 100, consistency: leased}}}
    schedule:
      - {from: "22:00", to: "06:00", days: [sat], timezone: Europe/Berlin, factor: 2.5}
      - {from: "08:00", to: "09:00", timezone: Europe/Berlin, limits: {l: {limit: 7}}}
`)
	for at, want := range map[string][2]int64{
		"2026-03-07T20:59:00Z": {10, 100}, // Saturday 21:59 in Berlin
		"2026-03-07T21:00:00Z": {25, 250},
		"2026-03-08T04:59:00Z": {25, 250}, // Sunday 05:59
		"2026-03-08T05:00:00Z": {10, 100},
		"2026-03-06T22:00:00Z": {10, 100}, // Friday
		"2026-07-06T06:30:00Z": {7, 7},    // 08:30 in summer
	} {
		now, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		for i, tier := range []string{"", "pro"} {
			q := Question{Policy: "p", Tier: tier, Now: now}
			r, err := s.Resolve(q)
			if err != nil || r.Limits[0].Limit != want[i] || r.Limits[0].Leased != (tier == "pro") {
				t.Errorf("%s %q: %+v, %v; want %d", at, tier, r, err, want[i])
			}
			if slot := s.Explain(q).Policies[0].Schedule; (slot == "") != (want == [2]int64{10, 100}) {
				t.Errorf("%s %q: of the schedule %q is in force", at, tier, slot)
			}
		}
	}
}

// TestFactorsAreExact: a factor is the decimal number in the file, and not its nearest floating-point number.
func TestFactorsAreExact(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		factor                             string
		limit, burst, wantLimit, wantBurst int64
	}{
		{"0.29", 100, 100, 29, 29},
		{"1.1", 10, 30, 11, 33},
		{"0.57", 1_000_000_000, 100, 570_000_000, 57},
		{"0.999", 10, 1, 9, 0}, // rounded down
		{"0.01", 10, 0, 1, 0},  // but at least 1
		{"0.000000001", 10, 10, 1, 0},
		{"1000", 1_000_000, 1_000_000, 1_000_000_000, 1_000_000_000},
		{"1.0000000001", 1_000_000_000, 0, 1_000_000_000, 0}, // within the bound after rounding
	} {
		s := parse(t, fmt.Sprintf(`policies:
  - name: p
    limits: [{name: l, key: k, limit: %d, window: 1m, algorithm: token_bucket, burst: %d}]
    schedule: [{from: "00:00", to: "24:00", factor: %s}]
`, c.limit, c.burst, c.factor))
		r, err := s.Resolve(Question{Policy: "p", Now: noon})
		if err != nil {
			t.Fatal(err)
		}
		if l := r.Limits[0]; l.Limit != c.wantLimit || l.Burst != c.wantBurst {
			t.Errorf("%d and %d by %s are %d and %d, want %d and %d", c.limit, c.burst, c.factor, l.Limit, l.Burst, c.wantLimit, c.wantBurst)
		}
	}
}

// TestUnlimitedLimitNeedsNoKey: a limit that is lifted by a tier denies nothing, whatever the
// attributes of its key are.
func TestUnlimitedLimitNeedsNoKey(t *testing.T) {
	t.Parallel()
	s := parse(t, `policies:
  - name: p
    limits:
      - {name: user, key: "u:{user}", limit: 10, window: 1m}
      - {name: ip, key: "ip:{ip}", limit: 5, window: 1m}
      - {name: agent, key: "agent:{agent}", limit: 5, window: 1m}
    tiers: {internal: {ip: {limit: unlimited}, agent: {limit: unlimited}}}
`)
	for _, o := range []Finder{nil, given{}} {
		r, err := s.Resolve(Question{Policy: "p", Tier: "internal", Now: noon, Overrides: o,
			Attributes: map[string]string{"user": "7", "ip": "unix:", "agent": strings.Repeat("x", 256)}})
		if d := cmp.Diff([]string{"p/user u:7"}, names(r.Limits)); err != nil || d != "" {
			t.Errorf("overrides %v: %v %s", o, err, d)
		}
	}
}

func TestAKeyMayHave256BytesOfFixedText(t *testing.T) {
	t.Parallel()
	key := strings.Repeat("x", maxKeyBytes)
	s := parse(t, "policies: [{name: p, limits: [{name: l, key: "+key+", limit: 10, window: 1m}]}]")
	r, err := s.Resolve(Question{Policy: "p", Now: noon})
	if d := cmp.Diff([]string{"p/l " + key}, names(r.Limits)); err != nil || d != "" {
		t.Error(err, d)
	}
}

func TestMessages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		message, window string
		used, retry     int64
		want            string
	}{
		{"You've used {used}/{limit} generations {window}. Try again in {retry}.", "minute", 5, 36_001, "You've used 5/5 generations this minute. Try again in 37 seconds."},
		{"You've used {used}/{limit} generations {window}. Try again in {retry}.", "day", 5, 7*3_600_000 + 1, "You've used 5/5 generations today. Try again in 8 hours."},
		{"Please wait {retry} before trying again.", "60s", 5, 42_000, "Please wait 42 seconds before trying again."},
		{"Please wait {retry} before trying again.", "60s", 5, 61_000, "Please wait 2 minutes before trying again."},
		{"Please wait {retry} before trying again.", "1h", 5, 3_641_000, "Please wait 61 minutes before trying again."},
		{"Please wait {retry} before trying again.", "1h", 5, 3_600_000, "Please wait 1 hour before trying again."},
		{"Please wait {retry} before trying again.", "1d", 5, 86_400_001, "Please wait 25 hours before trying again."},
		{"Please wait {retry} before trying again.", "1h", 5, 59*60_000 + 1000, "Please wait 1 hour before trying again."},
		{"Please wait {retry} before trying again.", "1d", 5, 23*3_600_000 + 1000, "Please wait 1 day before trying again."},
		{"Please wait {retry} before trying again.", "60s", 5, 59_001, "Please wait 1 minute before trying again."},
		{"Please wait {retry} before trying again.", "2d", 5, 48 * 3_600_000, "Please wait 2 days before trying again."},
		{"Please wait {retry} before trying again.", "2h", 5, 120 * 60_000, "Please wait 2 hours before trying again."},
		{"{window}", "1500ms", 5, 1, "in 1500 milliseconds"},
		{"{retry} {name} {key} {remaining} {cost} {window}", "5m", 5, 1, "1 second n k 0 3 in 5 minutes"},
	} {
		r := engine.Result{Name: "n", Key: "k", Limit: 5, Used: c.used, RetryAfter: c.retry, Window: c.window, Message: c.message}
		if got := string(AppendMessage(nil, &r, 3)); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	bucket := engine.Result{Algorithm: engine.TokenBucket, Limit: 10, Burst: 5, Used: 15, Message: "{used}/{limit}"}
	if got := string(AppendMessage(nil, &bucket, 1)); got != "15/15" { // as in the default message
		t.Errorf("%q, want 15/15", got)
	}
	for window, want := range map[string]string{"minute": "in a minute", "hour": "in an hour", "day": "in a day", "month": "in a month", "1d": "in 1 day"} {
		r := engine.Result{Window: window, FirstUse: true, Message: "{window}"}
		if got := string(AppendMessage(nil, &r, 1)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestDocumentedFiles checks that the example files of the documents are valid and have the schema comment for editors.
func TestDocumentedFiles(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(doc), -1)
	if len(blocks) == 0 {
		t.Fatal("no examples")
	}
	for _, b := range blocks {
		if !strings.HasPrefix(b[1], "# yaml-language-server: $schema=") {
			t.Errorf("without the schema comment for editors:\n%s", b[1])
		}
		parse(t, b[1])
	}
}

func TestHashIsOfTheFile(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/full.yaml")
	if want := yamlfile.Hash(data); err != nil || full(t).Hash() != want {
		t.Errorf("%s, want %s", full(t).Hash(), want)
	}
}

// TestErrorsDoNotContainHashKey: the secret must not get into a log.
func TestErrorsDoNotContainHashKey(t *testing.T) {
	t.Parallel()
	_, err := full(t).Resolve(Question{Policy: "open", Attributes: map[string]string{"ip": "x", "email": "a"}})
	if err == nil || regexp.MustCompile(string(options.HashKey)).MatchString(err.Error()) {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/*.yaml", "testdata/bad/*.yaml"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("f", data, options)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without a message")
			}
			return
		}
		attributes := map[string]string{"user": "u", "ip": "::1", "route": "chat", "email": "e"}
		for _, p := range s.Policies() {
			for _, tier := range []string{"", "PRO"} {
				r, _ := s.Resolve(Question{Policy: p.Name, Tier: tier, Attributes: attributes, Now: noon})
				for i := range r.Limits {
					if err := r.Limits[i].Validate(); err != nil {
						t.Errorf("policy %s: %v", p.Name, err)
					}
				}
			}
		}
		s.Explain(Question{Attributes: attributes, Now: noon})
	})
}

func BenchmarkResolve(b *testing.B) {
	s := full(b)
	for name, q := range map[string]Question{
		"named":   {Policy: "chat", Attributes: map[string]string{"user": "7"}, Now: noon},
		"matched": {Attributes: map[string]string{"user": "7", "route": "chat-v3"}, Now: noon},
		"hashed":  {Policy: "open", Attributes: map[string]string{"ip": "203.0.113.9", "email": "a@b.example"}, Now: noon},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Resolve(q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
