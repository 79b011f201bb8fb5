package engine

import (
	"context"
	"errors"
	"time"

	"github.com/sony/gobreaker/v2"
)

// failure is the last error of the store; it is cleared when a transaction succeeds.
type failure struct {
	err error
	at  time.Time
}

// probeAfter is how long a store that failed may go untried before the engine probes it.
const probeAfter = 2 * time.Second

// recordFailure remembers why a transaction failed. A timeout, perhaps while it waited for the
// transaction before, does not replace an earlier error that says more.
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

// isCircuitOpen reports whether the circuit breaker refused to run a transaction.
func isCircuitOpen(err error) bool {
	return errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests)
}

// cause is the store's error that opened the circuit.
func (e *Engine) cause() error {
	if last := e.lastFailure.Load(); last != nil {
		return last.err
	}
	return gobreaker.ErrOpenState // the store has just recovered
}

// Failure is why requests are answered without the store; nil when they are not.
func (e *Engine) Failure() error {
	if last := e.lastFailure.Load(); last != nil && (e.breaker.State() != gobreaker.StateClosed || e.hung.Load()) {
		return last.err
	}
	return nil
}

// probe tries a store that failed, if no request has tried it for a while. Without it Failure would
// stay set until the next request, or the store would be taken to work when it does not. The probe
// writes a receipt, because a store may be readable and not writable.
func (e *Engine) probe() {
	last, state := e.lastFailure.Load(), e.breaker.State()
	switch {
	case state == gobreaker.StateClosed:
	case e.probeTimedOut.Load():
		if state == gobreaker.StateHalfOpen && e.probing.CompareAndSwap(false, true) {
			e.done.Go(e.probeSlowly)
		}
	case last != nil && time.Since(last.at) >= probeAfter:
		_ = e.enqueue(&Request{Verb: noop, ID: probePrefix + e.cfg.NewID()}) // if the queue is full, requests probe
	}
}

// awaitProbe waits until a store that failed may be tried again, before the engine hands it what
// only this worker knows: it may have recovered since it was last tried.
func (e *Engine) awaitProbe() {
	defer e.probeTimedOut.Store(false) // no request has to wait for a probe any more
	for end := time.Now().Add(openFor + e.cfg.Deadline); time.Now().Before(end); time.Sleep(awaitEvery) {
		if e.breaker.State() != gobreaker.StateOpen && !e.probing.Load() {
			return
		}
	}
}

const (
	// openFor is how long the circuit to a store that failed stays open.
	openFor    = time.Second
	awaitEvery = 20 * time.Millisecond
)

// probeSlowly probes the store with the usual timeout after a probe with the shorter one timed out.
// Otherwise a store that works, but needs longer than a probe may take, would never be used again.
// Meanwhile requests are answered without the store and without a wait.
func (e *Engine) probeSlowly() {
	defer e.probing.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), e.usualTimeout())
	defer cancel()
	id := probePrefix + e.cfg.NewID()
	_ = e.transact(ctx, time.Now(), func() error { // transact records the outcome
		return e.cfg.Store.Update(ctx, Batch{IDs: []string{id}}, func(s Snapshot) Changes {
			e.cache.invalidateOthers(&s.Others)
			return Changes{Receipts: []Receipt{{ID: id, Answer: []byte(`{}`), ExpiresAt: s.Now + receiptLife}}}
		})
	})
}

// probePrefix begins the ids of probes. It is not printable, so no request can have such an id.
const probePrefix = "probe\n"
