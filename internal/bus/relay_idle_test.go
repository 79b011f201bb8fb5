package bus

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

// askedOutbox counts how often it is asked for events.
type askedOutbox struct {
	fakeOutbox
	asked atomic.Int64
}

func (o *askedOutbox) Relay(ctx context.Context, max int, publish func(context.Context, []engine.Event) ([]string, error)) (int, error) {
	n, err := o.fakeOutbox.Relay(ctx, max, publish)
	o.asked.Add(1)
	return n, err
}

// TestAnIdleRelayAsksOnlyWhenItIsWoken: each question is a transaction of the store.
func TestAnIdleRelayAsksOnlyWhenItIsWoken(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	box := &askedOutbox{}
	box.add(exceeded(1))
	r, stop := runRelay(t, RelayConfig{Conn: nc, Outbox: box, poll: time.Hour})
	waitFor(t, "it has looked when it began", func() bool { return box.asked.Load() > 0 })
	for n := range int64(3) {
		r.Wake()
		waitFor(t, "it looks when it is woken", func() bool { return box.asked.Load() >= n+2 })
	}
	for range 20 {
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if n := box.asked.Load(); n != 4 {
		t.Errorf("the outbox was asked %d times, want once and 3 times more", n)
	}
	before := box.asked.Load()
	stop()
	if n := box.asked.Load(); n != before+1 {
		t.Errorf("the outbox was asked %d times at the stop, want once", n-before)
	}
}

// TestARelayWithoutAConnectionLeavesTheOutboxAlone: it would be locked while nothing can be acknowledged.
func TestARelayWithoutAConnectionLeavesTheOutboxAlone(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	nc, box := connect(t, server.ClientURL()), &askedOutbox{}
	r, _ := idleRelay(t, nc, box)
	box.add(exceeded(1))
	if n, more, err := r.pass(t.Context()); n != 1 || more || err != nil {
		t.Errorf("%d published, more %t, %v", n, more, err)
	}
	server.Shutdown()
	waitFor(t, "the connection is down", func() bool { return !connected(nc) })
	box.add(exceeded(2))
	if n, more, err := r.pass(t.Context()); n != 0 || more || !errors.Is(err, nats.ErrDisconnected) {
		t.Errorf("%d published, more %t, %v; want %v", n, more, err, nats.ErrDisconnected)
	}
	if asked := box.asked.Load(); asked != 1 || box.backlog() != 1 {
		t.Errorf("the outbox was asked %d times and has %d events, want once, and 1", asked, box.backlog())
	}
}

// feedingOutbox gets a further event, and wakes the relay, whenever it is asked. It says when that is.
type feedingOutbox struct {
	fakeOutbox
	wake  func()
	asked chan time.Time
}

func (o *feedingOutbox) Relay(ctx context.Context, max int,
	publish func(context.Context, []engine.Event) ([]string, error)) (int, error) {
	select {
	case o.asked <- time.Now():
		o.add(exceeded(len(o.asked)))
		o.wake()
	default:
	}
	return o.fakeOutbox.Relay(ctx, max, publish)
}

// TestEventsGatherWhileThereAreMore: after the relay has published some it waits for 50 ms, so that a stream of small commits
// costs 20 transactions a second and not one for each.
func TestEventsGatherWhileThereAreMore(t *testing.T) {
	t.Parallel()
	box := &feedingOutbox{asked: make(chan time.Time, 6)}
	wake := make(chan func(), 1)
	box.wake = func() { f := <-wake; f(); wake <- f }
	r, _ := runRelay(t, RelayConfig{Conn: dial(t, testenv.NATS(t).ClientURL()), Outbox: box, poll: time.Hour})
	wake <- r.Wake
	waitFor(t, "it has asked six times", func() bool { return len(box.asked) == cap(box.asked) })
	last := <-box.asked
	for range cap(box.asked) - 1 {
		next := <-box.asked
		if next.Sub(last) < batchDelay {
			t.Errorf("it asked again after %s", next.Sub(last))
		}
		last = next
	}
}

// TestAfterAFailureAnyDomainMayAcknowledge, because the connection may lead to another one by then.
func TestAfterAFailureAnyDomainMayAcknowledge(t *testing.T) {
	t.Parallel()
	box := &fakeOutbox{}
	r, _ := idleRelay(t, dial(t, testenv.NATS(t).ClientURL()), box)
	r.domain = new(string)
	*r.domain = "before"
	for _, fails := range []bool{true, false} {
		box.add(exceeded(1))
		if _, _, err := r.pass(t.Context()); (err != nil) != fails {
			t.Errorf("fails: %t: %v", fails, err)
		}
	}
}

// TestAStreamThatCannotBeLookedUpIsNoReadyStream: it is looked up again.
func TestAStreamThatCannotBeLookedUpIsNoReadyStream(t *testing.T) {
	t.Parallel()
	r, _ := idleRelay(t, dial(t, testenv.NATS(t).ClientURL()), &fakeOutbox{})
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.stream.open(late, r.js, eventStream()); !errors.Is(err, context.Canceled) || r.stream.ready.Load() {
		t.Errorf("%v; ready: %t", err, r.stream.ready.Load())
	}
	if err := r.stream.open(t.Context(), r.js, eventStream()); err != nil || !r.stream.ready.Load() {
		t.Errorf("%v; ready: %t", err, r.stream.ready.Load())
	}
}
