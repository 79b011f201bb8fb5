package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed503877ad/limits/internal/bus"
)

// ready asks every part that requests need, at once: one that hangs takes all the time there is. What takes events says itself how it
// stands.
func (l *limiter) ready(ctx context.Context) map[string]error {
	starting := errors.New("starting")
	if part := l.awaits.Load().(string); part != "" {
		return map[string]error{part: errors.New("not reached yet; the log says why"), "service": starting}
	}
	answers := make(chan error, 1)
	go func() { answers <- bus.Healthy(ctx, l.requests) }()
	checks := map[string]error{"store": l.storeHealthy(ctx), "nats": <-answers}
	switch {
	case !l.serving.Load():
		checks["service"] = starting
	case l.consumer != nil:
		checks["alerts"] = l.consumer.Failure()
	}
	return checks
}

// storeHealthy asks the store, and the engine too: a store may answer a ping, and fail all transactions.
func (l *limiter) storeHealthy(ctx context.Context) error {
	if err := l.store.Ping(ctx); err != nil || !l.serving.Load() || l.engine == nil {
		return err
	}
	if err := l.engine.Failure(); err != nil {
		return fmt.Errorf("answering without it: %w", err)
	}
	if at := l.elsewhere.Load(); at > 0 && time.Since(time.Unix(0, at)) < storesGone {
		return errElsewhere
	}
	return nil
}
