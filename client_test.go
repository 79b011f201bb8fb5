package limits_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// serveNATS starts a NATS server for this test.
func serveNATS(t testing.TB, port int) *server.Server {
	t.Helper()
	return testenv.NATS(t, func(o *server.Options) { o.Port, o.JetStream = port, false })
}

// connect starts a NATS server for this test and connects to it.
func connect(t testing.TB) *nats.Conn {
	t.Helper()
	return testenv.Connect(t, serveNATS(t, server.RANDOM_PORT).ClientURL())
}

// patient returns a client whose calls wait for an answer for as long as a busy machine may take.
func patient(nc *nats.Conn) *limits.Client { return limits.NewClient(nc, limits.Timeout(time.Minute)) }

// answer answers every request on subject with what the handler returns.
func answer(t testing.TB, nc *nats.Conn, subject string, handler func(request string) *nats.Msg) {
	t.Helper()
	_, err := nc.Subscribe(subject, func(m *nats.Msg) { _ = m.RespondMsg(handler(string(m.Data))) })
	if err != nil {
		t.Fatal(err)
	}
}

func body(json string) *nats.Msg { return &nats.Msg{Data: []byte(json)} }

func failure(status, description, body string) *nats.Msg {
	return &nats.Msg{Data: []byte(body), Header: nats.Header{
		"Nats-Service-Error-Code": {status}, "Nats-Service-Error": {description},
	}}
}

func TestClientVerbs(t *testing.T) {
	nc := connect(t)
	c := patient(nc)
	type verb = func(context.Context, limits.Request) (*limits.Reply, error)
	verbs := map[string]verb{
		limits.SubjectConsume: c.Consume, limits.SubjectCheck: c.Check,
		limits.SubjectRecord: c.Record, limits.SubjectRefund: c.Refund,
	}
	request := limits.Per("api:user:123", 100, "1m")
	request.Cost = 3
	for subject, verb := range verbs {
		var got string
		answer(t, nc, subject, func(r string) *nats.Msg {
			got = r
			return body(`{"allowed":true,"key":"api:user:123","name":"1m","limit":100,"remaining":97,"reset":1704307200000}`)
		})
		reply, err := verb(t.Context(), request)
		if err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		want := &limits.Reply{Allowed: true, Key: "api:user:123", Name: "1m", Limit: 100, Remaining: 97, Reset: 1704307200000}
		if d := cmp.Diff(want, reply); d != "" {
			t.Errorf("%s: %s", subject, d)
		}
		if want := `{"key":"api:user:123","limit":100,"window":"1m","cost":3}`; got != want {
			t.Errorf("%s: sent %s, want %s", subject, got, want)
		}
	}
}

// TestClientRejectsInvalidUTF8: invalid UTF-8 must not be replaced, since that could turn it into
// the key of another user.
func TestClientRejectsInvalidUTF8(t *testing.T) {
	nc := connect(t)
	c := patient(nc)
	answer(t, nc, limits.SubjectConsume, func(string) *nats.Msg { return body(`{"allowed":true}`) })
	for _, key := range []string{"M\xfcller", "\xff", `\` + "\xff", "a\xc3", "\ufffd\xff", `\ufffd` + "\xff"} {
		for name, r := range map[string]limits.Request{
			"key": limits.Per(key, 1, "1m"), "attribute": {Attributes: map[string]string{"user": key}},
		} {
			_, err := c.Consume(t.Context(), r)
			if e, ok := errors.AsType[*limits.Error](err); !ok || e.Status != 400 {
				t.Errorf("%q as %s: %v, want 400", key, name, err)
			}
		}
		err := c.LogRequest(limits.LogEntry{Key: key, Endpoint: "/", Method: "GET", Status: 200})
		if e, ok := errors.AsType[*limits.Error](err); !ok || e.Status != 400 {
			t.Errorf("%q in the log: %v, want 400", key, err)
		}
	}
	for _, key := range []string{"Müller", "\ufffd", `\ufffd`, `\\ufffd`, `\\\ufffd`, "\u2028", "<\\>"} {
		if _, err := c.Consume(t.Context(), limits.Per(key, 1, "1m")); err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
}

func TestReplyTimes(t *testing.T) {
	for _, millis := range []int64{9_223_372_036_855, 17_280_000_000_000, math.MaxInt64} {
		long := limits.Reply{RetryAfter: millis}
		if got := long.RetryIn(); got != 100*365*24*time.Hour {
			t.Errorf("RetryIn of %d ms = %v", millis, got)
		}
	}
	r := limits.Reply{Reset: 1704307200123, RetryAfter: 23_000}
	if got := r.RetryIn(); got != 23*time.Second {
		t.Errorf("RetryIn = %v", got)
	}
	if got := r.ResetTime().UTC().Format(time.RFC3339Nano); got != "2024-01-03T18:40:00.123Z" {
		t.Errorf("ResetTime = %v", got)
	}
}

// TestUnlimitedReply: a reply without limits has 0 in all its amounts, as one with nothing left has in Remaining.
func TestUnlimitedReply(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]bool{
		`{"allowed":true,"limit":0,"remaining":0,"reset":0,"limits":[]}`:                 true,
		`{"allowed":true,"limit":0,"remaining":0,"reset":0}`:                             true,
		`{"allowed":true,"key":"k","name":"1m","limit":5,"remaining":0,"reset":9}`:       false,
		`{"allowed":true,"limit":0,"remaining":0,"reset":0,"degraded":true}`:             false,
		`{"allowed":false,"limit":0,"remaining":0,"reset":0,"message":"no","limits":[]}`: false,
	} {
		var r limits.Reply
		if err := json.Unmarshal([]byte(body), &r); err != nil || r.Unlimited() != want {
			t.Errorf("%s: %t, %v", body, r.Unlimited(), err)
		}
		if again, err := json.Marshal(r); err != nil || string(again) != body {
			t.Errorf("read and written again: %s, %v\nwant %s", again, err, body)
		}
	}
}

func TestClientErrors(t *testing.T) {
	nc := connect(t)
	tests := []struct {
		name   string
		answer *nats.Msg
		want   limits.Error
	}{
		{"body", failure("400", "bad window", `{"error":{"code":"invalid_window","field":"window","message":"no"}}`),
			limits.Error{Code: "invalid_window", Field: "window", Message: "no", Status: 400}},
		{"temporary", failure("503", "busy", `{"error":{"code":"overloaded","message":"the queue is full"}}`),
			limits.Error{Code: limits.CodeOverloaded, Message: "the queue is full", Status: 503}},
		{"header only", failure("500", "handler fell over", ""),
			limits.Error{Code: "error", Message: "handler fell over", Status: 500}},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			subject := fmt.Sprintf("test.%d", i)
			answer(t, nc, subject, func(string) *nats.Msg { return tt.answer })
			raw, err := patient(nc).Do(t.Context(), subject, nil)
			e, ok := errors.AsType[*limits.Error](err)
			if !ok {
				t.Fatalf("got %v, want an *Error", err)
			}
			if d := cmp.Diff(tt.want, *e); d != "" {
				t.Error(d)
			}
			if string(raw) != string(tt.answer.Data) {
				t.Errorf("body %s, want %s", raw, tt.answer.Data)
			}
			if e.Temporary() != (tt.want.Status == 503) {
				t.Errorf("Temporary = %v for status %d", e.Temporary(), e.Status)
			}
		})
	}
}

func TestAnswerOfBlanksIsAnError(t *testing.T) {
	t.Parallel()
	nc := connect(t)
	answer(t, nc, limits.SubjectStatus, func(string) *nats.Msg { return body(strings.Repeat(" ", 1<<20)) })
	if _, err := patient(nc).Status(t.Context(), "k"); err == nil {
		t.Error("an answer of blanks was read")
	}
}

// TestAnswerWithoutDecisionIsNotDenial: another service may listen on the subjects of a limiter.
func TestAnswerWithoutDecisionIsNotDenial(t *testing.T) {
	t.Parallel()
	request := limits.Per("k", 1, "1m")
	for name, a := range map[string]struct {
		answer *nats.Msg
		want   string
	}{
		"no JSON":             {body(`allowed`), "read answer"},
		"null":                {body(`null`), "read answer"},
		"empty":               {body(`{}`), "read answer"},
		"something else":      {body(`{"ok":true}`), "read answer"},
		"null in it":          {body(`{"allowed":null,"valid":null}`), "read answer"},
		"a key alone":         {body(`{"valid":true,"key":{"id":"a"}}`), "read answer"},
		"no key":              {body(`{"valid":true,"decision":{"allowed":true}}`), "read answer"},
		"no decision of it":   {body(`{"valid":true,"key":{"id":"a"},"decision":{"remaining":1}}`), "read answer"},
		"an error, unread":    {failure("", "", `{"error":{"code":"overloaded","message":"full"}}`), "full"},
		"an error with words": {&nats.Msg{Header: nats.Header{"Nats-Service-Error": {"fell over"}}}, "fell over"},
		"an error with body":  {failure("", "", `{"allowed":true,"valid":true}`), "(0 error)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nc := connect(t)
			answer(t, nc, "limits.*", func(string) *nats.Msg { return a.answer })
			c := patient(nc)
			for verb, ask := range map[string]func(context.Context) (any, error){
				"consume": func(ctx context.Context) (any, error) { return c.Consume(ctx, request) },
				"check":   func(ctx context.Context) (any, error) { return c.Check(ctx, request) },
				"record":  func(ctx context.Context) (any, error) { return c.Record(ctx, request) },
				"refund":  func(ctx context.Context) (any, error) { return c.Refund(ctx, request) },
				"settle":  func(ctx context.Context) (any, error) { return c.Settle(ctx, "id", 1) },
				"wait":    func(ctx context.Context) (any, error) { return c.Wait(ctx, request) },
				"verify":  func(ctx context.Context) (any, error) { return c.VerifyKey(ctx, limits.VerifyRequest{APIKey: "x"}) },
			} {
				if reply, err := ask(t.Context()); err == nil || errors.Is(err, limits.ErrNeverFits) || !strings.Contains(err.Error(), a.want) {
					t.Errorf("%s: %+v, %v; want an error that says %q", verb, reply, err, a.want)
				}
			}
		})
	}
}

func TestClientWithoutLimiter(t *testing.T) {
	nc := connect(t)
	_, err := patient(nc).Consume(t.Context(), limits.Per("k", 1, "1m"))
	var e *limits.Error
	if !errors.As(err, &e) || e.Status != 503 || e.Code != limits.CodeUnavailable || !e.Temporary() {
		t.Fatalf("got %v, want 503 unavailable", err)
	}
	if !strings.Contains(e.Message, "no limiter is listening on this NATS server") {
		t.Errorf("message %q", e.Message)
	}
	for _, subject := range []string{limits.SubjectAlertsList, limits.SubjectJobsRun} { // limiters may listen, and do not answer these
		if _, err := patient(nc).Do(t.Context(), subject, []byte("{}")); !errors.As(err, &e) || !strings.Contains(e.Message, "no alerter is listening") {
			t.Errorf("%s: %v", subject, err)
		}
	}
	nc.Close()
	if _, err := limits.NewClient(nc).Status(t.Context(), "k"); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("closed connection: %v", err)
	}
}

// TestRequestOverMaxPayloadIsTooLarge: if NATS takes smaller messages than a request may be, the
// error must not look like an absent limiter, since callers let requests pass then.
func TestRequestOverMaxPayloadIsTooLarge(t *testing.T) {
	t.Parallel()
	nc := testenv.Connect(t, testenv.NATSConfig(t, "max_payload: 1024").ClientURL())
	c, long := patient(nc), strings.Repeat("k", 1024)
	_, consumed := c.Consume(t.Context(), limits.Per(long, 1, "1m"))
	_, recorded := c.Record(t.Context(), limits.Per(long, 1, "1m"))
	for name, err := range map[string]error{"consume": consumed, "record": recorded,
		"log": c.LogRequest(limits.LogEntry{Key: strings.Repeat("<", 256), Endpoint: "/", Method: "GET", Status: 200})} { // six bytes each
		if e, ok := errors.AsType[*limits.Error](err); !ok || e.Status != 413 || e.Code != limits.CodeTooLarge {
			t.Errorf("%s: %v, want 413 too_large", name, err)
		}
	}
}

func TestClientTimeouts(t *testing.T) {
	nc := connect(t)
	if _, err := nc.Subscribe(limits.SubjectConsume, func(*nats.Msg) {}); err != nil { // gets requests, and never answers
		t.Fatal(err)
	}
	request := limits.Per("k", 1, "1m")
	answer(t, nc, limits.SubjectCheck, func(string) *nats.Msg { return body(`{"allowed":true}`) })
	if _, err := limits.NewClient(nc, limits.Timeout(0)).Check(t.Context(), request); err != nil {
		t.Errorf("timeout 0: %v, want that of those who say none", err)
	}
	_, err := limits.NewClient(nc, limits.Timeout(20*time.Millisecond)).Consume(t.Context(), request)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("own timeout: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := limits.NewClient(nc).Consume(ctx, request); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline of the context: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := limits.NewClient(nc).Consume(ctx, request); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled context: %v", err)
	}
}

// While the connection is interrupted, no decision is requested, since it would come too late and be charged nevertheless.
// Reports of what has happened are sent when the connection is back.
func TestNoDecisionIsRequestedWhileDisconnected(t *testing.T) {
	s := serveNATS(t, server.RANDOM_PORT)
	lost, back := make(chan struct{}, 1), make(chan struct{}, 1)
	nc := testenv.Connect(t, s.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { lost <- struct{}{} }),
		nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
	// The limiter uses the same connection, so it listens again before the buffered requests are sent.
	asked := make(chan string, 100)
	for _, subject := range []string{limits.SubjectConsume, limits.SubjectCheck, limits.SubjectRecord, limits.SubjectVerify} {
		answer(t, nc, subject, func(string) *nats.Msg {
			asked <- subject
			return body(`{"allowed":true}`)
		})
	}
	port := s.Addr().(*net.TCPAddr).Port
	s.Shutdown()
	<-lost

	c := patient(nc)
	for name, decide := range map[string]func(context.Context) error{
		"consume": func(ctx context.Context) error { _, err := c.Consume(ctx, limits.Per("k", 1, "1m")); return err },
		"check":   func(ctx context.Context) error { _, err := c.Check(ctx, limits.Per("k", 1, "1m")); return err },
		"verify": func(ctx context.Context) error {
			_, err := c.VerifyKey(ctx, limits.VerifyRequest{APIKey: "a"})
			return err
		},
		"wait": func(ctx context.Context) error { _, err := c.Wait(ctx, limits.Per("k", 1, "1m")); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := decide(ctx); !errors.Is(err, nats.ErrDisconnected) || ctx.Err() != nil {
			t.Errorf("%s: %v, the context %v; want nats.ErrDisconnected at once", name, err, ctx.Err())
		}
		cancel()
	}
	for timeout, kept := 20*time.Millisecond, 0; kept == 0; timeout *= 2 { // a busy machine may be too late to keep it
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		if _, err := c.Record(ctx, limits.Per("k", 1, "1m")); !errors.Is(err, context.DeadlineExceeded) || timeout > time.Minute {
			t.Fatalf("record: %v, within %s", err, timeout)
		}
		cancel()
		kept, _ = nc.Buffered()
	}

	serveNATS(t, port)
	<-back
	if _, err := c.Consume(t.Context(), limits.Per("k", 1, "1m")); err != nil {
		t.Error(err)
	}
	both := []string{<-asked, <-asked} // in either order: each subject has a goroutine of its own
	slices.Sort(both)
	if want := []string{limits.SubjectConsume, limits.SubjectRecord}; !slices.Equal(both, want) {
		t.Errorf("asked %q, want %q", both, want)
	}
	if len(asked) != 0 {
		t.Errorf("asked %s besides", <-asked)
	}
}

func TestAllReadsPages(t *testing.T) {
	nc := connect(t)
	c := patient(nc)
	var asked []string
	answer(t, nc, limits.SubjectList, func(r string) *nats.Msg {
		asked = append(asked, r)
		if strings.Contains(r, "after") {
			return body(`{"counters":[{"key":"api:3"}]}`)
		}
		return body(`{"counters":[{"key":"api:1"},{"key":"api:2"}],"next":"page2"}`)
	})
	var keys []string
	for counter, err := range c.All(t.Context(), "api:") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, counter.Key)
	}
	if got := strings.Join(keys, " "); got != "api:1 api:2 api:3" {
		t.Errorf("keys %s", got)
	}
	want := []string{`{"prefix":"api:","max":1000}`, `{"prefix":"api:","after":"page2","max":1000}`}
	if d := cmp.Diff(want, asked); d != "" {
		t.Error(d)
	}
}

// A page that NATS does not take in one message is requested again, with half the size.
func TestAllHalvesPagesThatAreTooLarge(t *testing.T) {
	nc := connect(t)
	var asked []string
	answer(t, nc, limits.SubjectList, func(r string) *nats.Msg {
		if asked = append(asked, r); len(asked) < 3 {
			return failure("413", "", `{"error":{"code":"too_large"}}`)
		}
		return body(`{"counters":[{"key":"api:1"}]}`)
	})
	n := 0
	for _, err := range patient(nc).All(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if d := cmp.Diff([]string{`{"max":1000}`, `{"max":500}`, `{"max":250}`}, asked); n != 1 || d != "" {
		t.Errorf("%d counters %s", n, d)
	}
}

// So is a page that is larger than the client accepts.
func TestAnswerOverReadLimitIsTooLarge(t *testing.T) {
	nc := testenv.Connect(t, testenv.NATSConfig(t, "max_payload: 4MB").ClientURL())
	answer(t, nc, limits.SubjectKeysList, func(string) *nats.Msg { return body(strings.Repeat(" ", 1<<20+1)) })
	_, err := patient(nc).ListKeys(t.Context(), limits.ListKeysRequest{})
	if e, ok := errors.AsType[*limits.Error](err); !ok || e.Code != limits.CodeTooLarge || e.Status != 413 {
		t.Error(err)
	}
}

func TestAllEndsWithAnError(t *testing.T) {
	nc := connect(t)
	answer(t, nc, limits.SubjectList, func(string) *nats.Msg {
		return failure("503", "", `{"error":{"code":"unavailable","message":"no store"}}`)
	})
	n := 0
	for _, err := range patient(nc).All(t.Context(), "") {
		if err == nil {
			t.Error("no error")
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d turns, want 1", n)
	}
}

// BenchmarkConsume measures Consume with one caller and with many, against a limiter in the same process.
func BenchmarkConsume(b *testing.B) {
	nc, err := nats.Connect(natsURL)
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	c := patient(nc)
	request := limits.Per("benchmark:consume", limits.MaxAmount, "1h")
	request.Consistency = "leased"
	consume := func() {
		if _, err := c.Consume(b.Context(), request); err != nil {
			b.Error(err)
		}
	}
	b.Run("one", func(b *testing.B) {
		for b.Loop() {
			consume()
		}
	})
	b.Run("many", func(b *testing.B) {
		b.SetParallelism(32)
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				consume()
			}
		})
	})
}
