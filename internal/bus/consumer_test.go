package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/testenv"
)

// taker stores events for a test.
type taker struct {
	mu       sync.Mutex
	events   map[string]alerts.Event
	poisoned []alerts.Poison
	takes    int
	// refuse says why events are not taken.
	refuse func(events []alerts.Event) error
	// refusePoison is how often keeping poison fails.
	refusePoison int
	changed      chan struct{}
}

func newTaker() *taker {
	return &taker{events: map[string]alerts.Event{}, changed: make(chan struct{}, 1)}
}

func (k *taker) tell() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

func (k *taker) take(_ context.Context, events []alerts.Event) error {
	defer k.tell()
	if k.refuse != nil {
		if err := k.refuse(events); err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.takes++
	for _, e := range events {
		k.events[e.ID] = e
	}
	return nil
}

func (k *taker) poison(_ context.Context, p alerts.Poison) error {
	defer k.tell()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refusePoison > 0 {
		k.refusePoison--
		return errors.New("no room")
	}
	k.poisoned = append(k.poisoned, p)
	return nil
}

// wait returns when so many different events have been taken and so many messages dead-lettered.
func (k *taker) wait(t *testing.T, events, poisoned int) {
	t.Helper()
	end := time.After(time.Minute)
	for {
		k.mu.Lock()
		e, p := len(k.events), len(k.poisoned)
		k.mu.Unlock()
		if e >= events && p >= poisoned {
			return
		}
		select {
		case <-k.changed:
		case <-end:
			t.Fatalf("%d of %d events, %d of %d dead-lettered", e, events, p, poisoned)
		}
	}
}

// consume runs a consumer until the test ends, or until stop.
func consume(t *testing.T, nc *nats.Conn, k *taker) (stop func()) {
	t.Helper()
	log := &logBuffer{}
	c, err := NewConsumer(ConsumerConfig{Conn: nc, Take: k.take, Poison: k.poison, retry: time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the consumer:\n%s", log)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// TestHungStoreDoesNotDelayStop: the events in hand are given back in time, and another process
// receives them.
func TestHungStoreDoesNotDelayStop(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := stream(t, nc)
	taking := make(chan struct{}, 10)
	c, err := NewConsumer(ConsumerConfig{Conn: nc, Logger: slog.New(slog.DiscardHandler), Poison: newTaker().poison,
		Take: func(ctx context.Context, _ []alerts.Event) error {
			taking <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	publishEvents(t, js, 1, 2)
	<-taking
	cancel()
	select {
	case <-done:
	case <-time.After(9 * time.Second):
		t.Error("the stop takes longer than a part may")
		<-done
	}
	k := newTaker()
	consume(t, nc, k)
	k.wait(t, 1, 0)
}

// stream returns JetStream with the stream of events in it.
func stream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js := testenv.JetStream(t, nc)
	if _, err := ensureStream(t.Context(), js, eventStream()); err != nil {
		t.Fatal(err)
	}
	return js
}

// publishEvents publishes events from..to-1, as the relay does.
func publishEvents(t *testing.T, js jetstream.JetStream, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		e := exceeded(n)
		if _, err := js.PublishMsg(t.Context(), eventMsg(t, &e)); err != nil {
			t.Fatal(err)
		}
	}
}

// settled waits until the consumer has nothing in hand and nothing left to deliver.
func settled(t *testing.T, js jetstream.JetStream) *jetstream.ConsumerInfo {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		c, err := js.Consumer(ctx, limits.EventStream, consumerName)
		if err == nil {
			if i := c.CachedInfo(); i.NumPending == 0 && i.NumAckPending == 0 {
				return i
			}
		}
		if sleep(ctx, 10*time.Millisecond) != nil {
			t.Fatalf("the consumer has work left: %v %+v", err, c.CachedInfo())
		}
	}
}

func TestConsumerTakesEvents(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := stream(t, nc)
	publishEvents(t, js, 1, 2)
	w := warning(2)
	m := eventMsg(t, &w)
	if _, err := js.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	k := newTaker()
	consume(t, nc, k)
	k.wait(t, 2, 0)
	for id, want := range map[string]alerts.Event{
		"id-1": {ID: "id-1", Type: "limits.exceeded", Time: 1704307200123, Key: "api:user:7", Name: "1m", Window: "1m", User: "7",
			Limit: 100, Denied: 41, Reset: 1704307260000},
		"id-2": {ID: "id-2", Type: "limits.warning", Time: 1704307200123, Key: "api:user:7", Name: "1m", Window: "1m", User: "7",
			Limit: 100, Denied: 1, Remaining: 9, Reset: 1704307260000},
	} {
		if got := k.events[id]; got != want {
			t.Errorf("\n got %+v\nwant %+v", got, want)
		}
	}
	if i := settled(t, js); i.AckFloor.Stream != 2 || i.NumRedelivered != 0 {
		t.Errorf("%+v", i)
	}
}

// TestCaughtUpWhenAllIsTaken: alerts resolve by this time, so a backlog must not count as taken.
func TestCaughtUpWhenAllIsTaken(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := stream(t, nc)
	publishEvents(t, js, 0, 10)
	published := time.Now()
	k := newTaker()
	away := true
	k.refuse = func([]alerts.Event) error {
		if away {
			return errors.New("connection refused")
		}
		return nil
	}
	c, err := NewConsumer(ConsumerConfig{Conn: nc, Logger: slog.New(slog.DiscardHandler), Take: k.take, Poison: k.poison, Batch: 4})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.pass(t.Context()); err == nil || c.CaughtUp().UnixMilli() != 0 {
		t.Errorf("%v, up to %s", err, c.CaughtUp())
	}
	away = false
	waitFor(t, "the last pull finds nothing", func() bool {
		if err := c.pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		return !c.CaughtUp().Before(published)
	})
	if len(k.events) != 10 {
		t.Errorf("%d events taken, want 10", len(k.events))
	}
	// Who has taken the last is caught up with the pull, however old that was.
	publishEvents(t, js, 10, 11)
	_ = sleep(t.Context(), 2*time.Millisecond) // times are told in milliseconds
	began := time.Now().Truncate(time.Millisecond)
	c.caughtUp.Store(time.Now().Add(time.Hour).UnixMilli()) // by a clock that was ahead then
	if err := c.pass(t.Context()); err != nil || len(k.events) != 11 || c.CaughtUp().Before(began) || c.CaughtUp().After(time.Now()) {
		t.Errorf("%d events taken, up to %s, want %s: %v", len(k.events), c.CaughtUp(), began, err)
	}
}

// TestLateMessagesOfAPullAreReturned, and not taken, if the first ones could not be taken or the
// consumer is to stop.
func TestLateMessagesOfAPullAreReturned(t *testing.T) {
	t.Parallel()
	for name, failed := range map[string]error{"the store is down": errors.New("connection refused"), "the consumer is stopping": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nc := dial(t, testenv.NATS(t).ClientURL())
			js := stream(t, nc)
			publishEvents(t, js, 0, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			k := newTaker()
			var taken [][]alerts.Event
			k.refuse = func(events []alerts.Event) error {
				if len(events) == 0 {
					return failed // the store is asked whether it answers
				}
				if taken = append(taken, events); len(taken) > 1 {
					return nil
				}
				publishEvents(t, js, 1, 4) // into the pull that goes on
				if failed == nil {
					cancel()
				}
				return failed
			}
			c, err := NewConsumer(ConsumerConfig{Conn: nc, Logger: slog.New(slog.DiscardHandler), Take: k.take, Poison: k.poison, Batch: 4})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.pass(ctx); !errors.Is(err, failed) {
				t.Errorf("%v, want %v", err, failed)
			}
			if len(taken) != 1 {
				t.Errorf("%d batches are taken, want the first alone", len(taken))
			}
			k.refuse = nil
			consume(t, nc, k)
			k.wait(t, 4, 0)
		})
	}
}

// TestReplicasShareEvents: one consumer gets stuck with what it took, and the other does the rest.
func TestReplicasShareEvents(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	js := stream(t, dial(t, url))
	publishEvents(t, js, 0, 1)
	stuck, release := make(chan struct{}), make(chan struct{})
	first := newTaker()
	var once sync.Once
	first.refuse = func([]alerts.Event) error {
		once.Do(func() { close(stuck); <-release })
		return nil
	}
	consume(t, dial(t, url), first)
	<-stuck
	publishEvents(t, js, 1, 600)
	second := newTaker()
	consume(t, dial(t, url), second)
	// The pull of the first had room for 255 more.
	second.wait(t, 344, 0)
	close(release)
	settled(t, js)
	for n := range 600 {
		id := fmt.Sprintf("id-%d", n)
		if _, a := first.events[id]; !a {
			if _, b := second.events[id]; !b {
				t.Fatalf("nobody took %s", id)
			}
		}
	}
}

// TestStopReturnsEventsInHand stops a consumer that has messages in hand. The acknowledgement
// timeout is an hour, so that only what was given back arrives.
func TestStopReturnsEventsInHand(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	js := stream(t, dial(t, url))
	cfg := consumerConfig()
	cfg.AckWait = time.Hour
	if _, err := js.CreateConsumer(t.Context(), limits.EventStream, cfg); err != nil {
		t.Fatal(err)
	}
	publishEvents(t, js, 0, 1)
	stuck, release := make(chan struct{}), make(chan struct{})
	first := newTaker()
	var once sync.Once
	first.refuse = func([]alerts.Event) error {
		once.Do(func() { close(stuck); <-release })
		return nil
	}
	stop := consume(t, dial(t, url), first)
	<-stuck
	publishEvents(t, js, 1, 200) // they wait in the first one's pull
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	second := newTaker()
	consume(t, dial(t, url), second)
	close(release)
	<-stopped
	taken := len(first.events)
	second.wait(t, 200-taken, 0)
	if i := settled(t, js); i.Config.AckWait != time.Hour {
		t.Errorf("the operator's AckWait is now %s", i.Config.AckWait)
	}
}

func TestConsumerSurvivesAKilledServer(t *testing.T) {
	t.Parallel()
	server := testenv.NATSServer(t)
	nc, err := Connect(t.Context(), ConnectConfig{URL: server.URL, Name: "alerter", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js := stream(t, nc)
	k := newTaker()
	stop := consume(t, nc, k)
	publishEvents(t, js, 0, 50)
	k.wait(t, 50, 0)
	server.Kill()
	server.Start()
	publisher := dial(t, server.URL)
	js, err = jetstream.New(publisher)
	if err != nil {
		t.Fatal(err)
	}
	publishEvents(t, js, 50, 100)
	k.wait(t, 100, 0)
	stop()
}

// TestMissingConsumerOrStreamIsRecreated deletes the consumer, then the stream, while a consumer
// runs.
func TestMissingConsumerOrStreamIsRecreated(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	k := newTaker()
	consume(t, nc, k)
	js := stream(t, nc)
	publishEvents(t, js, 0, 5)
	k.wait(t, 5, 0)
	if err := js.DeleteConsumer(t.Context(), limits.EventStream, consumerName); err != nil {
		t.Fatal(err)
	}
	publishEvents(t, js, 5, 10)
	k.wait(t, 10, 0)
	if err := js.DeleteStream(t.Context(), limits.EventStream); err != nil {
		t.Fatal(err)
	}
	settled(t, js) // the consumer makes the stream too
	publishEvents(t, js, 10, 15)
	k.wait(t, 15, 0)
}

func TestOperatorsConsumerIsLeftAlone(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := stream(t, nc)
	given := jetstream.ConsumerConfig{Durable: consumerName, AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Minute,
		MaxAckPending: 7, MaxDeliver: 3, FilterSubject: limits.EventExceeded, HeadersOnly: true}
	if _, err := js.CreateConsumer(t.Context(), limits.EventStream, given); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c, err := ensureConsumer(t.Context(), js)
		if err != nil {
			t.Fatal(err)
		}
		got := c.CachedInfo().Config
		if got.AckWait != time.Minute || got.MaxAckPending != 7 || got.MaxDeliver != -1 || got.HeadersOnly ||
			!slices.Equal(got.FilterSubjects, []string{"limits.exceeded", "limits.warning"}) {
			t.Errorf("%+v", got)
		}
	}
	if err := js.DeleteConsumer(t.Context(), limits.EventStream, consumerName); err != nil {
		t.Fatal(err)
	}
	given.AckPolicy, given.MaxAckPending, given.AckWait = jetstream.AckNonePolicy, 0, 0
	if _, err := js.CreateConsumer(t.Context(), limits.EventStream, given); err != nil {
		t.Fatal(err)
	}
	if _, err := ensureConsumer(t.Context(), js); err == nil || !strings.HasSuffix(err.Error(),
		"instead of explicit; remove it and it is recreated: nats consumer rm LIMITS alerter") {
		t.Error(err)
	}
}

func TestConsumerConfigIsChecked(t *testing.T) {
	t.Parallel()
	k := newTaker()
	good := ConsumerConfig{Conn: &nats.Conn{}, Take: k.take, Poison: k.poison, Logger: slog.Default()}
	for field, change := range map[string]func(*ConsumerConfig){
		"Conn": func(c *ConsumerConfig) { c.Conn = nil }, "Take": func(c *ConsumerConfig) { c.Take = nil },
		"Poison": func(c *ConsumerConfig) { c.Poison = nil }, "Logger": func(c *ConsumerConfig) { c.Logger = nil },
	} {
		cfg := good
		change(&cfg)
		if _, err := NewConsumer(cfg); err == nil || !strings.Contains(err.Error(), field+" is missing") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestEventTimesAreNotAheadOfTheStream. An event without a time, which CloudEvents allow, gets that
// of the stream.
func TestEventTimesAreNotAheadOfTheStream(t *testing.T) {
	t.Parallel()
	e := exceeded(1)
	m := eventMsg(t, &e)
	at := time.UnixMilli(e.Time - 5000)
	timeless := regexp.MustCompile(`"time":"[^"]*",`).ReplaceAll(m.Data, nil)
	if len(timeless) == len(m.Data) {
		t.Fatalf("no time in %s", m.Data)
	}
	for _, data := range [][]byte{m.Data, timeless} {
		if got, err := parseEvent(limits.EventExceeded, data, at); err != nil || got.Time != at.UnixMilli() {
			t.Errorf("%s: %d, %v", data, got.Time, err)
		}
	}
}
