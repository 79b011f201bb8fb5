package bus

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var _ Decider = (*engine.Engine)(nil)

// fakeEngine answers what the test says.
type fakeEngine struct {
	submit   func(r *engine.Request) error
	tooLate  func(received time.Time) bool // nil for never
	forget   func(engine.Forget)           // nil for nothing
	counters []engine.Counter
	more     bool
	err      error
	// block, when set, holds reads up until it is closed; entered tells of each.
	block, entered chan struct{}

	mu    sync.Mutex
	after engine.CounterID
	max   int
	sel   engine.Selection
	dry   bool
}

// allowing answers every request with one unit used.
func allowing(r *engine.Request) error {
	d := engine.Decision{Allowed: true}
	for _, l := range r.Limits {
		d.Results = append(d.Results, engine.Result{
			Key: l.Key, Name: l.Name, Window: l.Window.String(), Algorithm: l.Algorithm, Limit: l.Limit, Burst: l.Burst,
			Allowed: true, Used: r.Cost, Remaining: l.Limit - r.Cost, ResetAt: 1704307200000,
		})
	}
	r.Done(d, nil)
	return nil
}

func (f *fakeEngine) Submit(r *engine.Request) error { return f.submit(r) }

func (f *fakeEngine) TooLate(received time.Time) bool { return f.tooLate != nil && f.tooLate(received) }

func (f *fakeEngine) Forget(what engine.Forget) {
	if f.forget != nil {
		f.forget(what)
	}
}

func (f *fakeEngine) wait(ctx context.Context) error {
	if f.block == nil {
		return f.err
	}
	f.entered <- struct{}{}
	select {
	case <-f.block:
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fakeEngine) Status(ctx context.Context, _ string) ([]engine.Counter, error) {
	return f.counters, f.wait(ctx)
}

func (f *fakeEngine) StatusOf(ctx context.Context, _ []engine.Limit) ([]engine.Counter, error) {
	return f.counters, f.wait(ctx)
}

func (f *fakeEngine) List(ctx context.Context, _ string, after engine.CounterID, max int) ([]engine.Counter, bool, error) {
	f.mu.Lock()
	f.after, f.max = after, max
	f.mu.Unlock()
	return f.counters, f.more, f.wait(ctx)
}

func (f *fakeEngine) Reset(ctx context.Context, sel engine.Selection, dryRun bool) (int64, error) {
	f.mu.Lock()
	f.sel, f.dry = sel, dryRun
	f.mu.Unlock()
	return 3, f.wait(ctx)
}

// patience bounds every wait. It is far more than anything takes on a busy machine.
const patience = 30 * time.Second

// waitFor waits until holds returns true; what names the condition.
func waitFor(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("after %s it is not so that %s", patience, what)
		}
	}
}

// dial connects a plain client.
func dial(tb testing.TB, url string) *nats.Conn {
	tb.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	return nc
}

// connect connects as a worker does.
func connect(tb testing.TB, url string) *nats.Conn {
	tb.Helper()
	nc, err := Connect(tb.Context(), ConnectConfig{URL: url, Name: "service", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	return nc
}

// serve starts a service over the engine, and returns it with a plain client.
func serve(tb testing.TB, e Decider, change ...func(*ServiceConfig)) (*Service, *nats.Conn) {
	tb.Helper()
	url := testenv.NATS(tb).ClientURL()
	cfg := ServiceConfig{Conn: connect(tb, url), Engine: e, Version: "1.2.3", WarningThreshold: 0.1,
		Logger: slog.New(slog.DiscardHandler), storeTimeout: patience, scanTimeout: patience}
	for _, f := range change {
		f(&cfg)
	}
	s, err := NewService(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return s, dial(tb, url)
}

// ask sends a request as any client would. Each error has the status that belongs to its code.
func ask(tb testing.TB, nc *nats.Conn, subject, body string) *nats.Msg {
	tb.Helper()
	return asked(tb, nc, &nats.Msg{Subject: subject, Data: []byte(body)})
}

func asked(tb testing.TB, nc *nats.Conn, request *nats.Msg) *nats.Msg {
	tb.Helper()
	m, err := nc.RequestMsg(request, patience)
	if err != nil {
		tb.Fatalf("%s %s: %v", request.Subject, request.Data, err)
	}
	var failed limits.ErrorBody
	if status := m.Header.Get(micro.ErrorCodeHeader); status != "" {
		if err := json.Unmarshal(m.Data, &failed); err != nil || failed.Error == nil || status != statusOf(failed.Error.Code) {
			tb.Errorf("%s %s: %s with status %s", request.Subject, request.Data, m.Data, status)
		}
	}
	return m
}

// statusOf is the status that belongs to the code of an error.
func statusOf(code string) string {
	switch code {
	case "unknown_field", "mixed_forms", "missing_form", "duplicate_limit":
		return "400"
	case limits.CodeIDConflict, limits.CodeNothingToSettle, limits.CodeJobRunning, limits.CodeTooManyOverrides, limits.CodeTooManySilences:
		return "409"
	case limits.CodeTooLarge, limits.CodeTooManyLimits:
		return "413"
	case limits.CodeOverloaded, limits.CodeUnavailable:
		return "503"
	}
	if strings.HasPrefix(code, "unknown_") {
		return "404"
	}
	return "400"
}
