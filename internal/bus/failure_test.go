package bus

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// TestAnOutageOfEventsIsAFailure once it has lasted, whatever its reasons, and no longer than it lasts.
func TestAnOutageOfEventsIsAFailure(t *testing.T) {
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
