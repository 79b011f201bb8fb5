package engine

import (
	"context"
	"errors"
	"time"

	"github.com/sony/gobreaker/v2"
)

// failure is the last error of the store since a transaction succeeded.
type failure struct {
	err error
	at  time.Time
}

// probeAfter is how long nothing else has tried a store that failed, before the engine does.
const probeAfter = 2 * time.Second

// failed remembers why a transaction failed. That it ran out of time, perhaps while it waited for the one before, says less
// than what failed before it, so it does not take its place.
func (e *Engine) failed(err error) {
	if last := e.lastFailure.Load(); last != nil && errors.Is(err, context.DeadlineExceeded) {
		err = last.err
	}
	e.lastFailure.Store(&failure{err, time.Now()})
}

func (e *Engine) succeeded() {
	if e.lastFailure.Load() != nil {
		e.lastFailure.Store(nil)
	}
}

// cause is the error of the store for which its circuit is open.
func (e *Engine) cause() error {
	if last := e.lastFailure.Load(); last != nil {
		return last.err
	}
	return gobreaker.ErrOpenState // it has just answered again
}

// Failure is why requests are answered without the store; nil when they are not.
func (e *Engine) Failure() error {
	if last := e.lastFailure.Load(); last != nil && e.breaker.State() != gobreaker.StateClosed {
		return last.err
	}
	return nil
}

// probe tries a store that failed, when nobody else has for a while: else it would be told to fail until somebody asks, or to
// answer when it does not. To read may work where nothing can be written, so a receipt is written.
func (e *Engine) probe() {
	if last := e.lastFailure.Load(); last != nil && time.Since(last.at) >= probeAfter && e.breaker.State() != gobreaker.StateClosed {
		_ = e.enqueue(&Request{Verb: look, ID: probePrefix + e.cfg.NewID()}) // when the queue is full others do
	}
}

// probePrefix begins the ids of probes. No request can have one.
const probePrefix = "probe\n"
