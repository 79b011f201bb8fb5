package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed503877ad/limits/internal/bus"
)

// ready checks every part that requests need. It checks NATS and the store in parallel, because one that hangs takes
// all the time until ctx is done. The consumer of events reports its own state.
func (l *limiter) ready(ctx context.Context) map[string]error {
	starting := errors.New("starting")
	if part := l.startingPart.Load().(string); part != "" {
		return map[string]error{part: errors.New("not connected yet; see the log"), "service": starting}
	}
	natsHealth := make(chan error, 1)
	go func() { natsHealth <- bus.Healthy(ctx, l.requests) }()
	checks := map[string]error{"store": l.storeHealthy(ctx), "nats": <-natsHealth}
	switch {
	case !l.serving.Load():
		checks["service"] = starting
	case l.consumer != nil:
		checks["alerts"] = cmp.Or(l.consumer.Failure(), l.alerts.Failure(), l.sender.Failure())
	}
	return checks
}

// storeHealthy checks the store and the engine: a store may answer a ping and yet fail all transactions.
func (l *limiter) storeHealthy(ctx context.Context) error {
	if err := l.store.Ping(ctx); err != nil || !l.serving.Load() || l.engine == nil {
		return err
	}
	if err := l.engine.Failure(); err != nil {
		return fmt.Errorf("requests are answered without it: %w", err)
	}
	if at := l.otherStoreSeen.Load(); at != nil && time.Since(*at) < otherStoreTTL {
		return errOtherStore
	}
	return nil
}
