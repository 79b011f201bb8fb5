package bus

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/testenv"
)

// unknownPending notes whether the number of pending events is known.
type unknownPending struct {
	noConsumerObserver
	unknown atomic.Int64
}

func (p *unknownPending) EventsPendingUnknown() { p.unknown.Add(1) }

// TestAnOutageIsToldAndEnds: health, metrics and log tell while events cannot be taken, and health no longer when they are.
func TestAnOutageIsToldAndEnds(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	publishEvents(t, stream(t, nc), 0, 1)
	k, seen, log := newTaker(), &unknownPending{}, &logBuffer{}
	var away atomic.Bool
	var tries atomic.Int64
	away.Store(true)
	k.refuse = func([]alerts.Event) error {
		if tries.Add(1); away.Load() {
			return errors.New("connection refused")
		}
		return nil
	}
	c, err := NewConsumer(ConsumerConfig{Conn: nc, Take: k.take, Poison: k.poison, Observer: seen, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	defer func() { cancel(); <-done }()
	waitFor(t, "the outage is told", func() bool {
		return c.failure.Load() != nil && seen.unknown.Load() > 0 && strings.Contains(log.String(), "cannot be processed")
	})
	before := tries.Load()
	waitFor(t, "it has failed for long enough to count", func() bool { return c.Failure() != nil })
	if n := tries.Load() - before; n > 40 { // 100 ms apart at first, and up to 2 s later
		t.Errorf("the store was asked %d times in %s", n, failingAfter)
	}
	away.Store(false)
	k.wait(t, 1, 0)
	waitFor(t, "the outage is over", func() bool { return c.failure.Load() == nil && c.Failure() == nil })
	waitFor(t, "the log says so", func() bool { return strings.Contains(log.String(), "event processing resumed") })
}

// TestAnIdleStreamIsAskedAtOnceAfterAnOutage: the number of pending events is not known until then.
func TestAnIdleStreamIsAskedAtOnceAfterAnOutage(t *testing.T) {
	t.Parallel()
	l := newSmallStream(t)
	l.pass(0, 0)
	l.c.failed(errors.New("connection refused"))
	l.pending = 99
	if l.pass(0, 0); l.pending != 0 {
		t.Errorf("%d pending, want 0", l.pending)
	}
}
