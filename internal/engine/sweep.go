package engine

import (
	"slices"
	"time"
)

const (
	// sweepEvery is how often ended leases are looked for.
	sweepEvery = 100 * time.Millisecond
	// renewAhead is how long before the end of a lease it is renewed, if it serves: more than the time between two sweeps, and
	// that of a transaction.
	renewAhead = 150
	// idleFor is how long after its last transaction a counter without a lease is no longer tracked.
	idleFor = 2 * time.Second
)

// tracked is a lease that every sweep looks at from a time on, as the time since leases.began: to settle it, or to forget it
// if it has no grant.
type tracked struct {
	from time.Duration
	*lease
}

func (x *leases) track(e *lease) {
	s, id := e.shard, e.limit.CounterID
	e.index, e.gone = len(s.tracked), false
	s.entries[id] = e
	s.tracked = append(s.tracked, tracked{lease: e})
	s.names[id.Name]++
	x.count.Add(1)
}

// remove stops tracking a counter.
func (x *leases) remove(e *lease) {
	s, id, last := e.shard, e.limit.CounterID, len(e.shard.tracked)-1
	s.tracked[e.index] = s.tracked[last]
	s.tracked[e.index].index = e.index
	s.tracked[last] = tracked{}
	s.tracked = s.tracked[:last]
	delete(s.entries, id)
	s.names.remove(id.Name)
	e.gone = true
	x.count.Add(-1)
}

// lookFrom has sweeps look at the lease from a time on.
func (e *lease) lookFrom(from time.Duration) { e.shard.tracked[e.index].from = from }

// watch has the lease, which a transaction leaves to the worker, settled when it ends.
func (x *leases) watch(e *lease) {
	if e.gone { // the transaction took longer than idleFor, and no broadcast has found it since
		x.track(e)
		e.end()
	}
	e.lookFrom(e.settleFrom(x.began))
}

// takeExpired returns requests to settle the leases that have ended at now, even if nothing is left
// of them, or are about to, and stops tracking idle counters. With all it returns requests to return all
// leases, also those for which one is queued.
func (x *leases) takeExpired(now time.Time, clock *clockReading, all bool) (rs []*Request) {
	passed := now.Sub(x.began)
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.Lock()
		for j := len(s.tracked) - 1; j >= 0; j-- { // backward, because remove puts the last one in the place of another
			if s.tracked[j].from > passed && !all {
				continue
			}
			e := s.tracked[j].lease
			switch {
			case e.amount == 0:
				x.remove(e)
			case e.clock.latest(now) > e.until+graceOf(e.limit.Algorithm):
				e.grant, e.tokens = grant{}, 0 // it is too late to give it back
			case all:
				rs = appendLimit(rs, returnLeases, &e.limit)
			case !e.queued:
				if verb, due := e.due(now, clock); due {
					e.queued = true
					rs = appendLimit(rs, verb, &e.limit)
				}
			}
		}
		s.mu.Unlock()
	}
	return rs
}

// settlesAhead reports whether the lease may be renewed before its end. One that ends with its window cannot last longer before
// that.
func (e *lease) settlesAhead() bool { return e.until == e.at+maxLease }

// settleFrom is when the lease is to be settled at the earliest, as the time since began.
func (e *lease) settleFrom(began time.Time) time.Duration {
	if e.ended {
		return 0
	}
	end := e.until
	if e.settlesAhead() {
		end -= renewAhead
	}
	return e.clock.sent.Sub(began) + time.Duration(end+1-e.clock.latest(e.clock.sent))*time.Millisecond
}

// due returns whether the lease is to be settled now, and whether it is to be renewed then. One that has served something is:
// the next request would otherwise wait for a transaction of its own. Another was not worth its write.
func (e *lease) due(now time.Time, clock *clockReading) (verb Verb, due bool) {
	over := e.ended || e.expired(now, clock)
	soon := e.settlesAhead() && e.clock.latest(now) > e.until-renewAhead
	switch {
	case (over || soon) && !e.ended && e.tokens < e.amount:
		return renewLeases, true
	case over:
		return returnLeases, true
	}
	return 0, false
}

// settleFailed notes that the request of takeExpired was not written.
func (x *leases) settleFailed(r *Request) {
	for i := range r.Limits {
		id := r.Limits[i].CounterID
		s := x.shard(id)
		s.mu.Lock()
		if e := s.entries[id]; e != nil {
			e.queued = false
		}
		s.mu.Unlock()
	}
}

// appendLimit adds a limit to the last of the requests with a verb, or to a new one if that is full.
func appendLimit(rs []*Request, v Verb, l *Limit) []*Request {
	for _, r := range slices.Backward(rs) {
		if r.Verb == v && len(r.Limits) < 64 {
			r.Limits = append(r.Limits, *l)
			return rs
		} else if r.Verb == v {
			break
		}
	}
	return append(rs, &Request{Verb: v, Limits: []Limit{*l}})
}

// leaseLoop gives back what is left of ended leases. It also drives the heartbeat and checks the
// running transaction.
func (e *Engine) leaseLoop() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	defer e.heartbeat.stop()
	for {
		select {
		case <-e.quit:
			return
		case <-tick.C:
		}
		e.heartbeat.beat()
		e.checkHung()
		if e.leases.count.Load() == 0 {
			continue
		}
		for _, r := range e.leases.takeExpired(time.Now(), e.clock.Load(), false) {
			if e.Submit(r) != nil {
				e.leases.settleFailed(r) // the queue is full: the next sweep tries again
			}
		}
	}
}

// returnLeases gives all leases back, before the engine stops.
func (e *Engine) returnLeases() {
	for _, r := range e.leases.takeExpired(time.Now(), e.clock.Load(), true) {
		b := e.newBatch()
		b.began = time.Now()
		b.add(r)
		e.commit(b)
	}
}
