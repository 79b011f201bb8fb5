package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
	"github.com/seed503877ad/limits/schemas"
)

// TestTooManySubscriptionsFailTheStart: otherwise a service without subscriptions would seem to be
// ready.
func TestTooManySubscriptionsFailTheStart(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t, func(o *server.Options) { o.MaxSubs = 10 }).ClientURL())
	_, err := NewService(ServiceConfig{Conn: nc, Engine: &fakeEngine{submit: allowing}, Version: "1.2.3", Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "raise max_subscriptions") {
		t.Errorf("%v", err)
	}
}

func TestReplies(t *testing.T) {
	denying := func(r *engine.Request) error {
		if r.Limits[0].Key == "a" {
			r.Done(engine.Decision{Results: []engine.Result{{Key: "a", Name: "1m", Window: "1m", Limit: 100, Used: 100,
				ResetAt: 1704307200000, RetryAfter: 23000}}}, nil)
			return nil
		}
		return allowing(r)
	}
	_, nc := serve(t, &fakeEngine{submit: func(r *engine.Request) error {
		if len(r.Limits) == 0 {
			return allowing(r)
		}
		return denying(r)
	}})
	for _, c := range []struct{ body, want string }{
		{hot, `{"allowed":true,"key":"api:user:123","name":"1m","limit":100,"remaining":99,"reset":1704307200000}`},
		{`{"key":"a","limit":100,"window":"1m"}`, `{"allowed":false,"key":"a","name":"1m","limit":100,"remaining":0,"reset":1704307200000,` +
			`"retryAfter":23000,"blockedBy":"1m","message":"100 of 100 used in 1m; try again in 23s"}`},
		{items(2), `{"allowed":true,"key":"k0","name":"1m","limit":1,"remaining":0,"reset":1704307200000,"limits":[` +
			`{"name":"1m","key":"k0","algorithm":"sliding_window","limit":1,"window":"1m","remaining":0,"reset":1704307200000,"allowed":true},` +
			`{"name":"1m","key":"k1","algorithm":"sliding_window","limit":1,"window":"1m","remaining":0,"reset":1704307200000,"allowed":true}]}`},
		{`{"attributes":{"ip":"x"}}`, `{"allowed":true,"limit":0,"remaining":0,"reset":0,"limits":[]}`},
	} {
		m := ask(t, nc, limits.SubjectConsume, c.body)
		if string(m.Data) != c.want || len(m.Header) != 0 {
			t.Errorf("%s\n got %s %v\nwant %s", c.body, m.Data, m.Header, c.want)
		}
	}
}

var errFull = errors.New("secret path")

// TestEngineErrors: each error of the engine, from Submit or from Done.
func TestEngineErrors(t *testing.T) {
	var now error
	submitFails := false
	_, nc := serve(t, &fakeEngine{submit: func(r *engine.Request) error {
		if submitFails {
			return now
		}
		go r.Done(engine.Decision{}, now)
		return nil
	}}, func(c *ServiceConfig) {
		c.Advice = func(err error) string {
			if errors.Is(err, errFull) {
				return "the disk is full"
			}
			return ""
		}
	})
	for _, c := range []struct {
		err    error
		status string
		want   string
	}{
		{engine.ErrOverloaded, "503", `{"error":{"code":"overloaded","message":"the worker has too many requests waiting; try again soon"}}`},
		{engine.ErrManyCounters, "413", `{"error":{"code":"too_large","field":"key","message":"the key has more than 1000 counters; limits.admin.list (limiter list --prefix KEY) lists them page by page"}}`},
		{engine.ErrClosed, "503", `{"error":{"code":"unavailable","message":"the worker is stopping; try again"}}`},
		{fmt.Errorf("%w: secret host", engine.ErrUnavailable), "503", `{"error":{"code":"unavailable","message":"the store is unavailable; try again soon"}}`},
		{fmt.Errorf("id %q: %w", "job-17", engine.ErrIDConflict), "409", `{"error":{"code":"id_conflict","field":"id","message":"id \"job-17\": the id was used with another request in the last 10 minutes; use a new id for each request"}}`},
		{&engine.FieldError{Field: "burst", Message: "bad"}, "400", `{"error":{"code":"invalid_burst","field":"burst","message":"bad"}}`},
		{errors.New("secret"), "503", `{"error":{"code":"unavailable","message":"the store is unavailable; try again soon"}}`},
		{fmt.Errorf("%w: %w", engine.ErrUnavailable, errFull), "503", `{"error":{"code":"unavailable","message":"the disk is full"}}`},
	} {
		for _, submitFails = range []bool{false, true} {
			now = c.err
			m := ask(t, nc, limits.SubjectConsume, hot)
			if string(m.Data) != c.want || m.Header.Get(micro.ErrorCodeHeader) != c.status {
				t.Errorf("%v (submit %v)\n got %s %s\nwant %s %s", c.err, submitFails, m.Header.Get(micro.ErrorCodeHeader), m.Data, c.status, c.want)
			}
		}
	}
}

// TestCursorsOfCountersAreAsLongAsTheirParts: a key, and the names of a policy and its limit.
func TestCursorsOfCountersAreAsLongAsTheirParts(t *testing.T) {
	t.Parallel()
	long := func(n int) string { return strings.Repeat("a", n) }
	longest := engine.CounterID{Key: long(limits.MaxKeyBytes), Name: engine.PolicyName(long(limits.MaxNameBytes), long(limits.MaxNameBytes))}
	for after, valid := range map[string]bool{
		"": true, longest.Key: true, cursor(longest): true, longest.Key + "a": false, cursor(longest) + "a": false,
		"a\x00": false, "a\nb\x00": false, "a\nb\nc": false, "a\n\x1f\x1f": false,
	} {
		body, err := json.Marshal(limits.ListRequest{After: after})
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeList(body)
		if (err == nil) != valid || valid && got.After != after {
			t.Errorf("%q: %q, %v", after, got.After, err)
		}
	}
}

func TestStatusListReset(t *testing.T) {
	e := &fakeEngine{submit: allowing, more: true, counters: []engine.Counter{{
		CounterID: engine.CounterID{Key: "a", Name: "1m"}, Spec: engine.Spec{Algorithm: "token_bucket", Limit: 10, Window: "1m", Burst: 5},
		Used: 4, Remaining: 11, ResetAt: 1704307200000}}}
	_, nc := serve(t, e)
	counter := `"name":"1m","algorithm":"token_bucket","limit":10,"window":"1m","burst":5,"used":4,"remaining":11,"reset":1704307200000}`
	bad := func(code, field, message string) string {
		return fmt.Sprintf(`{"error":{"code":%q,"field":%q,"message":%q}}`, code, field, message)
	}
	for _, c := range []struct{ subject, body, want string }{
		{limits.SubjectStatus, `{"key":"a"}`, `{"key":"a","counters":[{` + counter + `]}`},
		{limits.SubjectStatus, `{}`, bad("invalid_key", "key", "key is missing; give key, or policy or attributes")},
		{limits.SubjectStatus, `{"key":"a","policy":"p"}`, bad("mixed_forms", "key", "key asks for all counters of a key, and policy and attributes for the limits of a request; give one of them")},
		{limits.SubjectStatus, `{"policy":"p","cost":1}`, bad("unknown_field", "cost", `unknown field "cost"; want key, policy, attributes, tier`)},
		{limits.SubjectStatus, `{"key":""}`, bad("invalid_key", "key", "key is empty; want 1 to 256 bytes")},
		{limits.SubjectStatus, `{"keys":"a"}`, bad("unknown_field", "keys", `unknown field "keys"; want key, policy, attributes, tier`)},
		{limits.SubjectList, `{}`, `{"counters":[{"key":"a",` + counter + `],"next":"a\n1m"}`},
		{limits.SubjectList, ``, `{"counters":[{"key":"a",` + counter + `],"next":"a\n1m"}`},
		{limits.SubjectList, `{"max":0}`, bad("invalid_max", "max", "max 0 is out of range; want 1 to 1000")},
		{limits.SubjectList, `{"max":1001}`, bad("invalid_max", "max", "max 1001 is out of range; want 1 to 1000")},
		{limits.SubjectList, `{"after":"a\tb"}`, bad("invalid_after", "after", `after "a\tb" is not a valid cursor; want next from the previous page, or a key`)},
		{limits.SubjectList, `{"key":"a"}`, bad("unknown_field", "key", `unknown field "key"; want prefix, after, max`)},
		{limits.SubjectReset, `{"key":"a"}`, `{"reset":3}`},
		{limits.SubjectReset, `{"prefix":"a:","dryRun":true}`, `{"reset":3}`},
		{limits.SubjectReset, `{"prefix":"","all":true}`, `{"reset":3}`},
		{limits.SubjectReset, `{"all":true}`, `{"reset":3}`},
		{limits.SubjectReset, " \n", bad("invalid_key", "key", `key is missing; give key, or prefix, or "all":true for every key`)},
		{limits.SubjectReset, `{}`, bad("invalid_key", "key", `key is missing; give key, or prefix, or "all":true for every key`)},
		{limits.SubjectReset, `{"prefix":""}`, bad("invalid_prefix", "prefix", `an empty prefix selects every key; confirm with "all":true`)},
		{limits.SubjectReset, `{"prefix":"","all":false}`, bad("invalid_prefix", "prefix", `an empty prefix selects every key; confirm with "all":true`)},
		{limits.SubjectReset, `{"key":"a","prefix":"b"}`, bad("mixed_forms", "key", "key selects one key, prefix and all select many; give one of them")},
		{limits.SubjectReset, `{"prefix":"a","all":true}`, bad("mixed_forms", "all", "all selects every key and prefix only some; give one of them")},
		{limits.SubjectReset, `{"key":"a","dryRun":1}`, bad("invalid_dryRun", "dryRun", "dryRun must be true or false; got 1")},
	} {
		if m := ask(t, nc, c.subject, c.body); string(m.Data) != c.want {
			t.Errorf("%s %s\n got %s\nwant %s", c.subject, c.body, m.Data, c.want)
		}
	}
	for body, want := range map[string]engine.CounterID{
		`{}`: {}, `{"after":"a"}`: {Key: "a", Name: afterNames}, `{"after":"a\n1m"}`: {Key: "a", Name: "1m"},
	} {
		ask(t, nc, limits.SubjectList, body)
		if e.after != want {
			t.Errorf("%s starts behind %q", body, e.after)
		}
	}
	e.counters, e.more = nil, false
	if m := ask(t, nc, limits.SubjectStatus, `{"key":"nobody"}`); string(m.Data) != `{"key":"nobody","counters":[]}` {
		t.Errorf("%s", m.Data)
	}
}

// TestReadsAreBounded takes the last slot for status and for admin's reads. The next of each is
// refused at once.
func TestReadsAreBounded(t *testing.T) {
	e := &fakeEngine{submit: allowing, block: make(chan struct{}), entered: make(chan struct{}, 1)}
	s, nc := serve(t, e)
	for _, room := range []chan struct{}{s.storeSlots, s.statusSlots} {
		for range cap(room) - 1 {
			room <- struct{}{}
		}
	}
	answers := make(chan *nats.Msg, 2)
	for _, c := range []struct{ subject, body string }{{limits.SubjectStatus, `{"key":"a"}`}, {limits.SubjectList, `{}`}} {
		go func() {
			m, _ := nc.Request(c.subject, []byte(c.body), patience)
			answers <- m
		}()
		select {
		case <-e.entered:
		case m := <-answers:
			t.Fatalf("%s has no room beside the others: %s", c.subject, m.Data)
		}
		if m := ask(t, nc, c.subject, c.body); m.Header.Get(micro.ErrorCodeHeader) != "503" {
			t.Errorf("%s: %s", c.subject, m.Data)
		}
	}
	close(e.block)
	for range cap(answers) {
		if m := <-answers; m == nil || len(m.Header) != 0 {
			t.Errorf("%v", m)
		}
	}
}

// TestAnswersMatchTheirRequests holds a thousand requests and answers them out of order from
// several goroutines, while others are answered at once. Each answer has the key and cost of its
// request.
func TestAnswersMatchTheirRequests(t *testing.T) {
	held := make(chan *engine.Request, 1000)
	_, nc := serve(t, &fakeEngine{submit: func(r *engine.Request) error {
		if r.Cost%2 == 0 {
			return allowing(r)
		}
		held <- r
		return nil
	}})
	for range 4 {
		go func() {
			for r := range held {
				for more := true; more; { // the later ones first
					select {
					case later := <-held:
						_ = allowing(later)
					default:
						more = false
					}
				}
				_ = allowing(r)
			}
		}()
	}
	answers := make(chan *nats.Msg, 1000)
	inbox := nats.NewInbox()
	if _, err := nc.ChanSubscribe(inbox+".*", answers); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 1000; n++ {
		body := fmt.Sprintf(`{"key":"k%d","limit":1001,"window":"1m","cost":%d}`, n, n)
		if err := nc.PublishRequest(limits.SubjectConsume, fmt.Sprintf("%s.%d", inbox, n), []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		var r limits.Reply
		select {
		case m := <-answers:
			n := strings.TrimPrefix(m.Subject, inbox+".")
			if err := json.Unmarshal(m.Data, &r); err != nil || r.Key != "k"+n || fmt.Sprint(1001-r.Remaining) != n {
				t.Fatalf("request %s is answered %s", n, m.Data)
			}
		case <-time.After(patience):
			t.Fatal("an answer is missing")
		}
	}
	close(held)
}

// TestStopAnswersEverything stops under load: every request that reached the service is answered.
func TestStopAnswersEverything(t *testing.T) {
	held := make(chan *engine.Request, 1000)
	s, nc := serve(t, &fakeEngine{submit: func(r *engine.Request) error { held <- r; return nil }})
	inbox := nats.NewInbox()
	answers := make(chan *nats.Msg, 2000)
	if _, err := nc.ChanSubscribe(inbox, answers); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if err := nc.PublishRequest(limits.SubjectConsume, inbox, []byte(hot)); err != nil {
			t.Fatal(err)
		}
	}
	// The server has them all, and has sent them on.
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() {
		// The engine answers only when the stop has begun.
		for !s.current.Stopped() {
			runtime.Gosched()
		}
		for range 1000 {
			_ = allowing(<-held)
		}
	}()
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if n := s.pending.Load(); n != 0 {
		t.Errorf("%d in flight", n)
	}
	_ = nc.Flush()
	if len(answers) != 1000 {
		t.Errorf("%d of 1000 answered", len(answers))
	}
	if _, err := nc.Request(limits.SubjectConsume, []byte(hot), patience); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("after the stop: %v", err)
	}
	if err := s.Stop(ctx); err != nil {
		t.Errorf("second stop: %v", err)
	}
}

func TestStopReportsUnansweredRequests(t *testing.T) {
	s, nc := serve(t, &fakeEngine{submit: func(*engine.Request) error { return nil }})
	if err := nc.PublishRequest(limits.SubjectConsume, nats.NewInbox(), []byte(hot)); err != nil {
		t.Fatal(err)
	}
	_ = nc.Flush()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := s.Stop(ctx); err == nil || !strings.Contains(err.Error(), "1 answers") {
		t.Error(err)
	}
}

func TestMessageWithoutReplyIsIgnored(t *testing.T) {
	log, began := new(logBuffer), time.Now()
	e := &fakeEngine{submit: func(r *engine.Request) error { t.Error("submitted"); return nil }}
	s, nc := serve(t, e, func(c *ServiceConfig) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	answers, err := nc.SubscribeSync("alerts.mine")
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		_ = nc.PublishRequest(limits.SubjectConsume, answers.Subject, []byte(hot))
	}
	_ = nc.PublishRequest(limits.SubjectReset, answers.Subject, []byte(`{"prefix":"a"}`))
	_ = nc.Publish(limits.SubjectReset, []byte(`{"prefix":"a"}`))
	// A stop takes what came before it.
	_ = nc.Flush()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = nc.Flush()
	if n, _, _ := answers.Pending(); n != 0 || e.sel != (engine.Selection{}) {
		t.Errorf("%d answers, and %v was reset", n, e.sel)
	}
	// One line in 10 s, however many there are and however rarely they come.
	text := log.String()
	if n := strings.Count(text, "reply subject is missing or not allowed"); n < 1 || n > 1+int(time.Since(began)/logInterval) ||
		!strings.Contains(text, " subject="+limits.SubjectConsume+" reply=alerts.mine times=1\n") {
		t.Error(text)
	}
	if n := s.ignoredLog.unlogged; n < 1 && strings.Count(text, "\n") == 1 {
		t.Errorf("%d more are counted for the next line", n)
	}
}

// TestAnswersGoOnlyToInboxes: no caller can make the service publish to subjects of events or of
// the server.
func TestAnswersGoOnlyToInboxes(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]bool{"_INBOX.a.b": true, "": false, "$JS.API.STREAM.DELETE.LIMITS": false,
		limits.EventExceeded: false, limits.EventAlertRaised: false, limits.SubjectAlertsSilence: false,
		"_INBOX." + strings.Repeat("a", 1017): true, "_INBOX." + strings.Repeat("a", 1018): false} {
		if got := answerable(reply); got != want {
			t.Errorf("%q: %v", reply, got)
		}
	}
}

// TestInfo asks what `nats micro info` asks. Every schema that is named is a file.
func TestInfo(t *testing.T) {
	_, nc := serve(t, &fakeEngine{submit: allowing}, func(c *ServiceConfig) { c.SchemaBase = "http://h/schemas/" })
	var info micro.Info
	if err := json.Unmarshal(ask(t, nc, "$SRV.INFO.limits", "").Data, &info); err != nil {
		t.Fatal(err)
	}
	if info.Name != "limits" || info.Version != "1.2.3" || len(info.Endpoints) != 9 {
		t.Errorf("%+v", info)
	}
	urls := []string{info.Metadata["error-schema"], info.Metadata["asyncapi"]}
	for _, e := range info.Endpoints {
		if e.QueueGroup != limits.QueueGroup {
			t.Errorf("%s has queue group %s", e.Name, e.QueueGroup)
		}
		urls = append(urls, e.Metadata["request-schema"], e.Metadata["response-schema"], e.Metadata["error-schema"])
	}
	for _, u := range urls {
		name, ok := strings.CutPrefix(u, "http://h/schemas/")
		if _, err := schemas.FS.Open(name); !ok || err != nil {
			t.Errorf("schema %q: %v", u, err)
		}
	}
}

func TestSemver(t *testing.T) {
	for in, want := range map[string]string{"v1.2.3": "1.2.3", "dev": "0.0.0", "": "0.0.0", "1.2.3-rc.1+x": "1.2.3-rc.1+x"} {
		if got := semver(in); got != want {
			t.Errorf("%q is %q", in, got)
		}
	}
}

// TestOversizedReadAnswerIsAnError: the caller gets an error instead of silence.
func TestOversizedReadAnswerIsAnError(t *testing.T) {
	many := make([]engine.Counter, 20_000)
	for i := range many {
		many[i] = engine.Counter{CounterID: engine.CounterID{Key: "k", Name: fmt.Sprint("name:", i)},
			Spec: engine.Spec{Algorithm: "fixed_window", Limit: 1, Window: "1h"}, Used: 1, ResetAt: 1704307200000}
	}
	s, nc := serve(t, &fakeEngine{submit: allowing, counters: many})
	m := ask(t, nc, limits.SubjectStatus, `{"key":"k"}`)
	if !strings.Contains(string(m.Data), `"too_large"`) || s.lostAnswers.Load() != 0 {
		t.Errorf("%d bytes: %.200s; %d lost", len(m.Data), m.Data, s.lostAnswers.Load())
	}
}

// TestOversizedDecisionAnswerIsAnError: the request was charged, and after silence it would be sent
// again.
func TestOversizedDecisionAnswerIsAnError(t *testing.T) {
	t.Parallel()
	_, nc := serve(t, &fakeEngine{submit: func(r *engine.Request) error {
		r.Done(engine.Decision{Results: []engine.Result{{Key: strings.Repeat("k", 1<<20), Name: "1m"}}}, nil)
		return nil
	}})
	m := ask(t, nc, limits.SubjectConsume, hot)
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "413" || !strings.Contains(string(m.Data), `"too_large"`) {
		t.Errorf("%s %.300s", code, m.Data)
	}
}
