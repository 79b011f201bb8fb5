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

// recordFailure remembers why a transaction failed. That it ran out of time, perhaps while it waited for the one before, says less
// than what failed before it, so it does not take its place.
func (e *Engine) recordFailure(err error) {
	if last := e.lastFailure.Load(); last != nil && errors.Is(err, context.DeadlineExceeded) {
		err = last.err
	}
	e.lastFailure.Store(&failure{err, time.Now()})
}

func (e *Engine) recordSuccess() {
	if e.lastFailure.Load() != nil {
		e.lastFailure.Store(nil)
	}
	if e.probeTimedOut.Load() {
		e.probeTimedOut.Store(false)
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
	if last := e.lastFailure.Load(); last != nil && (e.breaker.State() != gobreaker.StateClosed || e.hung.Load()) {
		return last.err
	}
	return nil
}

// probe tries a store that failed, when nobody else has for a while: else it would be told to fail until somebody asks, or to
// answer when it does not. To read may work where nothing can be written, so a receipt is written.
func (e *Engine) probe() {
	last, state := e.lastFailure.Load(), e.breaker.State()
	switch {
	case state == gobreaker.StateClosed:
	case e.probeTimedOut.Load():
		if state == gobreaker.StateHalfOpen && e.probing.CompareAndSwap(false, true) {
			e.done.Go(e.probeSlowly)
		}
	case last != nil && time.Since(last.at) >= probeAfter:
		_ = e.enqueue(&Request{Verb: noop, ID: probePrefix + e.cfg.NewID()}) // when the queue is full others do
	}
}

// awaitProbe waits until a store that failed may be tried again, before what only this worker knows is given to it for the last time: it
// may have come back since it was tried last.
func (e *Engine) awaitProbe() {
	defer e.probeTimedOut.Store(false) // nobody else waits
	for end := time.Now().Add(openFor + e.cfg.Deadline); time.Now().Before(end); time.Sleep(awaitEvery) {
		if e.breaker.State() != gobreaker.StateOpen && !e.probing.Load() {
			return
		}
	}
}

const (
	// openFor is how long a store that failed is left alone.
	openFor    = time.Second
	awaitEvery = 20 * time.Millisecond
)

// probeSlowly tries a store that did not answer a probe in its time, for as long as a transaction may take while the circuit is closed:
// one that works, and takes longer than a probe, would never be used again. Meanwhile requests are answered without it, and wait for
// nothing.
func (e *Engine) probeSlowly() {
	defer e.probing.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), e.cfg.Deadline*3/4)
	defer cancel()
	id := probePrefix + e.cfg.NewID()
	_ = e.transact(ctx, func() error { // which keeps how it went
		return e.cfg.Store.Update(ctx, Batch{IDs: []string{id}}, func(s Snapshot) Changes {
			e.cache.invalidateOthers(&s.Others)
			return Changes{Receipts: []Receipt{{ID: id, Answer: []byte(`{}`), ExpiresAt: s.Now + receiptLife}}}
		})
	})
}

// probePrefix begins the ids of probes. No request can have one.
const probePrefix = "probe\n"
