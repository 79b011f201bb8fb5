package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

const denial = `{"allowed":false, "key":"api:user:7","name":"1m","limit":100,"remaining":0,"reset":1772362823000,` +
	`"retryAfter":23000,"blockedBy":"1m","message":"100 of 100 used in 1m; try again in 23s"}`

func TestConsume(t *testing.T) {
	var asked string
	url := respond(t, limits.SubjectConsume, func(request string) *nats.Msg {
		asked = request
		return text(denial)("")
	})
	i := limiter(t, "consume", "api:user:7", "--limit", "100", "--window", "1m", "--cost", "2", "--id", "a", "--nats-url", url)
	i.want(t, exitDenied, "denied", "")
	want := `denied: 100 of 100 used in 1m; try again in 23s
KEY         NAME  LIMIT   REMAINING  RESET                       RESULT
api:user:7  1m    100/1m  0          2026-03-01 12:00:23 in 23s  denied, retry in 23s
`
	if d := cmp.Diff(want, i.out.String()); d != "" {
		t.Error(d)
	}
	if want := `{"key":"api:user:7","limit":100,"window":"1m","cost":2,"id":"a"}`; asked != want {
		t.Errorf("asked %s, want %s", asked, want)
	}
	i = limiter(t, "consume", "api:user:7", "--limit", "100", "--window", "1m", "--consistency", "leased", "--json", "--nats-url", url)
	if i.status != exitDenied || i.out.String() != denial+"\n" {
		t.Errorf("--json: exit status %d, out %q", i.status, i.out.String())
	}
	if want := `{"key":"api:user:7","limit":100,"window":"1m","consistency":"leased"}`; asked != want {
		t.Errorf("asked %s, want %s", asked, want)
	}
}

// TestTooLargeStandardInput: it is not read to the end, so its size is not known.
func TestTooLargeStandardInput(t *testing.T) {
	url := respond(t, limits.SubjectConsume, text(denial))
	for size, status := range map[int]int{limits.MaxRequestBytes: exitDenied, limits.MaxRequestBytes + 1: exitError, 2 * limits.MaxRequestBytes: exitError} {
		i := &invocation{stdin: "{}" + strings.Repeat(" ", size-2)}
		i.run(t, "consume", "--request", "-", "--nats-url", url)
		if i.status != status {
			t.Errorf("%d bytes: exit status %d", size, i.status)
		}
		if status == exitError {
			i.want(t, exitError, "", "limiter: the request on standard input has more than 16384 bytes; at most 16384 are allowed (413 too_large)\n")
		}
	}
}

func TestCheckSeveralLimits(t *testing.T) {
	request := `{"limits":[{"key":"global","limit":1000,"window":"1m"},{"key":"ip:ab12","limit":5,"window":"1m"}]}`
	var asked string
	url := respond(t, limits.SubjectCheck, func(r string) *nats.Msg {
		asked = r
		return text(`{"allowed":true,"key":"ip:ab12","name":"1m","limit":5,"remaining":4,"reset":1772362860000,"degraded":true,"limits":[` +
			`{"name":"1m","key":"global","limit":1000,"window":"1m","remaining":999,"reset":1772362800000,"allowed":true},` +
			`{"name":"1m","key":"ip:ab12","limit":5,"window":"1m","remaining":4,"reset":1772362860000,"allowed":true}]}`)("")
	})
	want := `allowed (degraded: answered without the store)
KEY      NAME  LIMIT    REMAINING  RESET                      RESULT
global   1m    1000/1m  999        now                        allowed
ip:ab12  1m    5/1m     4          2026-03-01 12:01:00 in 1m  allowed
`
	for _, i := range []*invocation{
		limiter(t, "check", "--request", request, "--nats-url", url),
		(&invocation{stdin: request}).run(t, "check", "--request", "-", "--nats-url", url),
	} {
		i.want(t, exitDone, "allowed", "")
		if d := cmp.Diff(want, i.out.String()); d != "" {
			t.Error(d)
		}
		if asked != request {
			t.Errorf("asked %s, want it as typed", asked)
		}
	}
}

// TestShadow: the output shows which of the denying limits are enforced.
func TestShadow(t *testing.T) {
	const reply = `{"allowed":false,"key":"b","name":"1m","limit":5,"remaining":0,"reset":0,"retryAfter":1000,"blockedBy":"b","message":"slow down","limits":[` +
		`{"name":"1m","key":"a","limit":1,"window":"1m","remaining":0,"reset":0,"allowed":false,"shadow":true,"retryAfter":2000},` +
		`{"name":"1h","key":"a","limit":1,"window":"1h","remaining":1,"reset":0,"allowed":false,"shadow":true},` +
		`{"name":"1d","key":"a","limit":9,"window":"1d","remaining":9,"reset":0,"allowed":true,"shadow":true},` +
		`{"name":"1m","key":"b","limit":5,"window":"1m","remaining":0,"reset":0,"allowed":false,"retryAfter":1000}]}`
	want := `denied: slow down
KEY  NAME  LIMIT  REMAINING  RESET  RESULT
a    1m    1/1m   0          now    denied, retry in 2s (shadow)
a    1h    1/1h   1          now    denied, can never fit (shadow)
a    1d    9/1d   9          now    allowed
b    1m    5/1m   0          now    denied, retry in 1s
`
	i := limiter(t, "check", "-a", "user=7", "--nats-url", respond(t, limits.SubjectCheck, text(reply)))
	if d := cmp.Diff(want, i.out.String()); d != "" || i.status != exitDenied {
		t.Errorf("exit status %d, %s", i.status, d)
	}
}

// TestChargePastLimitIsNotShownAsDenial: if a denial and a time to retry were shown, people would charge twice.
func TestChargePastLimitIsNotShownAsDenial(t *testing.T) {
	const reply = `{"allowed":false,"key":"k","name":"foo","limit":5,"remaining":0,"reset":1772366400000,"retryAfter":3600000,` +
		`"blockedBy":"foo","message":"7 of 5 used in 1h; recorded past the limit"}`
	url := respond(t, "limits.*", text(reply))
	want := `past the limit: 7 of 5 used in 1h
KEY  NAME  LIMIT  REMAINING  RESET                      RESULT
k    foo   5/1h   0          2026-03-01 13:00:00 in 1h  charged, past the limit
`
	for _, args := range [][]string{
		{"record", "k", "--name", "foo", "--limit", "5", "--window", "1h", "--cost", "3"},
		{"record", "--request", `{"limits":[{"key":"k","name":"foo","limit":5,"window":"1h"}],"cost":3}`},
	} {
		i := limiter(t, append(args, "--nats-url", url)...)
		if d := cmp.Diff(want, i.out.String()); d != "" || i.status != exitDenied {
			t.Errorf("%s: exit status %d, %s", args, i.status, d)
		}
	}
	// Neither the answer nor a flag of settle has the window.
	i := limiter(t, "settle", "job", "--cost", "7", "--nats-url", url)
	if d := cmp.Diff(strings.Replace(want, "5/1h", "5   ", 1), i.out.String()); d != "" || i.status != exitDenied {
		t.Errorf("exit status %d, %s", i.status, d)
	}
}

// TestVerdictSaysWhatWasDone: of these verbs nobody asks for permission.
func TestVerdictSaysWhatWasDone(t *testing.T) {
	t.Parallel()
	const fits = `{"allowed":true,"key":"k","name":"1h","limit":5,"remaining":4,"reset":1772366400000}`
	const shadow = `{"allowed":true,"shadow":true,"key":"k","name":"1h","limit":5,"remaining":0,"reset":1772366400000,"limits":[` +
		`{"key":"k","name":"1h","limit":5,"window":"1h","remaining":0,"reset":1772366400000,"allowed":false,"shadow":true}]}`
	const none = `{"allowed":true,"limits":[]}`
	const table = `
KEY  NAME  LIMIT  REMAINING  RESET                      RESULT
k    1h    `
	for _, c := range []struct{ verb, reply, want string }{
		{"refund k --limit 5 --window 1h", fits, "refunded" + table + "5/1h   4          2026-03-01 13:00:00 in 1h  refunded\n"},
		{"record k --limit 5 --window 1h", fits, "recorded" + table + "5/1h   4          2026-03-01 13:00:00 in 1h  fits\n"},
		{"settle job --cost 1", fits, "settled" + table + "5      4          2026-03-01 13:00:00 in 1h  fits\n"},
		{"consume k --limit 5 --window 1h", fits, "allowed" + table + "5/1h   4          2026-03-01 13:00:00 in 1h  allowed\n"},
		{"record -a user=7", shadow, "recorded (shadow: past a limit that is not enforced)" + table +
			"5/1h   0          2026-03-01 13:00:00 in 1h  charged, past the limit (shadow)\n"},
		{"refund -a user=7", none, "nothing refunded: no limit applies\n"},
		{"record -a user=7", none, "nothing recorded: no limit applies\n"},
		{"consume -a user=7", none, "allowed: no limit applies\n"},
	} {
		url := respond(t, "limits.*", text(c.reply))
		i := limiter(t, append(strings.Fields(c.verb), "--nats-url", url)...)
		if d := cmp.Diff(c.want, i.out.String()); d != "" || i.status != exitDone {
			t.Errorf("%s: exit status %d, %s", c.verb, i.status, d)
		}
	}
}

func TestServiceErrorsSetExitStatus(t *testing.T) {
	body := `{"error":{"code":"invalid_window","field":"window","message":"window: unknown unit \"x\""}}`
	url := respond(t, "limits.*", func(string) *nats.Msg {
		return &nats.Msg{Data: []byte(body), Header: nats.Header{"Nats-Service-Error-Code": {"400"}}}
	})
	args := []string{"refund", "k", "--limit", "1", "--window", "1x", "--nats-url", url}
	limiter(t, args...).want(t, exitUsage, "", `limiter: window: unknown unit "x" (400 invalid_window)`+"\nsee: limiter refund --help\n")
	limiter(t, append(args, "--json")...).want(t, exitUsage, body+"\n", "400 invalid_window")
}

func TestNoAnswer(t *testing.T) {
	asked := make(chan struct{})
	url := respond(t, "limits.status", func(string) *nats.Msg { <-asked; return text("{}")("") })
	defer close(asked)
	limiter(t, "show", "k", "--timeout", "50ms", "--nats-url", url).want(t, exitError, "", "context deadline exceeded")
}

func TestShow(t *testing.T) {
	url := respond(t, limits.SubjectStatus, text(`{"key":"api:user:7","counters":[`+
		`{"name":"1m","algorithm":"token_bucket","limit":100,"window":"1m","burst":20,"used":3,"remaining":117,"reset":1772362801500},`+
		`{"name":"daily","policy":"plans","algorithm":"fixed_window","limit":50,"window":"day","used":3,"remaining":47,"reset":1772409600000}]}`))
	want := `api:user:7
NAME   LIMIT       USED  REMAINING  RESET                       ALGORITHM     POLICY
1m     100/1m +20  3     117        2026-03-01 12:00:01 in 2s   token_bucket  -
daily  50/day      3     47         2026-03-02 01:00:00 in 13h  fixed_window  plans
`
	if d := cmp.Diff(want, limiter(t, "show", "api:user:7", "--nats-url", url).out.String()); d != "" {
		t.Error(d)
	}
	url = respond(t, limits.SubjectStatus, text(`{"key":"k","counters":[]}`))
	limiter(t, "show", "k", "--nats-url", url).want(t, exitDone, "k: nothing used\n", "")
}

func TestShowLimitsOfPolicies(t *testing.T) {
	asked := ""
	url := respond(t, limits.SubjectStatus, func(request string) *nats.Msg {
		asked = request
		if strings.Contains(request, "tier") {
			return text(`{"counters":[]}`)("")
		}
		return text(`{"counters":[{"key":"chat:7","name":"daily","policy":"chat","algorithm":"fixed_window","limit":50,"window":"day","used":0,"remaining":50,"reset":1772362800000}]}`)("")
	})
	want := `KEY     NAME   LIMIT   USED  REMAINING  RESET  ALGORITHM     POLICY
chat:7  daily  50/day  0     50         now    fixed_window  chat
`
	if d := cmp.Diff(want, limiter(t, "show", "--policy", "chat", "-a", "user=7", "--nats-url", url).out.String()); d != "" {
		t.Error(d)
	}
	if want := `{"policy":"chat","attributes":{"user":"7"}}`; asked != want {
		t.Errorf("asked %s, want %s", asked, want)
	}
	limiter(t, "show", "-a", "user=7", "--tier", "PRO", "--nats-url", url).want(t, exitDone, "no limit applies\n", "")
	limiter(t, "show").want(t, exitUsage, "", "KEY is required, or --policy or -a")
	limiter(t, "show", "--tier", "PRO").want(t, exitUsage, "", "--tier requires --policy or -a")
	limiter(t, "show", "k", "--policy", "chat").want(t, exitUsage, "", "give one of them")
}

func pages(request string) *nats.Msg {
	if strings.Contains(request, `"after":"2"`) {
		return text(`{"counters":[{"key":"c","name":"1m","limit":1,"window":"1m","algorithm":"fixed_window"}]}`)("")
	}
	return text(`{"counters":[{"key":"a","name":"1m","limit":1,"window":"1m","algorithm":"fixed_window"}],"next":"2"}`)("")
}

func TestList(t *testing.T) {
	url := respond(t, limits.SubjectList, pages)
	i := limiter(t, "list", "--prefix", "x", "--nats-url", url)
	i.want(t, exitDone, "KEY  NAME  LIMIT  USED  REMAINING  RESET  ALGORITHM     POLICY\na    1m    1/1m   0     0          now    fixed_window  -\n", "")
	i.want(t, exitDone, "c ", "")
	limiter(t, "list", "--max", "1", "--nats-url", url).want(t, exitDone, "more: --after=\"2\"\n", "")
	i = limiter(t, "list", "--json", "--nats-url", url)
	if lines := strings.Count(i.out.String(), "\n"); i.status != exitDone || lines != 2 {
		t.Errorf("--json: exit status %d, %d lines, want a line a page", i.status, lines)
	}
	url = respond(t, limits.SubjectList, text(`{"counters":[]}`))
	limiter(t, "list", "--nats-url", url).want(t, exitDone, "no counters\n", "")
}

func TestReset(t *testing.T) {
	var asked []string
	url := respond(t, limits.SubjectReset, func(r string) *nats.Msg {
		asked = append(asked, r)
		return text(`{"reset":12}`)("")
	})
	dry, wet := `{"prefix":"p:","dryRun":true}`, `{"prefix":"p:"}`
	tests := []struct {
		name, stdin, args string
		tty               bool
		status            int
		out, err          string
		asked             []string
	}{
		{"one key", "", "k", false, exitDone, "reset 12 counters\n", "", []string{`{"key":"k"}`}},
		{"dry run", "", "--prefix p: --dry-run", false, exitDone, "would reset 12 counters\n", "", []string{dry}},
		{"yes to all", "", "--all --yes", false, exitDone, "reset 12 counters\n", "", []string{`{"all":true}`}},
		{"asked, yes", "y\n", "--prefix p:", true, exitDone, "reset 12 counters\n", "reset 12 counters under p:? [y/N] ", []string{dry, wet}},
		{"asked, no", "n\n", "--prefix p:", true, exitError, "", "nothing was reset", []string{dry}},
		{"asked, no answer", "", "--prefix p:", true, exitError, "", "nothing was reset", []string{dry}},
		{"no terminal to ask on", "", "--prefix p:", false, exitDone, "reset 12 counters\n", "", []string{wet}},
		{"all, no terminal to ask on", "", "--all", false, exitUsage, "", "pass --yes (or --dry-run)", nil},
		{"as it came", "", "k --json", false, exitDone, "{\"reset\":12}\n", "", []string{`{"key":"k"}`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			asked = nil
			i := &invocation{stdin: tt.stdin, tty: tt.tty}
			i.run(t, append([]string{"reset", "--nats-url", url}, strings.Fields(tt.args)...)...).want(t, tt.status, tt.out, tt.err)
			if d := cmp.Diff(tt.asked, asked); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestWatch(t *testing.T) {
	url := respond(t, "unused", text(""))
	event := `{"specversion":"1.0","id":"1","type":"limits.exceeded","source":"urn:limits","subject":"api:user:7",` +
		`"time":"2026-03-01T11:00:00.25Z","data":{"limit":5,"window":"1m","denied":3,"retryAfter":9000}}`
	i := watchOne(t, url, "limits.exceeded", event, nil)
	i.want(t, exitDone, "12:00:00.250  exceeded  api:user:7  5/1m: 3 denied, retry in 9s\n", "watching")
	i = watchOne(t, url, "limits.exceeded", event, nil, "--json")
	i.want(t, exitDone, event+"\n", "watching")
	i = watchOne(t, url, "limits.warning", `{"specversion":"1.0","id":"2","type":"limits.warning","subject":"k",`+
		`"time":"2026-03-01T11:00:00Z","data":{"limit":100,"window":"1m","remaining":10,"reset":1772362860000}}`, nil)
	i.want(t, exitDone, "12:00:00.000  warning   k  100/1m: 10 left, reset 2026-03-01 12:01:00 in 1m\n", "watching")
}

// watchOne watches until one event is seen. It prints to to, or to i.out if to is nil.
func watchOne(t *testing.T, url, subject, event string, to io.Writer, args ...string) *invocation {
	t.Helper()
	nc := testenv.Connect(t, url)
	i := &invocation{to: to}
	ended := i.start(t, "watching", append([]string{"watch", "--count", "1", "--nats-url", url}, args...)...)
	if err := nc.Publish(subject, []byte(event)); err != nil {
		t.Fatal(err)
	}
	<-ended
	return i
}

func TestWatchEndsWithASignal(t *testing.T) {
	url := respond(t, "unused", text(""))
	ctx, cancel := context.WithCancel(t.Context())
	i := &invocation{ctx: ctx}
	ended := i.start(t, "watching", "watch", "--nats-url", url)
	cancel()
	<-ended
	i.want(t, exitDone, "", "watching")
}

// TestKeysMayBeginWithADash, such as the id of a chat.
func TestKeysMayBeginWithADash(t *testing.T) {
	t.Parallel()
	url := respond(t, "limits.>", text(`{"allowed":true,"key":"-100","reset":1,"counters":[{"key":"-chat","name":"1m"}],"next":"-chat"}`))
	at := func(args string) *invocation {
		words := strings.Fields(args)
		return limiter(t, slices.Concat(words[:1], []string{"--nats-url", url}, words[1:])...)
	}
	more := at("list --max 1").out.String()
	_, next, _ := strings.Cut(more, "more: ")
	if want := "--after=\"-chat\"\n"; next != want {
		t.Errorf("the next page begins %q, want %q", next, want)
	}
	at("list --max 1 "+strings.NewReplacer(`"`, "", "\n", "").Replace(next)).want(t, exitDone, "more: ", "")
	for verb, wayOut := range map[string]string{
		"show -100":                          "limiter show [flags] -- -100",
		"reset -100 --dry-run":               "limiter reset [flags] -- -100",
		"consume -42 --limit 5 --window 1m":  "limiter consume [flags] -- -42",
		"consume --limit 5 --window 1m -zoo": "limiter consume [flags] -- -zoo",
	} {
		i := at(verb)
		i.want(t, exitUsage, "", "; an argument that begins with - needs -- before it, after all flags: "+wayOut+"\n")
	}
	at("show -- -100").want(t, exitDone, "-100\n", "")
	// What follows -- is no flag.
	at("consume -- -42 --limit 5 --window 1m").want(t, exitUsage, "", "unexpected argument --limit")
	at("consume --limit 5 --window 1m -- -100").want(t, exitDone, "allowed\n", "")
	if i := at("top -x"); strings.Contains(i.err.String(), " -- ") {
		t.Errorf("top takes no argument: %s", i.err.String())
	}
}

// TestNegativeNumbersAreValues: no flag looks like a number.
func TestNegativeNumbersAreValues(t *testing.T) {
	url := respond(t, "limits.>", text(`{"allowed":true,"counters":[]}`))
	limiter(t, "list", "--prefix", "-5", "--nats-url", url).want(t, exitDone, "no counters", "")
	limiter(t, "consume", "k", "--limit", "1", "--window", "-1m", "--nats-url", url).want(t, exitDone, "allowed", "")
}

func TestHealthcheck(t *testing.T) {
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Errorf("asked %s", r.URL.Path)
		}
		http.Error(w, "store: connection refused", status)
	}))
	defer s.Close()
	address := strings.TrimPrefix(s.URL, "http://")
	limiter(t, "healthcheck", "--http", address).want(t, exitDone, "ready\n", "")
	t.Setenv("HTTP_ADDR", strings.Replace(address, "127.0.0.1", "0.0.0.0", 1))
	limiter(t, "healthcheck").want(t, exitDone, "ready\n", "")
	status = http.StatusServiceUnavailable
	limiter(t, "healthcheck").want(t, exitError, "", "not ready: 503 Service Unavailable: store: connection refused")
	limiter(t, "healthcheck", "--http", "127.0.0.1:1").want(t, exitError, "", "connection refused; is a limiter running there?")
	moved := httptest.NewServer(http.RedirectHandler(s.URL+"/readyz", http.StatusFound))
	defer moved.Close()
	limiter(t, "healthcheck", "--http", strings.TrimPrefix(moved.URL, "http://")).want(t, exitError, "", "not ready: 302 Found")
	limiter(t, "healthcheck", "--http", "off").want(t, exitError, "", "nothing to check")
}

func TestWaitTime(t *testing.T) {
	tests := map[int64]string{
		1: "1ms", 999: "999ms", 1000: "1s", 1001: "2s", 59_000: "59s", 59_001: "1m", 60_000: "1m", 61_000: "1m 1s",
		3_600_000: "1h", 3_601_000: "1h 1m", 86_340_001: "1d", 86_400_000: "1d", 90_000_000: "1d 1h", 604_800_000: "7d",
	}
	for millis, want := range tests {
		if got := waitTime(millis); got != want {
			t.Errorf("waitTime(%d) = %q, want %q", millis, got, want)
		}
	}
}
