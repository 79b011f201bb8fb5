package engine

import "time"

// maxBatchLimits bounds the counters of one batch.
const maxBatchLimits = 4096

// dispatcher forms batches of what waits and gives them to writers. Two batches that are written at the same time
// never share a counter, so the requests of one counter are decided in order of arrival.
type dispatcher struct {
	e    *Engine
	work chan *batch
	done chan *batch
	// idle counts writers without a batch.
	idle int
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
		e: e, idle: e.cfg.Writers, work: make(chan *batch), done: make(chan *batch, e.cfg.Writers),
		busy: make(map[CounterID]*batch), blocked: make(map[CounterID]struct{}),
	}
	for range e.cfg.Writers {
		e.done.Go(d.writeLoop)
	}
	for d.step() {
	}
	close(d.work)
	e.returnLeases()
	e.keepDenials()
}

func (d *dispatcher) writeLoop() {
	for b := range d.work {
		d.e.commit(b)
		d.done <- b
	}
}

// step hands out one batch, or waits for what makes one possible. It gives false when the engine is closed and all is
// answered.
func (d *dispatcher) step() bool {
	if d.idle == 0 {
		d.finished(<-d.done)
		return true
	}
	if b := d.gather(); b != nil {
		d.idle--
		d.work <- b
		return true
	}
	if len(d.waiting) >= d.e.cfg.Queue {
		d.finished(<-d.done)
		return true
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
		if len(d.e.queue) == 0 {
			return d.drain()
		}
	}
	return true
}

// drain waits for the last writers. Between the check for requests and the end none can come: Close has seen to it.
func (d *dispatcher) drain() bool {
	if d.idle < d.e.cfg.Writers {
		d.finished(<-d.done)
		return true
	}
	return false
}

// finished frees the counters of a batch and hands it on to be answered, before any of its counters can be in another.
func (d *dispatcher) finished(b *batch) {
	for _, r := range b.requests {
		for i := range r.Limits {
			delete(d.busy, r.Limits[i].CounterID)
		}
	}
	d.idle++
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
	free := d.hasRoom(b)
	for i := range r.Limits {
		id := r.Limits[i].CounterID
		if by := d.busy[id]; by != nil && by != b {
			free = false
		}
		if len(d.blocked) > 0 {
			if _, held := d.blocked[id]; held {
				free = false
			}
		}
	}
	for i := range r.Limits {
		if id := r.Limits[i].CounterID; free {
			d.busy[id] = b
		} else {
			d.blocked[id] = struct{}{}
		}
	}
	if free {
		b.add(r)
	}
	return free
}
