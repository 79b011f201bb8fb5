package alerts_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds every wait; it is long because a busy machine must not fail these tests.
const patience = 60 * time.Second

// clock is the clock of a store, which tests move.
type clock struct{ millis atomic.Int64 }

func (c *clock) now() time.Time          { return time.UnixMilli(c.millis.Load()) }
func (c *clock) advance(d time.Duration) { c.millis.Add(d.Milliseconds()) }

// store is the store that alerts and the limiter share.
type store interface {
	alerts.Store
	engine.Store
}

// rig is a store, a limiter on it that answers on NATS, and rules for the services that a test runs.
type rig struct {
	t       *testing.T
	store   store
	clock   *clock // nil for a store that has its own
	engine  *engine.Engine
	limiter *limits.Client
	rules   atomic.Pointer[alerts.Rules]
	events  atomic.Int64
	// url is where NATS listens; stopLimiter ends the limiter there.
	url         string
	stopLimiter func()
	// seen is the observer of all services.
	seen *seen
}

// noon is when the clock of tests begins: a Thursday.
var noon = time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)

// newRig makes a rig. Its clock stands still until it is moved.
func newRig(t *testing.T, rules string) *rig {
	t.Helper()
	c := &clock{}
	c.millis.Store(noon.UnixMilli())
	s := eachstore.SQLite(t, c.now)
	r := newRigOver(t, s, rules)
	r.clock = c
	return r
}

func newRigOver(t *testing.T, s store, rules string) *rig {
	t.Helper()
	r := &rig{t: t, store: s, seen: newSeen()}
	r.load(rules)
	e, err := engine.New(t.Context(), engine.Config{Store: s, NewID: rand.Text, Deadline: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close(context.Background()) })
	r.engine = e
	r.url = testenv.NATS(t).ClientURL()
	r.stopLimiter = r.startLimiter()
	r.limiter = limits.NewClient(r.dial(r.url), limits.Timeout(patience))
	return r
}

// startLimiter answers requests until it is stopped.
func (r *rig) startLimiter() (stop func()) {
	r.t.Helper()
	service, err := bus.NewService(bus.ServiceConfig{Conn: r.dial(r.url), Engine: r.engine, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() { _ = service.Stop(context.Background()) })
	r.t.Cleanup(stop)
	return stop
}

// onBothStores runs a test on each store, with its own clock.
func onBothStores(t *testing.T, rules string, f func(t *testing.T, r *rig)) {
	eachstore.Run(t, func(t *testing.T, s store) { f(t, newRigOver(t, s, rules)) })
}

func (r *rig) dial(url string) *nats.Conn {
	nc, err := nats.Connect(url)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(nc.Close)
	return nc
}

// load sets the current rules.
func (r *rig) load(text string) {
	r.t.Helper()
	rules, err := alerts.ParseRules("alerts.yaml", []byte(text), alerts.FileOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.rules.Store(rules)
}

// advance moves the clock. The limiter's memory follows the clock of the machine.
func (r *rig) advance(d time.Duration) {
	r.clock.advance(d)
	r.engine.Forget(engine.Forget{All: true})
}

// seen is an observer whose counts can be waited for.
type seen struct {
	mu      sync.Mutex
	counts  map[string]int
	changed chan struct{}
}

func newSeen() *seen { return &seen{counts: map[string]int{}, changed: make(chan struct{})} }

func (s *seen) EventsMatched(int, int, int) {}
func (s *seen) ThrottleFailed()             { s.add("throttle failed") }
func (s *seen) count(what string) (n int)   { n, _ = s.look(what); return n }

func (s *seen) AlertChanged(what, _ string) {
	s.add(what)
	if what == "sent" || what == "held" {
		s.add("told")
	}
}

func (s *seen) look(what string) (int, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[what], s.changed
}

func (s *seen) add(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
	close(s.changed)
	s.changed = make(chan struct{})
}

// wait waits until an event was counted so often.
func (s *seen) wait(t *testing.T, what string, times int) {
	t.Helper()
	end := time.After(patience)
	for {
		n, changed := s.look(what)
		if n >= times {
			return
		}
		select {
		case <-changed:
		case <-end:
			t.Fatalf("%s %d times after %s, want %d; seen %v", what, n, patience, times, s.counts)
		}
	}
}

// running is a service that runs.
type running struct {
	*alerts.Service
	stop func()
}

// run starts a service, over a store of its own if one is given.
func (r *rig) run(over ...alerts.Store) *running {
	r.t.Helper()
	if len(over) > 0 {
		return r.runOver(over[0], r.limiter)
	}
	return r.runOver(r.store, r.limiter)
}

func (r *rig) runOver(s alerts.Store, l alerts.Limiter) *running {
	r.t.Helper()
	return r.start(r.newService(s, l))
}

// newService makes a service that does not run yet: it takes events, and decides no notice.
func (r *rig) newService(s alerts.Store, l alerts.Limiter) *alerts.Service {
	return alerts.New(alerts.Config{Store: s, Limiter: l, Rules: r.rules.Load, NewID: rand.Text, Observer: r.seen,
		Delivered: func() { r.seen.add("delivered") }})
}

func (r *rig) start(s *alerts.Service) *running {
	out := &running{Service: s}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); out.Run(ctx, slog.New(slog.DiscardHandler)) }()
	out.stop = sync.OnceFunc(func() { cancel(); <-ended })
	r.t.Cleanup(out.stop)
	return out
}

// exceeded makes an event: so many denials of a user by a policy, now.
func (r *rig) exceeded(user, policy string, denied int64) alerts.Event {
	at := time.Now()
	if r.clock != nil {
		at = r.clock.now()
	}
	return alerts.Event{ID: fmt.Sprint("event-", r.events.Add(1)), Type: limits.EventExceeded, Time: at.UnixMilli(),
		Key: "api:user:" + user, Name: "1m", Policy: policy, Window: "1m", User: user, Limit: 100, Denied: denied}
}

func (r *rig) take(s *running, all ...alerts.Event) {
	r.t.Helper()
	if err := s.Take(r.t.Context(), all); err != nil {
		r.t.Fatal(err)
	}
}

// all returns the alerts, the first raised first.
func (r *rig) all() (all []alerts.Alert) {
	r.t.Helper()
	f := alerts.AlertFilter{Max: 1000}
	for {
		page, err := r.store.Alerts(r.t.Context(), f)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, a := range page {
			all = append([]alerts.Alert{a}, all...)
		}
		if len(page) < f.Max {
			return all
		}
		f.Before, f.BeforeID = page[len(page)-1].RaisedAt, page[len(page)-1].ID
	}
}

// only returns the only alert.
func (r *rig) only() alerts.Alert {
	r.t.Helper()
	all := r.all()
	if len(all) != 1 {
		r.t.Fatalf("%d alerts, want one: %+v", len(all), all)
	}
	return all[0]
}

// outbox returns the waiting deliveries of a channel.
func (r *rig) outbox(channel string) []alerts.Delivery {
	r.t.Helper()
	all, err := r.store.DueDeliveries(r.t.Context(), channel, 100_000, time.Hour)
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

// send claims the due deliveries of a channel, and marks them as sent.
func (r *rig) send(channel string) []alerts.Delivery {
	r.t.Helper()
	all := r.outbox(channel)
	tried := make([]alerts.DeliveryResult, len(all))
	for i := range all {
		tried[i] = alerts.DeliveryResult{ID: all[i].ID, State: alerts.DeliverySent, Counts: true}
	}
	if err := r.store.SaveResults(r.t.Context(), tried); err != nil {
		r.t.Fatal(err)
	}
	return all
}

// slots returns how many alerts the throttle of a user has counted.
func (r *rig) slots(user string) int64 {
	r.t.Helper()
	reply, err := r.limiter.Status(r.t.Context(), "limits.alerts:user:"+user)
	if err != nil {
		r.t.Fatal(err)
	}
	if len(reply.Counters) == 0 {
		return 0
	}
	return reply.Counters[0].Used
}

// digestOf decodes the data of a digest.
func digestOf(t *testing.T, d alerts.Delivery) (data limits.AlertDigest) {
	t.Helper()
	if err := json.Unmarshal(d.Message.Data, &data); err != nil {
		t.Fatal(err)
	}
	return data
}
