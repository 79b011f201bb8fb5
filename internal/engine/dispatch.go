package engine

import (
	"context"
	"time"

	"github.com/sony/gobreaker/v2"
)

// maxBatchLimits bounds the limits of one batch.
const maxBatchLimits = 4096

// writer forms batches of queued requests and has the store run one transaction for each, one after
// another. Requests are decided in order of arrival.
type writer struct {
	e *Engine
	// first was taken from the queue and is not in a batch yet; nil for none.
	first *Request
	// served are requests that leases answered while the batch was gathered, as of now.
	served *batch
	now    time.Time
}

// writeLoop writes until the engine is closed and the queue is empty. There is no timer: an idle
// writer takes what is queued at once.
func (e *Engine) writeLoop() {
	defer close(e.answers)
	w := &writer{e: e}
	for b := w.next(); b != nil; b = w.next() {
		e.commit(b)
		e.answers <- b
	}
	e.awaitProbe()
	e.returnLeases()
	e.unreported = e.reportAll()
}

// next returns the next batch as soon as there is one, or nil when the engine is closed and the queue
// is empty.
func (w *writer) next() *batch {
	for w.awaitRequest() {
		began := time.Now()
		turn := w.awaitTurn()
		if b := w.gather(); b != nil {
			b.turn, b.began = turn, began
			return b
		}
		if turn != nil {
			turn.End()
		}
	}
	return nil
}

// awaitRequest waits for a request; it is false if the engine is closed and there is none.
func (w *writer) awaitRequest() bool {
	if w.first != nil {
		return true
	}
	select {
	case r := <-w.e.queue:
		w.first = w.e.dequeued(r)
		return true
	case <-w.e.quit:
	}
	w.first = w.take() // no request can be queued after quit is closed, because Close sets closed before
	return w.first != nil
}

// awaitTurn waits for this worker's turn, if the store has turns. Requests that arrive meanwhile join
// the batch.
func (w *writer) awaitTurn() Turn {
	store, ok := w.e.cfg.Store.(Waiter)
	if !ok || w.e.breaker.State() != gobreaker.StateClosed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.e.cfg.Deadline/4)
	defer cancel()
	return store.Await(ctx)
}

// take returns the next queued request; nil if there is none.
func (w *writer) take() *Request {
	if r := w.first; r != nil {
		w.first = nil
		return r
	}
	select {
	case r := <-w.e.queue:
		return w.e.dequeued(r)
	default:
		return nil
	}
}

// gather makes a batch of the queued requests; nil if leases have answered them all.
func (w *writer) gather() *batch {
	b := w.e.newBatch()
	w.now = time.Now()
	for len(b.requests) < w.e.cfg.MaxBatch {
		r := w.take()
		if r == nil {
			break
		}
		if w.serve(r) {
			continue
		}
		if b.limitCount > 0 && b.limitCount+len(r.Limits) > maxBatchLimits {
			w.first = r
			break
		}
		b.add(r)
	}
	if w.served != nil {
		w.e.answers <- w.served
		w.served = nil
	}
	if len(b.requests) == 0 {
		w.e.reuse(b)
		return nil
	}
	w.e.leases.addRenewals(b, w.e.cfg.MaxBatch)
	return b
}

// serve answers the request from a lease that began while the request waited. A look at the status wants the store's answer.
func (w *writer) serve(r *Request) bool {
	if r.look {
		return false
	}
	now := w.now
	if r.Received.After(now) { // it arrived while the batch was gathered
		now = r.Received
	}
	decision, ok := w.e.leases.serve(r, now, w.e.clock.Load())
	if !ok {
		return false
	}
	r.decision = decision
	if w.served == nil {
		w.served = w.e.newBatch()
	}
	w.served.requests = append(w.served.requests, r)
	return true
}

// newBatch returns a spare batch, or a new one.
func (e *Engine) newBatch() *batch {
	select {
	case b := <-e.spare:
		return b
	default:
		return newBatch()
	}
}

// reuse keeps a batch for newBatch. Its requests must have been answered.
func (e *Engine) reuse(b *batch) {
	b.clear()
	select {
	case e.spare <- b:
	default:
	}
}
