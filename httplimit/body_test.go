package httplimit_test

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/httplimit"
)

// noon is the time of the answers in these tests.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// denial is a denial by one limit that can be retried after the given time.
func denial(name, window string, limit int64, retry time.Duration) *httplimit.Answer {
	row := limits.LimitReply{Policy: "gen", Name: name, Key: "gen:7", Limit: limit, Window: window,
		Reset: noon.Add(retry).UnixMilli(), RetryAfter: retry.Milliseconds()}
	return &httplimit.Answer{Status: 429, At: noon, Reply: &limits.Reply{
		Key: row.Key, Name: name, Limit: limit, Reset: row.Reset, RetryAfter: row.RetryAfter, BlockedBy: name,
		Message: `said "so"`, Limits: []limits.LimitReply{row, {Policy: "gen", Name: "other", Key: "gen:7", Limit: 9,
			Remaining: 3, Window: "1h", Reset: noon.UnixMilli(), Allowed: true}},
	}}
}

var failures = &httplimit.Answer{Status: 500, At: noon}

// keyless is the answer to a request without an API key.
var keyless = &httplimit.Answer{Status: 401, At: noon}

func TestBodies(t *testing.T) {
	t.Parallel()
	minute := denial("minute", "minute", 5, 36_001*time.Millisecond)
	day := denial("day", "day", 50, 7*time.Hour+time.Second)
	never := denial("minute", "minute", 5, 0)
	template := httplimit.Must(httplimit.JSONTemplate(
		`{"n":"{retryAfter}","say":"{title}: {message} in {wait} \"\n\"","nested":[{"limit":"{limit}","at":"{resetAt}"}],"plain":"a\"b"}`))
	for _, tt := range []struct {
		name   string
		body   httplimit.Body
		answer *httplimit.Answer
		want   string
	}{
		{"problem", httplimit.Problem, minute, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",
			"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"said \"so\"",
			"violated-policies":["gen/minute"],"limit":5,"remaining":0,"reset":1767355237,"retryAfter":37}`},
		{"problem, failed", httplimit.Problem, failures, `{"type":"about:blank","title":"Internal Server Error","status":500,
			"detail":"Rate limit check failed"}`},
		{"problem, no key", httplimit.Problem, keyless, `{"type":"about:blank","title":"Unauthorized","status":401,"detail":"The request has no API key"}`},
		{"quota, no key", httplimit.JSONQuota, keyless, `{"error":"unauthorized","message":"The request has no API key"}`},
		{"code, no key", httplimit.JSONCode, keyless, `{"error":{"code":"UNAUTHORIZED","message":"The request has no API key"}}`},
		{"error, no key", httplimit.JSONError, keyless, `{"ok":false,"error":"The request has no API key"}`},
		{"error", httplimit.JSONError, minute, `{"ok":false,"error":"Rate limit exceeded","retry_after":37}`},
		{"error, failed", httplimit.JSONError, failures, `{"ok":false,"error":"Rate limit check failed"}`},
		{"quota", httplimit.JSONQuota, minute, `{"error":"rate_limit_exceeded","message":"said \"so\"","limit":5,"remaining":0,
			"reset":1767355237,"retryAfter":37}`},
		{"quota, failed", httplimit.JSONQuota, failures, `{"error":"rate_limit_check_failed","message":"Rate limit check failed"}`},
		{"usage, minute", httplimit.JSONUsage("generations"), minute, `{"error":"Rate limit exceeded",
			"message":"You've used 5/5 generations this minute. Try again in 37 seconds.",
			"rateLimit":{"type":"minute","limit":5,"current":5,"remaining":0,"resetAt":"2026-01-02T12:00:36.001Z"}}`},
		{"usage, day", httplimit.JSONUsage("generations"), day, `{"error":"Rate limit exceeded",
			"message":"You've used 50/50 generations today. Try again in 8 hours.",
			"rateLimit":{"type":"day","limit":50,"current":50,"remaining":0,"resetAt":"2026-01-02T19:00:01.000Z"}}`},
		{"usage, never", httplimit.JSONUsage("generations"), never, `{"error":"Rate limit exceeded",
			"message":"You've used 5/5 generations this minute. This request can never fit the limit.",
			"rateLimit":{"type":"minute","limit":5,"current":5,"remaining":0,"resetAt":"2026-01-02T12:00:00.000Z"}}`},
		{"usage, failed", httplimit.JSONUsage("generations"), failures, `{"error":"Rate limit check failed"}`},
		{"code", httplimit.JSONCode, denial("1m", "1m", 5, 42*time.Second),
			`{"error":{"code":"RATE_LIMIT_EXCEEDED","message":"Please wait 42 seconds before trying again.","retryAfter":42}}`},
		{"code, minutes", httplimit.JSONCode, denial("1h", "1h", 5, 61*time.Second),
			`{"error":{"code":"RATE_LIMIT_EXCEEDED","message":"Please wait 2 minutes before trying again.","retryAfter":61}}`},
		{"code, failed", httplimit.JSONCode, failures, `{"error":{"code":"RATE_LIMIT_CHECK_FAILED","message":"Rate limit check failed"}}`},
		{"template", template, minute, `{"n":37,"say":"Rate limit exceeded: said \"so\" in 37 seconds \"\n\"",
			"nested":[{"limit":5,"at":"2026-01-02T12:00:36.001Z"}],"plain":"a\"b"}`},
		{"template, escaped", httplimit.Must(httplimit.JSONTemplate(`{"n":"\u007blimit}","a:":"{\u006eame}: \u007bwait\u007d"}`)), minute,
			`{"n":5,"a:":"minute: 37 seconds"}`},
		{"template, failed", template, failures, `{"n":null,"say":"Rate limit check failed: Rate limit check failed in  \"\n\"",
			"nested":[{"limit":null,"at":null}],"plain":"a\"b"}`},
		{"template, nothing there", httplimit.Must(httplimit.JSONTemplate(
			`["{wait}","{retryAfter}","{name}","{policy}","{window}","{limit}","{current}","{remaining}","{reset}","{resetAt}","in {wait}"]`)),
			failures, `[null,null,null,null,null,null,null,null,null,null,"in "]`},
	} {
		contentType, got := tt.body(tt.answer)
		if d := cmp.Diff(decode(t, tt.want), decode(t, string(got))); d != "" {
			t.Errorf("%s: %s\n%s", tt.name, got, d)
		}
		if !strings.HasSuffix(contentType, "json") {
			t.Errorf("%s: content type %s", tt.name, contentType)
		}
	}
}

func decode(t *testing.T, text string) (value any) {
	t.Helper()
	if err := json.Unmarshal([]byte(strings.NewReplacer("\n\t\t\t", "").Replace(text)), &value); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return value
}

// The reply describes one limit, even if another policy has one with the same key and name.
func TestBodyShowsTheLimitThatRefused(t *testing.T) {
	t.Parallel()
	a := denial("1m", "1m", 5, time.Second)
	a.Reply.Limits = append([]limits.LimitReply{{Policy: "api", Name: "1m", Key: "gen:7", Limit: 100, Remaining: 95, Window: "1m",
		Reset: a.Reply.Reset, Allowed: true}}, a.Reply.Limits...)
	_, got := httplimit.Must(httplimit.TextTemplate("{policy} {limit} {remaining}"))(a)
	if string(got) != "gen 5 0" {
		t.Errorf("%q", got)
	}
}

func TestTextTemplate(t *testing.T) {
	t.Parallel()
	_, got := httplimit.Must(httplimit.TextTemplate("{status}: please wait {wait}.\n"))(denial("1m", "1m", 5, time.Second))
	if string(got) != "429: please wait 1 second.\n" {
		t.Errorf("%q", got)
	}
}

func TestInvalidTemplates(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"a":{retryAfter}}`:                   "not valid JSON",
		`{"a":"{retry}"}`:                      "unknown placeholder {retry}",
		`{"a":"{}"}`:                           "unknown placeholder {}",
		`{"a":"{retryAfter}"`:                  "not valid JSON",
		`{"a":[{"{limit}" : 1}]}`:              `placeholder in the name "{limit}"`,
		`{"\u007bname}":1}`:                    `placeholder in the name "{name}"`,
		`{"a":"\u007bretry}"}`:                 "unknown placeholder {retry}",
		`{"a":"{title} in \u007bretry\u007d"}`: "unknown placeholder {retry}",
	} {
		if _, err := httplimit.JSONTemplate(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestXRateLimitHeaders(t *testing.T) {
	t.Parallel()
	a := denial("minute", "minute", 5, 36_001*time.Millisecond)
	a.Reply.Remaining = -3 // clients take it for a number of requests
	for want, set := range map[string]httplimit.Headers{
		"1767355237": httplimit.XRateLimitUnix, "2026-01-02T12:00:36.001Z": httplimit.XRateLimitISO,
	} {
		h := http.Header{}
		set(h, a)
		got := []string{h.Get("X-RateLimit-Limit"), h.Get("X-RateLimit-Remaining"), h.Get("X-RateLimit-Reset")}
		if d := cmp.Diff([]string{"5", "0", want}, got); d != "" {
			t.Error(d)
		}
	}
}

// Limits in shadow are not shown to clients. The operator sees them in the reply.
func TestShadowLimitsAreHiddenFromClients(t *testing.T) {
	t.Parallel()
	a := denial("minute", "minute", 5, 36_001*time.Millisecond)
	row := a.Reply.Limits[0]
	row.Policy, row.Shadow = "shadow", true
	a.Reply.Limits = append([]limits.LimitReply{row}, a.Reply.Limits...)
	_, violated := httplimit.Problem(a)
	_, policy := httplimit.Must(httplimit.TextTemplate("{policy}"))(a)
	for _, text := range []string{sent(a), string(violated), string(policy)} {
		if strings.Contains(text, "shadow") || !strings.Contains(text, "gen") {
			t.Error(text)
		}
	}
	// If all limits are in shadow, the reply describes one of them.
	a.Reply.Limits, a.Reply.Allowed, a.Reply.Shadow = a.Reply.Limits[:1], true, true
	if text := sent(a); text != "" {
		t.Error(text)
	}
}

// sent returns the headers of all styles.
func sent(a *httplimit.Answer) string {
	h := http.Header{}
	for _, set := range []httplimit.Headers{httplimit.RateLimitFields, httplimit.XRateLimitUnix, httplimit.XRateLimitISO} {
		set(h, a)
	}
	var b strings.Builder
	_ = h.Write(&b)
	return b.String()
}

// An independent parser of RFC 9651 can read the fields, whatever the names are.
func TestRateLimitFieldsAreStructured(t *testing.T) {
	t.Parallel()
	hostile := "a\"b\\c\r\nSet-Cookie: x=1; é,\x00\x7f"
	a := denial("minute", "minute", 5, 36_001*time.Millisecond)
	for _, window := range []string{"1500ms", "2000ms", "30s", "5m", "1h", "2d", "1w", "hour", "day", "week", "month", "", "s", "99999999999w"} {
		a.Reply.Limits = append(a.Reply.Limits, limits.LimitReply{Name: hostile, Limit: 7, Remaining: 2, Allowed: true,
			Window: window, Reset: noon.Add(90 * time.Second).UnixMilli()})
	}
	h := http.Header{}
	httplimit.RateLimitFields(h, a)
	policies, state := items(t, h, "RateLimit-Policy"), items(t, h, "RateLimit")
	windows := []any{int64(60), int64(3600), nil, int64(2), int64(30), int64(300), int64(3600), int64(172800), int64(604800),
		int64(3600), int64(86400), int64(604800), nil, nil, nil, nil}
	if len(policies) != len(windows) || len(state) != len(windows) {
		t.Fatalf("%d and %d items, want %d", len(policies), len(state), len(windows))
	}
	names := map[any]bool{}
	for i, want := range windows {
		w, ok := policies[i].Params.Get("w")
		if w != want || ok != (want != nil) {
			t.Errorf("item %d: w=%v, want %v", i, w, want)
		}
		if policies[i].Value != state[i].Value || names[policies[i].Value] {
			t.Errorf("item %d: names %v and %v", i, policies[i].Value, state[i].Value)
		}
		names[policies[i].Value] = true
	}
	r, _ := state[0].Params.Get("r")
	until, _ := state[0].Params.Get("t")
	if state[0].Value != "gen/minute" || r != int64(0) || until != int64(37) {
		t.Errorf("%s", h.Get("RateLimit"))
	}
	if until, _ := state[2].Params.Get("t"); until != int64(90) || !strings.HasPrefix(state[2].Value.(string), `a"b\c%0D%0ASet-Cookie`) {
		t.Errorf("%v;t=%v", state[2].Value, until)
	}
}

// What is used is told also where something remains, as when a large cost is denied. What a bucket holds on top is not used.
func TestCurrentIsWhatIsUsedOfTheLimit(t *testing.T) {
	t.Parallel()
	for remaining, want := range map[int64]int64{0: 10, 3: 7, 10: 0, 15: 0} {
		a := &httplimit.Answer{At: noon, Reply: &limits.Reply{Limit: 10, Remaining: remaining}}
		if got := a.Current(); got != want {
			t.Errorf("%d remaining of 10: %d used, want %d", remaining, got, want)
		}
	}
	if got := failures.Current(); got != 0 {
		t.Errorf("%d used without a decision", got)
	}
}

// An Integer of RFC 9651 has at most 15 digits, and a parser rejects the whole field if a number has more. A token bucket in debt
// may need longer than that.
func TestRateLimitFieldsHoldAnyNumber(t *testing.T) {
	t.Parallel()
	const most = int64(999_999_999_999_999)
	a := &httplimit.Answer{At: noon, Reply: &limits.Reply{RetryAfter: math.MaxInt64, Limits: []limits.LimitReply{
		{Name: "whole again", Limit: math.MaxInt64, Remaining: math.MaxInt64, Reset: math.MaxInt64, Allowed: true, Window: "2147483647w"},
		{Name: "fits", Limit: 5, Reset: math.MaxInt64, RetryAfter: math.MaxInt64, Window: "2147483647w"},
	}}}
	h := http.Header{}
	httplimit.RateLimitFields(h, a)
	for field, want := range map[string][]map[string]int64{
		"RateLimit-Policy": {{"q": most, "w": most}, {"q": 5, "w": most}},
		"RateLimit":        {{"r": most, "t": most}, {"r": 0, "t": most}},
	} {
		for i, item := range items(t, h, field) {
			for name, value := range want[i] {
				if got, _ := item.Params.Get(name); got != value {
					t.Errorf("%s: %v;%s=%v, want %d", field, item.Value, name, got, value)
				}
			}
		}
	}
}

// A reset that has passed by the clock of this machine is now, since a negative t would make clients ignore the whole field.
// What can be printed of a name stays as it is.
func TestRateLimitOfAPassedReset(t *testing.T) {
	t.Parallel()
	a := &httplimit.Answer{At: noon, Reply: &limits.Reply{Allowed: true, Limits: []limits.LimitReply{
		{Name: "a b~\x1f\x7f", Limit: 5, Remaining: 4, Reset: noon.Add(-90 * time.Second).UnixMilli(), Allowed: true, Window: "1m"},
	}}}
	h := http.Header{}
	httplimit.RateLimitFields(h, a)
	if got, want := h.Get("RateLimit"), `"a b~%1F%7F";r=4;t=0`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestNestedMiddlewaresReportAllLimits: a client that keeps to the headers is not denied by the outer
// middleware. No two items may have the same name as it is written.
func TestNestedMiddlewaresReportAllLimits(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	answer := func(allowed bool, limit, remaining int64, window string) *httplimit.Answer {
		reply := &limits.Reply{Allowed: allowed, Key: "k", Name: "n", Limit: limit, Remaining: remaining, Reset: now.UnixMilli() + 60_000,
			Limits: []limits.LimitReply{{Name: "n", Key: "k", Limit: limit, Window: window, Remaining: remaining, Reset: now.UnixMilli() + 60_000, Allowed: allowed}}}
		if !allowed {
			reply.RetryAfter, reply.Limits[0].RetryAfter = 60_000, 60_000
		}
		return &httplimit.Answer{Reply: reply, At: now}
	}
	for _, c := range []struct {
		inner                      *httplimit.Answer
		policy, state, left, total string
	}{
		{answer(true, 100, 98, "1m"), `"n";q=2;w=3600, "n#2";q=100;w=60`, `"n";r=1;t=60, "n#2";r=98;t=60`, "1", "2"},
		{answer(true, 100, 0, "1m"), `"n";q=2;w=3600, "n#2";q=100;w=60`, `"n";r=1;t=60, "n#2";r=0;t=60`, "0", "100"},
		{answer(false, 100, 7, "1m"), `"n";q=2;w=3600, "n#2";q=100;w=60`, `"n";r=1;t=60, "n#2";r=7;t=60`, "7", "100"},
	} {
		h := http.Header{}
		for _, a := range []*httplimit.Answer{answer(true, 2, 1, "1h"), c.inner} {
			httplimit.RateLimitFields(h, a)
			httplimit.XRateLimitUnix(h, a)
		}
		if h.Get("RateLimit-Policy") != c.policy || h.Get("RateLimit") != c.state || h.Get("X-RateLimit-Remaining") != c.left || h.Get("X-RateLimit-Limit") != c.total {
			t.Errorf("%v, want %+v", h, c)
		}
	}
}

func TestRateLimitFieldsNameEachLimitOnce(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{{"m", "m", "m#2"}, {"m#2", "m", "m", "m"}, {"é", "%C3%A9"}, {"m", "m", "m", "m#3", "m#3"}} {
		a := &httplimit.Answer{Reply: &limits.Reply{Allowed: true}, At: noon}
		for _, name := range names {
			a.Reply.Limits = append(a.Reply.Limits, limits.LimitReply{Name: name, Limit: 7, Remaining: 2, Allowed: true, Window: "1m"})
		}
		h, seen := http.Header{}, map[any]bool{}
		httplimit.RateLimitFields(h, a)
		for _, item := range items(t, h, "RateLimit") {
			seen[item.Value] = true
		}
		if len(seen) != len(names) {
			t.Errorf("%q: %s", names, h.Get("RateLimit"))
		}
	}
}

// TestNestedFieldsNameEachLimitOnce, also limits whose names have what separates items and parameters.
func TestNestedFieldsNameEachLimitOnce(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"free", "free, trial", `a;q=1`, `"`, `\`} {
		h, seen := http.Header{}, map[any]bool{}
		for range 3 {
			httplimit.RateLimitFields(h, &httplimit.Answer{Reply: &limits.Reply{Allowed: true, Name: name, Limit: 7, Remaining: 2,
				Limits: []limits.LimitReply{{Name: name, Limit: 7, Remaining: 2, Allowed: true, Window: "1m"}}}, At: noon})
		}
		for _, item := range items(t, h, "RateLimit-Policy") {
			seen[item.Value] = true
		}
		if len(seen) != 3 {
			t.Errorf("%q: %s", name, h.Get("RateLimit-Policy"))
		}
	}
}

// TestRateLimitFieldsKeepExistingOnes: other handlers may have written the fields in several
// lines.
func TestRateLimitFieldsKeepExistingOnes(t *testing.T) {
	t.Parallel()
	h := http.Header{"Ratelimit": {""}}
	for _, name := range []string{"m", "n"} {
		h.Add("RateLimit-Policy", `"`+name+`";q=7;w=60`)
		h.Add("RateLimit", `"`+name+`";r=2;t=60`)
	}
	httplimit.RateLimitFields(h, &httplimit.Answer{At: noon, Reply: &limits.Reply{Allowed: true,
		Limits: []limits.LimitReply{{Name: "n", Limit: 7, Remaining: 2, Allowed: true, Window: "1m"}}}})
	for _, field := range []string{"RateLimit-Policy", "RateLimit"} {
		var names []any
		for _, item := range items(t, h, field) {
			names = append(names, item.Value)
		}
		if diff := cmp.Diff([]any{"m", "n", "n#2"}, names); diff != "" {
			t.Errorf("%s: %s", field, diff)
		}
	}
}

// TestADenialThatNeverEndsKeepsTheOtherItems: of those that were written before, it takes out the time and nothing else.
func TestADenialThatNeverEndsKeepsTheOtherItems(t *testing.T) {
	t.Parallel()
	never := &httplimit.Answer{At: noon, Reply: &limits.Reply{Limits: []limits.LimitReply{{Name: "n", Limit: 7, Remaining: 7, Window: "1m"}}}}
	for _, c := range []struct{ before, after []string }{
		{nil, []string{`"n";r=7`}},
		{[]string{"", `"m";r=2;t=60`, `tok;t=9;r=3`}, []string{`"m";r=2, tok;r=3, "n";r=7`}},
		{[]string{`"a;t=1, \";t=2";r=2; t=60;pk=:dD0x:;x=";t=3", b;r=1`}, []string{`"a;t=1, \";t=2";r=2;pk=:dD0x:;x=";t=3", b;r=1, "n";r=7`}},
		{[]string{`limit=100, remaining=0`}, []string{`limit=100, remaining=0, "n";r=7`}}, // which is no list of items
	} {
		h := http.Header{"Ratelimit": slices.Clone(c.before)}
		httplimit.RateLimitFields(h, never)
		if diff := cmp.Diff(c.after, h.Values("RateLimit")); diff != "" {
			t.Errorf("%q: (-want +got)\n%s", c.before, diff)
		}
	}
}

func items(t *testing.T, h http.Header, name string) (all []httpsfv.Item) {
	t.Helper()
	members, err := httpsfv.UnmarshalList(h.Values(name))
	if err != nil {
		t.Fatalf("%s: %v in %q", name, err, h.Get(name))
	}
	for _, member := range members {
		all = append(all, member.(httpsfv.Item))
	}
	return all
}

func TestWaitRoundsUp(t *testing.T) {
	t.Parallel()
	for retry, want := range map[time.Duration]string{
		1: "", time.Millisecond: "1 second", time.Second: "1 second", 59 * time.Second: "59 seconds",
		59_001 * time.Millisecond: "1 minute", 61 * time.Second: "2 minutes", 59*time.Minute + 1*time.Second: "1 hour",
		61 * time.Minute: "61 minutes", 119 * time.Minute: "119 minutes", 2 * time.Hour: "2 hours",
		24 * time.Hour: "1 day", 25 * time.Hour: "25 hours", 48 * time.Hour: "2 days",
	} {
		if got := denial("1m", "1m", 5, retry).Wait(); got != want {
			t.Errorf("%v: %q, want %q", retry, got, want)
		}
	}
}
