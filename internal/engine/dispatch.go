package engine

import (
	"context"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
)

// maxBatchLimits bounds the counters of one batch.
const maxBatchLimits = 4096

// dispatcher forms batches of what waits for the writers. Two batches that are written at the same time never share a
// counter, so the requests of one counter are decided in order of arrival.
//
// The writers take turns to lead: who has the turn forms a batch, passes the turn on and writes the batch itself. So
// nothing is handed from one goroutine to another before the answers.
type dispatcher struct {
	e *Engine
	// turn holds its one token while nobody leads; the leader alone uses what is below done.
	turn chan struct{}
	// done are batches that were written.
	done chan *batch
	// waiting are requests that share a counter with a batch being written, in order of arrival.
	waiting []*Request
	// busy are the counters of the batches being written, each with its batch.
	busy map[CounterID]*batch
	// blocked are the counters of waiting requests: a later one must not overtake them.
	blocked map[CounterID]struct{}
	// served are the requests that leases have answered meanwhile, at now.
	served *batch
	now    time.Time
}

// dispatchLoop runs the writers until the engine is closed and nothing waits. There is no timer: an idle writer takes
// at once what waits.
func (e *Engine) dispatchLoop() {
	defer close(e.answers)
	d := &dispatcher{
		e: e, turn: make(chan struct{}, 1), done: make(chan *batch, e.cfg.Writers),
		busy: make(map[CounterID]*batch), blocked: make(map[CounterID]struct{}),
	}
	d.turn <- struct{}{}
	var writers sync.WaitGroup
	for range e.cfg.Writers {
		writers.Go(d.writeLoop)
	}
	writers.Wait()
	d.reap()
	e.returnLeases()
	e.keepDenials()
}

func (d *dispatcher) writeLoop() {
	for {
		<-d.turn
		b := d.next()
		d.turn <- struct{}{}
		if b == nil {
			return
		}
		d.e.commit(b)
		d.done <- b
	}
}

// next gives a batch, as soon as there is one to write, or nil when the engine is closed and nothing waits.
func (d *dispatcher) next() *batch {
	for {
		d.reap()
		turn := d.await()
		if b := d.gather(); b != nil {
			b.turn = turn
			return b
		}
		if turn != nil {
			turn.End()
		}
		if len(d.waiting) >= d.e.cfg.Queue {
			d.finished(<-d.done)
			continue
		}
		quit := d.e.quit
		if len(d.waiting) > 0 {
			quit = nil // a writer has to be done first
		}
		select {
		case r := <-d.e.queue:
			d.waiting = append(d.waiting, r)
		case b := <-d.done:
			d.finished(b)
		case <-quit:
			// None can come between the check and the end: Close has seen to it.
			if len(d.e.queue) == 0 {
				return nil
			}
		}
	}
}

// await waits for the turn of what waits, where the store has turns: what comes meanwhile goes into the same batch.
func (d *dispatcher) await() Turn {
	store, ok := d.e.cfg.Store.(Waiter)
	if !ok || len(d.e.queue)+len(d.waiting) == 0 || d.e.breaker.State() != gobreaker.StateClosed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.e.cfg.Deadline/2)
	defer cancel()
	return store.Await(ctx)
}

// reap finishes the batches that were written meanwhile.
func (d *dispatcher) reap() {
	for {
		select {
		case b := <-d.done:
			d.finished(b)
		default:
			return
		}
	}
}

// finished frees the counters of a batch and hands it on to be answered, before any of its counters can be in another.
func (d *dispatcher) finished(b *batch) {
	for _, id := range b.claimed {
		delete(d.busy, id)
	}
	d.e.answers <- b
}

// gather makes a batch of what may be written now; nil when there is nothing.
func (d *dispatcher) gather() *batch {
	b := d.e.newBatch()
	d.now = time.Now()
	clear(d.blocked)
	kept := d.waiting[:0]
	for _, r := range d.waiting {
		if !d.serve(r) && !d.take(b, r) {
			kept = append(kept, r)
		}
	}
	clear(d.waiting[len(kept):])
	d.waiting = kept
	for d.hasRoom(b) && len(d.waiting) < d.e.cfg.Queue {
		select {
		case r := <-d.e.queue:
			if !d.serve(r) && !d.take(b, r) {
				d.waiting = append(d.waiting, r)
			}
			continue
		default:
		}
		break
	}
	d.e.waiting.Store(int64(len(d.waiting)))
	d.handOut()
	if len(b.requests) == 0 {
		d.e.reuse(b)
		return nil
	}
	return b
}

// serve answers from a lease that began while the request waited.
func (d *dispatcher) serve(r *Request) bool {
	decision, ok := d.e.leases.serve(r, d.now)
	if !ok {
		return false
	}
	r.decision = decision
	if d.served == nil {
		d.served = d.e.newBatch()
	}
	d.served.requests = append(d.served.requests, r)
	return true
}

// handOut has what was served answered.
func (d *dispatcher) handOut() {
	if d.served != nil {
		d.e.answers <- d.served
		d.served = nil
	}
}

func (d *dispatcher) hasRoom(b *batch) bool {
	return len(b.requests) < d.e.cfg.MaxBatch && b.limits < maxBatchLimits
}

// take adds a request to the batch, unless it has to wait.
func (d *dispatcher) take(b *batch, r *Request) bool {
	free, claimed := d.hasRoom(b), true
	for i := range r.Limits {
		id := r.Limits[i].CounterID
		by := d.busy[id]
		claimed = claimed && by == b
		free = free && (by == nil || by == b)
		if len(d.blocked) > 0 {
			_, held := d.blocked[id]
			free = free && !held
		}
	}
	switch {
	case !free:
		for i := range r.Limits {
			d.blocked[r.Limits[i].CounterID] = struct{}{}
		}
		return false
	case !claimed:
		d.claim(b, r)
	}
	b.add(r)
	return true
}

// claim makes the counters of a request the batch's own.
func (d *dispatcher) claim(b *batch, r *Request) {
	for i := range r.Limits {
		if id := r.Limits[i].CounterID; d.busy[id] == nil {
			d.busy[id] = b
			b.claimed = append(b.claimed, id)
		}
	}
}
