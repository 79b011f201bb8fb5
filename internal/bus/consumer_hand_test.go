package bus

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestASlowTakeIsGivenNoEventTwice: while the parts of a batch are tried one after another, the
// server keeps the other parts, and what has arrived since, for longer than its acknowledgement
// timeout.
func TestASlowTakeIsGivenNoEventTwice(t *testing.T) {
	t.Parallel()
	const ackWait = 4 * time.Second
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := stream(t, nc)
	cfg := consumerConfig()
	cfg.AckWait = ackWait
	if _, err := js.CreateConsumer(t.Context(), limits.EventStream, cfg); err != nil {
		t.Fatal(err)
	}
	publishEvents(t, js, 0, 8)
	k, other := newTaker(), newTaker()
	calls, began := 0, time.Now()
	k.refuse = func(events []alerts.Event) error {
		if calls++; calls == 1 {
			publishEvents(t, js, 8, 12) // into the pull that goes on
			consume(t, nc, other)       // receives what comes again
		}
		_ = sleep(t.Context(), ackWait/10)
		if len(events) > 1 {
			return errors.New("too many at once")
		}
		return nil
	}
	c, err := NewConsumer(ConsumerConfig{Conn: nc, Logger: slog.New(slog.DiscardHandler), Take: k.take, Poison: k.poison})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.pass(t.Context()); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took < ackWait {
		t.Errorf("all was taken in %s, which is to be longer than %s", took, ackWait)
	}
	if i := settled(t, js); i.Delivered.Consumer != 12 || len(k.events)+len(other.events) != 12 {
		t.Errorf("12 events were delivered %d times; %d were taken here, %d there", i.Delivered.Consumer, len(k.events), len(other.events))
	}
}
