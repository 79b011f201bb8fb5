package bus

import (
	"bytes"
	"cmp"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/testenv"
)

// smallStream is a stream that keeps ten messages, with a consumer that the test runs step by step.
type smallStream struct {
	noConsumerObserver

	t     *testing.T
	nc    *nats.Conn
	js    jetstream.JetStream
	k     *taker
	c     *Consumer
	lines bytes.Buffer
	lost  uint64
	sent  int
	// pending is what the consumer told last.
	pending uint64
	// retry is the consumer's, 1 ms unless set.
	retry time.Duration
}

func (l *smallStream) EventsLost(n uint64)    { l.lost += n }
func (l *smallStream) EventsPending(n uint64) { l.pending = n }

func newSmallStream(t *testing.T) *smallStream {
	t.Helper()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := testenv.JetStream(t, nc)
	l := &smallStream{t: t, nc: nc, js: js, k: newTaker()}
	l.makeStream()
	l.restart()
	return l
}

func (l *smallStream) makeStream() {
	l.t.Helper()
	cfg := eventStream()
	cfg.MaxMsgs = 10
	made(l.t, func() error {
		_, err := l.js.CreateStream(l.t.Context(), cfg)
		return err
	})
}

// made runs do until it succeeds in creating a stream. The server may refuse that for a moment,
// while it removes what is left of another stream of the same name.
func made(t *testing.T, do func() error) {
	t.Helper()
	const storeFailed = 10049
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := do()
		if err == nil {
			return
		}
		if refused, is := errors.AsType[*jetstream.APIError](err); !is || refused.ErrorCode != storeFailed || time.Since(begin) > patience {
			t.Fatal(err)
		}
	}
}

// restart replaces the consumer, as when a process ends and another one starts.
func (l *smallStream) restart() {
	l.t.Helper()
	var err error
	l.c, err = NewConsumer(ConsumerConfig{Conn: l.nc, Take: l.k.take, Poison: l.k.poison, Batch: 10, retry: cmp.Or(l.retry, time.Millisecond),
		Observer: l, Logger: slog.New(slog.NewTextHandler(&l.lines, nil))})
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *smallStream) publish(n int) {
	l.t.Helper()
	publishEvents(l.t, l.js, l.sent, l.sent+n)
	l.sent += n
}

// pass runs the consumer once, and compares what it has taken and counted as lost so far.
func (l *smallStream) pass(taken int, lost uint64) {
	l.t.Helper()
	if err := l.c.pass(l.t.Context()); err != nil {
		l.t.Fatal(err)
	}
	if len(l.k.events) != taken || l.lost != lost {
		l.t.Errorf("%d taken, %d lost; want %d, %d", len(l.k.events), l.lost, taken, lost)
	}
}

// said compares how often the log told about losses.
func (l *smallStream) said(times int, count string) {
	l.t.Helper()
	if n := strings.Count(l.lines.String(), "events are lost"); n != times || !strings.Contains(l.lines.String(), count) {
		l.t.Errorf("said %d times, want %d with %s: %s", n, times, count, l.lines.String())
	}
}

func TestEventsRemovedByFullStreamAreCounted(t *testing.T) {
	t.Parallel()
	l := newSmallStream(t)
	l.publish(10)
	l.pass(10, 0)
	l.publish(30) // while no alerter runs
	l.restart()
	l.pass(20, 20)
	l.said(1, "count=20 last=30")
	l.publish(10)
	l.pass(30, 20)
	l.restart()
	l.publish(10)
	l.pass(40, 20)
	l.said(1, "")
}

// TestEventsLostDuringStoreOutageAreCounted by the alerter that waits for the store.
func TestEventsLostDuringStoreOutageAreCounted(t *testing.T) {
	t.Parallel()
	l := newSmallStream(t)
	// If it came back within the pull that it was refused in, it would take the room of others in it.
	l.retry = time.Hour
	l.restart()
	l.publish(1) // of more, a part can come by itself, and what comes behind that is given back
	l.k.refuse = func([]alerts.Event) error { return errors.New("away") }
	if err := l.c.pass(t.Context()); err == nil {
		t.Fatal("a pass without a store")
	}
	l.publish(34)
	if err := l.c.pass(t.Context()); err == nil || l.lost != 0 {
		t.Fatal(err, l.lost)
	}
	l.k.refuse = nil
	l.pass(10, 24) // besides the one that it was given before
	l.said(1, "count=24 last=25")
}

// TestOtherRemovalsAreNotLosses: reports, purges, messages that were deleted one by one, and a
// stream that was created anew.
func TestOtherRemovalsAreNotLosses(t *testing.T) {
	t.Parallel()
	l := newSmallStream(t)
	l.publish(10)
	l.pass(10, 0)
	for range 2 { // alerters run, and there is nothing but reports
		for range 10 {
			if _, err := l.js.Publish(t.Context(), limits.EventReport, nil); err != nil {
				t.Fatal(err)
			}
		}
		l.pass(10, 0)
	}
	stream, err := l.js.Stream(t.Context(), limits.EventStream)
	if err != nil {
		t.Fatal(err)
	}
	for i, opts := range [][]jetstream.StreamPurgeOpt{nil, {jetstream.WithPurgeSubject(limits.EventExceeded)}, {jetstream.WithPurgeKeep(2)}} {
		l.publish(9)
		if err := stream.Purge(t.Context(), opts...); err != nil {
			t.Fatal(err)
		}
		l.publish(8)
		l.restart()
		l.pass(10+8*(i+1)+2*(i/2), 0)
	}
	l.publish(10)
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), info.State.LastSeq-5); err != nil {
		t.Fatal(err)
	}
	l.publish(1)
	l.pass(46, 0)
	if err := l.js.DeleteStream(t.Context(), limits.EventStream); err != nil {
		t.Fatal(err)
	}
	l.makeStream()
	l.publish(10)
	l.restart()
	l.pass(56, 0)
	l.publish(12)
	l.restart()
	l.pass(66, 2)
	l.said(1, "count=2 last=12")
}

// TestFilteredConsumerCountsNoLosses: it cannot count them, and says so once.
func TestFilteredConsumerCountsNoLosses(t *testing.T) {
	t.Parallel()
	l := newSmallStream(t)
	cfg := consumerConfig()
	cfg.FilterSubjects = alertableSubjects
	if _, err := l.js.CreateConsumer(t.Context(), limits.EventStream, cfg); err != nil {
		t.Fatal(err)
	}
	for want := 10; want <= 20; want += 10 {
		l.publish(20)
		l.pass(want, 0)
		l.c.consumer = nil // as after a failure
	}
	l.said(0, "")
	if n := strings.Count(l.lines.String(), "nats consumer rm LIMITS alerter"); n != 1 {
		t.Errorf("said %d times: %s", n, l.lines.String())
	}
}

// TestOldestEvent: ids of older ones are forgotten.
// TestWithoutLossesNoneAreLookedForBeforeEachPull: each look asks the server twice.
func TestWithoutLossesNoneAreLookedForBeforeEachPull(t *testing.T) {
	t.Parallel()
	l := newSmallStream(t)
	l.publish(3)
	l.pass(3, 0)
	at := l.c.losses.checkedAt
	l.publish(12)
	l.pass(13, 0)
	if !l.c.losses.checkedAt.Equal(at) {
		t.Error("it looked before the second pull, too")
	}
}

func TestOldestEvent(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := stream(t, nc)
	c, err := NewConsumer(ConsumerConfig{Conn: nc, Logger: slog.New(slog.DiscardHandler), Take: newTaker().take, Poison: newTaker().poison})
	if err != nil {
		t.Fatal(err)
	}
	if at, err := c.OldestEvent(t.Context()); !at.IsZero() || err != nil {
		t.Errorf("of an empty stream: %s, %v", at, err)
	}
	publishEvents(t, js, 0, 3)
	s, err := js.Stream(t.Context(), limits.EventStream)
	if err != nil {
		t.Fatal(err)
	}
	for gone := range uint64(3) {
		first, err := s.GetMsg(t.Context(), gone+1)
		if err != nil {
			t.Fatal(err)
		}
		if at, err := c.OldestEvent(t.Context()); !at.Equal(first.Time) || err != nil {
			t.Errorf("after %d are gone: %s, %v; want %s", gone, at, err, first.Time)
		}
		if err := s.DeleteMsg(t.Context(), gone+1); err != nil {
			t.Fatal(err)
		}
	}
	if at, err := c.OldestEvent(t.Context()); !at.IsZero() || err != nil {
		t.Errorf("after all are gone: %s, %v", at, err)
	}
	if err := js.DeleteStream(t.Context(), limits.EventStream); err != nil {
		t.Fatal(err)
	}
	if _, err := c.OldestEvent(t.Context()); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("without a stream: %v", err)
	}
}
