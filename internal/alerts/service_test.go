package alerts_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/postgres"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds every wait; it is long because a busy machine must not fail these tests.
const patience = 60 * time.Second

// clock is a store's, which tests move.
type clock struct{ millis atomic.Int64 }

func (c *clock) now() time.Time          { return time.UnixMilli(c.millis.Load()) }
func (c *clock) advance(d time.Duration) { c.millis.Add(d.Milliseconds()) }

// store is what alerts and the limiter share.
type store interface {
	alerts.Store
	engine.Store
}

// rig is a store, a limiter over it that answers on NATS, and rules for services that run beside.
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
	// seen is told by all services.
	seen *seen
}

// noon is when the clock of tests begins: a Thursday.
var noon = time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)

// newRig has a store whose clock stands still until it is moved.
func newRig(t *testing.T, rules string) *rig {
	t.Helper()
	c := &clock{}
	c.millis.Store(noon.UnixMilli())
	s, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "limits.db"), Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	r := newRigOver(t, s, rules)
	r.clock = c
	return r
}

func newRigOver(t *testing.T, s interface {
	store
	Close()
}, rules string) *rig {
	t.Helper()
	t.Cleanup(s.Close)
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
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		s, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "limits.db")})
		if err != nil {
			t.Fatal(err)
		}
		f(t, newRigOver(t, s, rules))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		s, err := postgres.Open(t.Context(), postgres.Config{URL: testenv.Postgres(t, postgres.Migrate)})
		if err != nil {
			t.Fatal(err)
		}
		f(t, newRigOver(t, s, rules))
	})
}

func (r *rig) dial(url string) *nats.Conn {
	nc, err := nats.Connect(url)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(nc.Close)
	return nc
}

// load puts rules in force.
func (r *rig) load(text string) {
	r.t.Helper()
	rules, err := alerts.ParseRules("alerts.yaml", []byte(text), alerts.FileOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.rules.Store(rules)
}

// advance moves the clock. What the limiter has in memory is by the clock of the machine.
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

// wait waits until something has happened so often.
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
	out := &running{}
	cfg := alerts.Config{Store: r.store, Limiter: r.limiter, Rules: r.rules.Load, NewID: rand.Text, Observer: r.seen}
	if len(over) > 0 {
		cfg.Store = over[0]
	}
	out.Service = alerts.New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); out.Run(ctx, slog.New(slog.DiscardHandler)) }()
	out.stop = sync.OnceFunc(func() { cancel(); <-ended })
	r.t.Cleanup(out.stop)
	return out
}

// exceeded is an event of so many denials of a user by a policy, now.
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

// all gives the alerts, the first raised first.
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

// only gives the one alert that there is.
func (r *rig) only() alerts.Alert {
	r.t.Helper()
	all := r.all()
	if len(all) != 1 {
		r.t.Fatalf("%d alerts, want one: %+v", len(all), all)
	}
	return all[0]
}

// outbox gives what waits for a channel.
func (r *rig) outbox(channel string) []alerts.Delivery {
	r.t.Helper()
	all, err := r.store.DueDeliveries(r.t.Context(), channel, 100_000, time.Hour)
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

// slots gives how many alerts the throttle of a user has counted.
func (r *rig) slots(user string) int64 {
	r.t.Helper()
	reply, err := r.limiter.Status(r.t.Context(), "notify:user:"+user)
	if err != nil {
		r.t.Fatal(err)
	}
	if len(reply.Counters) == 0 {
		return 0
	}
	return reply.Counters[0].Used
}

const atOnce = "rules: [{name: denials, threshold: {denials: 1}}]"

// TestTheThrottleIsExact raises an alert every minute for four hours.
func TestTheThrottleIsExact(t *testing.T) {
	t.Parallel()
	r := newRig(t, atOnce)
	s := r.run()
	for i := range 240 {
		r.take(s, r.exceeded("7", fmt.Sprint("p", i), 1))
		r.seen.wait(t, "told", i+1)
		r.advance(time.Minute)
	}
	var sent []int64
	for _, a := range r.all() {
		if a.Notice == alerts.Sent {
			sent = append(sent, a.NoticeAt)
		}
	}
	for i := 20; i < len(sent); i++ {
		if took := sent[i] - sent[i-20]; took < time.Hour.Milliseconds() {
			t.Errorf("21 alerts within %s", time.Duration(took)*time.Millisecond)
		}
	}
	// A sliding window may be late by a 60th.
	if len(sent) < 78 {
		t.Errorf("%d sent in 4 hours, want 20 in each", len(sent))
	}
	if n := len(r.outbox("log")); n != len(sent) {
		t.Errorf("%d deliveries of %d alerts", n, len(sent))
	}
}

// dying is a store whose process dies before what became of alerts is written.
type dying struct {
	alerts.Store
	reached chan struct{}
	once    sync.Once
}

func (d *dying) Tell(context.Context, []alerts.Told) ([]string, error) {
	d.once.Do(func() { close(d.reached) })
	return nil, errors.New("the process is dead")
}

// dieCharged lets a service charge the throttle of the pending alerts and end before it has written that.
func (r *rig) dieCharged(all ...alerts.Event) {
	r.t.Helper()
	d := &dying{Store: r.store, reached: make(chan struct{})}
	s := r.run(d)
	r.take(s, all...)
	select {
	case <-d.reached:
	case <-time.After(patience):
		r.t.Fatal("nobody was to be told")
	}
	s.stop()
}

// afterDeath is longer than a claim of the dead holds.
const afterDeath = 11 * time.Second

func TestWhoDiesBetweenChargeAndTellingSpendsNoSecondSlot(t *testing.T) {
	t.Parallel()
	r := newRig(t, atOnce)
	r.dieCharged(r.exceeded("7", "api", 1))
	if n := r.slots("7"); n != 1 {
		t.Fatalf("%d slots charged before, want 1", n)
	}
	r.advance(afterDeath)
	r.run()
	r.seen.wait(t, "sent", 1)
	if n := r.slots("7"); n != 1 {
		t.Errorf("%d slots charged, want 1", n)
	}
	if n := len(r.outbox("nats")); n != 1 {
		t.Errorf("%d deliveries, want 1", n)
	}
}

// TestWhoIsThrottledStays: an alert that is not by user is updated by events of others before it is told.
func TestWhoIsThrottledStays(t *testing.T) {
	t.Parallel()
	r := newRig(t, "rules: [{name: denials, threshold: {denials: 1}, groupBy: [policy]}]")
	r.dieCharged(r.exceeded("7", "api", 1))
	quiet := r.run(&dying{Store: r.store, reached: make(chan struct{})})
	r.take(quiet, r.exceeded("8", "api", 1))
	quiet.stop()
	r.advance(afterDeath)
	r.run()
	r.seen.wait(t, "told", 1)
	if a := r.only(); a.Notice != alerts.Sent || a.User != "7" || a.Denied != 2 {
		t.Errorf("%+v", a)
	}
	if r.slots("7") != 1 || r.slots("8") != 0 {
		t.Errorf("%d slots of user 7 charged and %d of user 8", r.slots("7"), r.slots("8"))
	}
	if of, err := r.store.Alerts(t.Context(), alerts.AlertFilter{User: "7", Max: 10}); err != nil || len(of) != 1 || of[0].User != "7" {
		t.Errorf("alerts of user 7: %+v, %v", of, err)
	}
}

// TestNobodyIsToldWithoutALimiter: who cannot ask the throttle waits, and neither floods nor loses.
func TestNobodyIsToldWithoutALimiter(t *testing.T) {
	t.Parallel()
	r := newRig(t, atOnce)
	s := r.run()
	r.stopLimiter()
	r.take(s, r.exceeded("7", "a", 1), r.exceeded("7", "b", 1))
	r.seen.wait(t, "throttle failed", 2)
	for _, a := range r.all() {
		if a.Notice != alerts.Pending {
			t.Errorf("%+v", a)
		}
	}
	if n := len(r.outbox("nats")); n != 0 {
		t.Errorf("%d deliveries", n)
	}
	r.startLimiter()
	r.advance(afterDeath)
	r.seen.wait(t, "sent", 2)
	if n := len(r.outbox("nats")); n != 2 || r.slots("7") != 2 {
		t.Errorf("%d deliveries, %d slots", n, r.slots("7"))
	}
}

// TestAnIDIsOneEvent, whatever the second one says.
func TestAnIDIsOneEvent(t *testing.T) {
	t.Parallel()
	onBothStores(t, atOnce, func(t *testing.T, r *rig) {
		s := r.run()
		first, second := r.exceeded("7", "api", 1), r.exceeded("8", "other", 5)
		second.ID = first.ID
		r.take(s, first)
		r.take(s, second)
		r.take(s, second, first)
		r.seen.wait(t, "sent", 1)
		if a := r.only(); a.User != "7" || a.Denied != 1 {
			t.Errorf("%+v", a)
		}
	})
}

func TestASilenceEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, atOnce)
	silence := alerts.Silence{ID: "s", User: "7", Reason: "a load test"}
	if _, err := r.store.AddSilence(t.Context(), silence, time.Minute); err != nil {
		t.Fatal(err)
	}
	s := r.run()
	r.take(s, r.exceeded("7", "api", 1))
	r.seen.wait(t, "silenced", 1)
	if a := r.only(); a.Notice != alerts.Silenced || r.slots("7") != 0 {
		t.Errorf("%s, %d slots charged", a.Notice, r.slots("7"))
	}
	r.advance(2 * time.Minute)
	r.take(s, r.exceeded("7", "api", 1))
	r.seen.wait(t, "sent", 1)
	if a := r.only(); a.Denied != 2 || len(r.outbox("nats")) != 1 {
		t.Errorf("%+v", a)
	}
}

const atNight = `rules: [{name: denials, threshold: {denials: 1}, quietHours: [{from: "12:00", to: "14:30"}]}]`

// TestQuietHoursEndInADigest, also when the rule has been removed since.
func TestQuietHoursEndInADigest(t *testing.T) {
	t.Parallel()
	r := newRig(t, atNight)
	s := r.run()
	for i := range 3 {
		r.take(s, r.exceeded("7", fmt.Sprint("p", i), 2))
	}
	r.seen.wait(t, "held", 3)
	digest := func(want string) {
		t.Helper()
		if note, err := s.Digest(t.Context()); err != nil || note != want {
			t.Errorf("%s, %v; want %s", note, err, want)
		}
	}
	r.load("rules: [{name: other, match: {policy: nothing}}]")
	r.advance(2 * time.Hour)
	digest("0 digests of 0 alerts")
	r.advance(time.Hour)
	digest("1 digests of 3 alerts")
	digest("0 digests of 0 alerts")
	all := r.outbox("nats")
	if len(all) != 1 || all[0].Message.Kind != alerts.KindDigest || all[0].Message.User != "7" {
		t.Fatalf("%+v", all)
	}
	if r.slots("7") != 0 {
		t.Error("what was held was charged")
	}
}

// TestADigestKeepsQuietHours: what the throttle held just before them is not told in them.
func TestADigestKeepsQuietHours(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{throttle: {limit: 1, window: 1h}, rules: [{name: denials, threshold: {denials: 1}, quietHours: [{from: "13:00", to: "14:30"}]}]}`)
	s := r.run()
	r.take(s, r.exceeded("7", "a", 1), r.exceeded("7", "b", 1))
	r.seen.wait(t, "told", 2)
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{time.Hour, "0 digests of 0 alerts"}, {time.Hour, "0 digests of 0 alerts"}, {time.Hour, "1 digests of 1 alerts"}} {
		r.advance(step.after)
		if note, err := s.Digest(t.Context()); err != nil || note != step.want {
			t.Errorf("at %s: %s, %v; want %s", r.clock.now().UTC(), note, err, step.want)
		}
	}
}

// TestWhoRenamesAChannelMissesNothing of what was raised before.
func TestWhoRenamesAChannelMissesNothing(t *testing.T) {
	t.Parallel()
	file := func(channel, quiet string) string {
		return fmt.Sprintf(`{channels: [{name: %s, slack: {url: "https://example.com/x"}, resolved: true}],
			rules: [{name: denials, threshold: {denials: 1}, channels: [%[1]s], quietHours: [{from: %q, to: "14:30"}]}]}`, channel, quiet)
	}
	r := newRig(t, file("old", "13:00"))
	s := r.run()
	r.take(s, r.exceeded("7", "sent", 1))
	r.seen.wait(t, "sent", 1)
	r.load(file("old", "11:00"))
	r.take(s, r.exceeded("7", "held", 1))
	r.seen.wait(t, "held", 1)
	s.stop()
	r.dieCharged(r.exceeded("7", "pending", 1))
	if old := r.outbox("old"); len(old) != 1 {
		t.Fatalf("%+v", old)
	}
	r.load(file("new", "14:29"))
	r.advance(3 * time.Hour)
	s = r.run()
	r.seen.wait(t, "sent", 2)
	if _, err := s.Digest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	kinds := map[alerts.Kind]int{}
	for _, d := range r.outbox("new") {
		kinds[d.Message.Kind]++
	}
	if kinds[alerts.KindRaised] != 1 || kinds[alerts.KindDigest] != 1 || kinds[alerts.KindResolved] != 2 {
		t.Errorf("%v", kinds)
	}
}

// capped is a store that gives a digest no more than a few alerts.
type capped struct{ alerts.Store }

func (c capped) DigestAlerts(ctx context.Context, user string, max int, build func([]alerts.Alert, int64) (string, []alerts.Delivery, error)) (int, error) {
	return c.Store.DigestAlerts(ctx, user, min(max, 130), build)
}

// TestDigestsOfMoreThanOneTellsOf: a digest has bounds, and what is more does not wait for the next hour.
func TestDigestsOfMoreThanOneTellsOf(t *testing.T) {
	t.Parallel()
	r := newRig(t, atNight)
	s := r.run(capped{r.store})
	for i := range 300 {
		r.take(s, r.exceeded("", fmt.Sprint("policy-", i), 2))
	}
	r.seen.wait(t, "held", 300)
	r.advance(3 * time.Hour)
	if note, err := s.Digest(t.Context()); err != nil || note != "3 digests of 300 alerts" {
		t.Errorf("%s, %v", note, err)
	}
	for _, d := range r.outbox("nats") {
		data := digestOf(t, d)
		if len(data.Policies) > 100 || len(data.Keys) > 10 || !strings.HasSuffix(d.Message.Title, " held back for limits of no user") {
			t.Errorf("%q with %d policies and %d keys", d.Message.Title, len(data.Policies), len(data.Keys))
		}
	}
}

func TestDenialsThatStopResolve(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{channels: [{name: log, resolved: false}], rules: [{name: denials, threshold: {denials: 1}}]}`)
	s := r.run()
	r.take(s, r.exceeded("7", "api", 1))
	r.seen.wait(t, "sent", 1)
	r.advance(9 * time.Minute)
	r.take(s, r.exceeded("7", "api", 1))
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{9 * time.Minute, "resolved 0"}, {time.Minute, "resolved 1"}, {0, "resolved 0"}} {
		r.advance(step.after)
		if note, err := s.Resolve(t.Context()); err != nil || note != step.want {
			t.Errorf("%s, %v; want %s", note, err, step.want)
		}
	}
	if n, l := len(r.outbox("nats")), len(r.outbox("log")); n != 2 || l != 1 {
		t.Errorf("%d deliveries for nats and %d for log, want 2 and 1", n, l)
	}
	r.take(s, r.exceeded("7", "api", 1))
	r.seen.wait(t, "sent", 2)
}

// TestNothingIsResolvedWhileEventsWait: after an outage of the alerter the denials that went on are in the stream.
func TestNothingIsResolvedWhileEventsWait(t *testing.T) {
	t.Parallel()
	r := newRig(t, atOnce)
	s := r.run()
	r.take(s, r.exceeded("7", "api", 1))
	r.seen.wait(t, "sent", 1)
	r.advance(time.Hour)
	var upTo time.Time
	s.CaughtUp = func() time.Time { return upTo }
	for _, step := range []struct {
		upTo time.Time
		want string
	}{{time.Time{}, "resolved 0: events wait to be taken"}, {time.Now().Add(-time.Minute), "resolved 0: events wait to be taken"}, {time.Now().Add(time.Hour), "resolved 1"}} {
		upTo = step.upTo
		if note, err := s.Resolve(t.Context()); err != nil || note != step.want {
			t.Errorf("%s, %v; want %s", note, err, step.want)
		}
	}
}

// TestTwoServicesShareTheWork: each alert is told once, and each user no more than 20 times.
func TestTwoServicesShareTheWork(t *testing.T) {
	t.Parallel()
	const users, each = 4, 30
	onBothStores(t, atOnce, func(t *testing.T, r *rig) {
		one, two := r.run(), r.run()
		var group sync.WaitGroup
		for u := range users {
			for i := range each {
				e := r.exceeded(fmt.Sprint(u), fmt.Sprint("p", i), 1)
				for _, s := range []*running{one, two} { // both are given each event
					group.Go(func() {
						if err := s.Take(t.Context(), []alerts.Event{e}); err != nil {
							t.Error(err)
						}
					})
				}
			}
		}
		group.Wait()
		r.seen.wait(t, "told", users*each)
		if raised, sent, held := r.seen.count("raised"), r.seen.count("sent"), r.seen.count("held"); raised != users*each || sent != users*20 ||
			held != users*(each-20) {
			t.Errorf("%d raised, %d sent, %d held", raised, sent, held)
		}
		for _, s := range []*running{one, two} {
			group.Go(func() {
				if _, err := s.Digest(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		held := int64(0)
		for _, d := range r.outbox("log") {
			if d.Message.Kind == alerts.KindDigest {
				held += digestOf(t, d).Alerts
			}
		}
		if held != users*(each-20) {
			t.Errorf("digests tell of %d alerts, want %d", held, users*(each-20))
		}
	})
}

// digestOf reads what a digest tells.
func digestOf(t *testing.T, d alerts.Delivery) (data limits.AlertDigest) {
	t.Helper()
	if err := json.Unmarshal(d.Message.Data, &data); err != nil {
		t.Fatal(err)
	}
	return data
}
