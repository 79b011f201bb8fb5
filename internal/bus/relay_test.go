package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

// fakeOutbox keeps events in memory.
type fakeOutbox struct {
	mu     sync.Mutex
	events []engine.Event
	// failures is how many passes lose their acknowledgements, as a worker that dies does.
	failures int
	refused  []string
}

func (o *fakeOutbox) add(events ...engine.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, events...)
}

func (o *fakeOutbox) Relay(ctx context.Context, max int, publish func(context.Context, []engine.Event) ([]string, error)) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.events) == 0 {
		return 0, nil
	}
	acked, err := publish(ctx, o.events[:min(max, len(o.events))])
	if o.failures > 0 {
		o.failures--
		return 0, errors.New("commit: connection lost")
	}
	before := len(o.events)
	o.events = slices.DeleteFunc(o.events, func(e engine.Event) bool { return slices.Contains(acked, e.ID) })
	return before - len(o.events), err
}

func (o *fakeOutbox) RefuseEvents(_ context.Context, ids []string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refused = append(o.refused, ids...)
	return nil
}

// noted returns the events that were marked as refused, each once, in order.
func (o *fakeOutbox) noted() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(slices.Values(o.refused))
}

func (o *fakeOutbox) backlog() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.events)
}

func exceeded(n int) engine.Event {
	return engine.Event{ID: fmt.Sprintf("id-%d", n), Type: engine.EventExceeded, Time: 1704307200123, Key: "api:user:7", Name: "1m",
		Limit: 100, Window: "1m", ResetAt: 1704307260000, RetryAfter: 2000, Denied: 41, User: "7"}
}

func warning(n int) engine.Event {
	return engine.Event{ID: fmt.Sprintf("id-%d", n), Type: engine.EventWarning, Time: 1704307200123, Key: "api:user:7", Name: "1m",
		Limit: 100, Window: "1m", Remaining: 9, Threshold: 10, ResetAt: 1704307260000, User: "7"}
}

// eventMsg is an event as the relay publishes it.
func eventMsg(t testing.TB, e *engine.Event) *nats.Msg {
	t.Helper()
	forms, err := newEventTemplates(Origin{"urn:test", "http://h/schemas"})
	if err != nil {
		t.Fatal(err)
	}
	m, err := forms.message(e)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// runRelay runs a relay until the test ends, or until stop.
func runRelay(t *testing.T, cfg RelayConfig) (r *Relay, stop func()) {
	t.Helper()
	cfg.Origin = Origin{"https://limits.example.com", "http://h/schemas"}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r, err := NewRelay(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return r, stop
}

// stored waits for n messages in the stream.
func stored(t *testing.T, nc *nats.Conn, n int) []jetstream.Msg {
	t.Helper()
	js := testenv.JetStream(t, nc)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var c jetstream.Consumer
	for err := error(nil); c == nil; {
		c, err = js.OrderedConsumer(ctx, limits.EventStream, jetstream.OrderedConsumerConfig{})
		if err != nil && sleep(ctx, 20*time.Millisecond) != nil {
			t.Fatal(err)
		}
	}
	var msgs []jetstream.Msg
	for len(msgs) < n {
		m, err := c.Next(jetstream.FetchContext(ctx))
		if err != nil {
			t.Fatalf("%d of %d events: %v", len(msgs), n, err)
		}
		msgs = append(msgs, m)
	}
	return msgs
}

func TestEventsAreCloudEvents(t *testing.T) {
	nc := dial(t, testenv.NATS(t).ClientURL())
	box := &fakeOutbox{}
	box.add(exceeded(1), warning(2))
	runRelay(t, RelayConfig{Conn: nc, Outbox: box})
	msgs := stored(t, nc, 2)
	for i, want := range []string{
		`{"specversion":"1.0","id":"id-1","source":"https://limits.example.com","type":"limits.exceeded","subject":"api:user:7",` +
			`"datacontenttype":"application/json","dataschema":"http://h/schemas/events/limits.exceeded.v1.json",` +
			`"time":"2024-01-03T18:40:00.123Z","data":{"key":"api:user:7","name":"1m","limit":100,"window":"1m",` +
			`"reset":1704307260000,"retryAfter":2000,"denied":41,"user":"7"},"sampledrate":41}`,
		`{"specversion":"1.0","id":"id-2","source":"https://limits.example.com","type":"limits.warning","subject":"api:user:7",` +
			`"datacontenttype":"application/json","dataschema":"http://h/schemas/events/limits.warning.v1.json",` +
			`"time":"2024-01-03T18:40:00.123Z","data":{"key":"api:user:7","name":"1m","limit":100,"window":"1m",` +
			`"remaining":9,"threshold":10,"reset":1704307260000,"user":"7"}}`,
	} {
		m := msgs[i]
		if string(m.Data()) != want {
			t.Errorf("\n got %s\nwant %s", m.Data(), want)
		}
		var ce event.Event
		if err := ce.UnmarshalJSON(m.Data()); err != nil || ce.Validate() != nil || m.Subject() != ce.Type() ||
			m.Headers().Get("Content-Type") != "application/cloudevents+json" || m.Headers().Get("Nats-Msg-Id") != ce.ID() {
			t.Errorf("%v %s %v", err, m.Subject(), m.Headers())
		}
	}
}

// TestRepeatedEventsAreDeduplicated loses the commit after a publish.
func TestRepeatedEventsAreDeduplicated(t *testing.T) {
	nc := dial(t, testenv.NATS(t).ClientURL())
	box := &fakeOutbox{failures: 2}
	box.add(exceeded(1), exceeded(2), exceeded(3))
	runRelay(t, RelayConfig{Conn: nc, Outbox: box, batch: 2})
	msgs := stored(t, nc, 3)
	for i, m := range msgs {
		if m.Headers().Get("Nats-Msg-Id") != fmt.Sprintf("id-%d", i+1) {
			t.Errorf("%d is %s", i, m.Headers().Get("Nats-Msg-Id"))
		}
	}
	drained(t, box)
	js, _ := jetstream.New(nc)
	s, err := js.Stream(t.Context(), limits.EventStream)
	if err != nil || s.CachedInfo().State.Msgs != 3 {
		t.Errorf("%v %+v", err, s.CachedInfo().State)
	}
}

// drained waits until the outbox is empty.
func drained(t *testing.T, box *fakeOutbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		n := box.backlog()
		if n == 0 {
			return
		}
		if sleep(ctx, 5*time.Millisecond) != nil {
			t.Fatalf("%d events are left", n)
		}
	}
}

func TestWakeDoesNotWaitForPoll(t *testing.T) {
	nc := dial(t, testenv.NATS(t).ClientURL())
	box := &fakeOutbox{}
	r, _ := runRelay(t, RelayConfig{Conn: nc, Outbox: box, poll: time.Hour})
	for n := range 3 {
		box.add(exceeded(n))
		r.Wake()
		drained(t, box)
	}
}

func TestStopDrainsTheOutbox(t *testing.T) {
	nc := dial(t, testenv.NATS(t).ClientURL())
	box := &fakeOutbox{}
	_, stop := runRelay(t, RelayConfig{Conn: nc, Outbox: box, poll: time.Hour, batch: 10})
	for n := range 35 {
		box.add(exceeded(n))
	}
	stop()
	if n := box.backlog(); n != 0 {
		t.Errorf("%d events are left", n)
	}
}

// TestEventsSurviveAKilledServer kills NATS in the middle. Nothing is lost, and all events arrive
// soon after.
func TestEventsSurviveAKilledServer(t *testing.T) {
	server := testenv.NATSServer(t)
	nc, err := Connect(t.Context(), ConnectConfig{URL: server.URL, Name: "relay", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	box := &fakeOutbox{}
	logged := &countingHandler{}
	r, stop := runRelay(t, RelayConfig{Conn: nc, Outbox: box, Logger: slog.New(logged)})
	for n := range 100 {
		box.add(exceeded(n))
		r.Wake()
	}
	drained(t, box)
	server.Kill()
	for n := range 100 {
		box.add(exceeded(100 + n))
		r.Wake()
	}
	server.Start()
	back := time.Now()
	drained(t, box)
	if took := time.Since(back); took > 5*time.Second {
		t.Errorf("back after %s", took)
	}
	seen := map[string]bool{}
	for _, m := range stored(t, nc, 200) {
		seen[m.Headers().Get("Nats-Msg-Id")] = true
	}
	if len(seen) != 200 {
		t.Errorf("%d different events of 200", len(seen))
	}
	stop()
	if n := logged.errors(); n > 1 {
		t.Errorf("one failure was logged %d times", n)
	}
}

// countingHandler counts errors.
type countingHandler struct {
	slog.Handler
	mu sync.Mutex
	n  int
}

func (h *countingHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h *countingHandler) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h *countingHandler) WithGroup(string) slog.Handler            { return h }

func (h *countingHandler) Handle(_ context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Level >= slog.LevelError {
		h.n++
	}
	return nil
}

func (h *countingHandler) errors() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

func TestRelayConfigIsChecked(t *testing.T) {
	good := RelayConfig{Conn: &nats.Conn{}, Outbox: &fakeOutbox{}, Logger: slog.Default(), Origin: Origin{"urn:x", "http://h"}}
	for field, change := range map[string]func(*RelayConfig){
		"Conn": func(c *RelayConfig) { c.Conn = nil }, "Outbox": func(c *RelayConfig) { c.Outbox = nil },
		"source": func(c *RelayConfig) { c.Source = "" }, "schema base": func(c *RelayConfig) { c.SchemaBase = "/schemas" },
	} {
		cfg := good
		change(&cfg)
		if _, err := NewRelay(cfg); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestOversizedEventsDoNotBlockOthers publishes more of them than fit in a batch, and then makes
// room for them.
func TestOversizedEventsDoNotBlockOthers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		server, stream int32
		mend           string
	}{
		"max_msg_size of the stream": {1 << 20, 1000, "nats stream edit LIMITS --max-msg-size"},
		"max_payload of the server":  {1000, -1, "raise max_payload"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nc := dial(t, testenv.NATS(t, func(o *natsserver.Options) { o.MaxPayload = c.server }).ClientURL())
			js := testenv.JetStream(t, nc)
			cfg := eventStream()
			cfg.MaxMsgSize = c.stream
			made(t, func() error {
				_, err := js.CreateStream(t.Context(), cfg)
				return err
			})
			box := &fakeOutbox{}
			const large, small = 10, 3
			for n := range large + small {
				e := exceeded(n)
				if n < large {
					e.Key = strings.Repeat("k", 500)
				}
				box.add(e)
			}
			log := &logBuffer{}
			runRelay(t, RelayConfig{Conn: nc, Outbox: box, batch: 4, poll: time.Hour, Logger: slog.New(slog.NewTextHandler(log, nil))})
			stored(t, nc, small)
			if n := box.backlog(); n != large {
				t.Errorf("%d wait, want %d", n, large)
			}
			if noted := box.noted(); len(noted) != large || len(slices.Compact(noted)) != large {
				t.Errorf("%q are noted", noted)
			}
			if said := log.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, c.mend) || !strings.Contains(said, "id-") {
				t.Errorf("said %q", said)
			}
		})
	}
}

// TestEventsStoredByAnotherStreamFail: no alerter would ever receive what another stream
// acknowledges.
func TestEventsStoredByAnotherStreamFail(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := testenv.JetStream(t, nc)
	box, log := &fakeOutbox{}, &logBuffer{}
	box.add(exceeded(1))
	r, _ := runRelay(t, RelayConfig{Conn: nc, Outbox: box, Logger: slog.New(slog.NewTextHandler(log, nil))})
	stored(t, nc, 1)
	drained(t, box)
	if err := js.DeleteStream(t.Context(), limits.EventStream); err != nil {
		t.Fatal(err)
	}
	var other jetstream.Stream
	made(t, func() (err error) {
		other, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"limits.exceeded"}})
		return err
	})
	box.add(exceeded(2))
	r.Wake()
	waitFor(t, "the log tells of a stream that is not the one", func() bool {
		return strings.Contains(log.String(), "expected stream does not match")
	})
	if said := log.String(); !strings.Contains(said, "nats stream ls --subject SUBJECT") {
		t.Errorf("said %q", said)
	}
	if info, err := other.Info(t.Context()); err != nil || info.State.Msgs > 0 {
		t.Errorf("%+v, %v", info, err)
	}
	if err := js.DeleteStream(t.Context(), "OTHER"); err != nil {
		t.Fatal(err)
	}
	drained(t, box)
}

// TestEventsOfAnotherReleaseDoNotBlockOthers: a worker that does not know their type leaves them to
// those that do.
func TestEventsOfAnotherReleaseDoNotBlockOthers(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	box, log := &fakeOutbox{}, &logBuffer{}
	for n := range 10 {
		e := exceeded(n)
		e.Type = "limits.new"
		box.add(e)
	}
	box.add(exceeded(10))
	_, stop := runRelay(t, RelayConfig{Conn: nc, Outbox: box, batch: 4, poll: time.Hour, Logger: slog.New(slog.NewTextHandler(log, nil))})
	stored(t, nc, 1)
	stop()
	if n := box.backlog(); n != 10 {
		t.Errorf("%d wait, want 10", n)
	}
	if said := log.String(); strings.Count(said, "level=ERROR") != 1 || !strings.Contains(said, "unknown event type") {
		t.Errorf("said %q", said)
	}
}

// TestStopDrainsPastRefusedEvents: more events are refused than are published at a time.
func TestStopDrainsPastRefusedEvents(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t, func(o *natsserver.Options) { o.MaxPayload = 1000 }).ClientURL())
	box := &fakeOutbox{}
	r, stop := runRelay(t, RelayConfig{Conn: nc, Outbox: box, batch: 4, poll: time.Hour})
	stop()
	for n := range 10 {
		e := exceeded(n)
		e.Key = strings.Repeat("k", 500)
		box.add(e)
	}
	box.add(exceeded(10))
	r.drain(t.Context())
	if n := box.backlog(); n != 10 {
		t.Errorf("%d wait, want 10", n)
	}
}
