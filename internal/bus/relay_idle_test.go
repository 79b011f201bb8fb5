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
