package bus

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestConsumerOutageIsAFailure once it has lasted for a while, whatever its reasons, and until it
// ends.
func TestConsumerOutageIsAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := NewConsumer(ConsumerConfig{Conn: &nats.Conn{}, Take: newTaker().take, Poison: newTaker().poison, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		away, refused := errors.New("connection refused"), errors.New("permission denied")
		c.failed(away)
		time.Sleep(failingAfter - time.Second)
		if c.failed(refused); c.Failure() != nil {
			t.Errorf("after %s: %v", failingAfter-time.Second, c.Failure())
		}
		if time.Sleep(time.Second); !errors.Is(c.Failure(), refused) {
			t.Errorf("after %s: %v, want %v", failingAfter, c.Failure(), refused)
		}
	})
}

// returnCounter counts the events that are given back.
type returnCounter struct {
	noConsumerObserver
	n int
}

func (r *returnCounter) EventsReturned(n int) { r.n += n }

// TestReturnedMessagesComeWithAnotherPull, and not again and again with the one that brought them.
// Then all are taken.
func TestReturnedMessagesComeWithAnotherPull(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := stream(t, nc)
	publishEvents(t, js, 0, 1)
	k, seen := newTaker(), &returnCounter{}
	away := errors.New("connection refused")
	k.refuse = func(events []alerts.Event) error {
		if len(events) > 0 && seen.n == 0 {
			publishEvents(t, js, 1, 3) // into the pull that goes on
		}
		return away
	}
	c, err := NewConsumer(ConsumerConfig{Conn: nc, Logger: slog.New(slog.DiscardHandler), Take: k.take, Poison: k.poison, Observer: seen})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.pass(t.Context()); !errors.Is(err, away) || seen.n != 3 {
		t.Errorf("%d times events were given back, want each of 3 once: %v", seen.n, err)
	}
	k.refuse = nil
	consume(t, nc, k)
	k.wait(t, 3, 0)
	settled(t, js)
}
