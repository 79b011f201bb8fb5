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

// failureStands is how long a failure tells of the store: while requests come, one a second tries it.
const failureStands = 10 * time.Second

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

// Failure is why requests are answered without the store; nil when they are not, or nobody has asked for long.
func (e *Engine) Failure() error {
	last := e.lastFailure.Load()
	if last == nil || e.breaker.State() == gobreaker.StateClosed || time.Since(last.at) >= failureStands {
		return nil
	}
	return last.err
}
