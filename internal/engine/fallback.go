package engine

import (
	"errors"
	"math"
	"sync"
)

// degradedRetry is the retryAfter of a denial without the store, in milliseconds: the circuit is
// tried again by then.
const degradedRetry = 1000

// answerWithoutStore answers a request that the store did not decide, as its OnError says. Some
// errors remain, because any decision would be wrong: an id was used twice or is unknown; a refund
// or a settle was not written, nor a record, unless the local limiter takes it. ErrOverloaded
// remains too: a flood must not open the limits of others. The engine's own requests have no answer,
// and keep the error for reportAll.
func (e *Engine) answerWithoutStore(r *Request) {
	if r.Verb.internal() || errors.Is(r.err, ErrIDConflict) || errors.Is(r.err, ErrUnknownID) || errors.Is(r.err, ErrOverloaded) {
		return
	}
	if r.Refusal != nil && (r.Verb != Settle || errors.Is(r.err, r.Refusal)) { // a settle may have been made before
		r.err = r.Refusal
		return
	}
	if r.look || r.Verb == Refund || r.Verb == Settle || r.Verb == Record && r.OnError != OnErrorLocal {
		if isCircuitOpen(r.err) {
			r.err = e.cause() // it says more than that the circuit is open
		}
		r.err = unavailable(r.Verb.String(), r.err)
		return
	}
	r.err = nil
	if r.OnError == OnErrorLocal {
		r.decision = e.local.decide(r, e.now())
	} else {
		r.decision = fixedAnswer(r, e.now())
	}
	r.decision.Degraded = true
}

// fixedAnswer answers as if all limits were free, or none. Limits in shadow never deny.
func fixedAnswer(r *Request, now int64) Decision {
	d := Decision{Allowed: true, Results: r.makeResults()}
	for i := range r.Limits {
		l, res := &r.Limits[i], &d.Results[i]
		var s State
		res.Allowed, res.Spared = true, false
		res.fill(l, &s, now, r.Cost)
		if r.OnError != OnErrorAllow && !l.Shadow {
			d.Allowed = false
			res.Allowed, res.Remaining, res.RetryAfter, res.ResetAt = false, 0, degradedRetry, now+degradedRetry
		}
	}
	return d
}

// maxLocal bounds the counters of the local limiter. Beyond it one of a sample of evictionSample is
// evicted: one that is free again, or the least used, so that a flood of other keys does not evict
// the counters that deny.
const (
	maxLocal       = 65536
	evictionSample = 16
)

// localLimiter limits in the worker's memory in place of a store that fails. It only knows what
// this worker charged meanwhile.
type localLimiter struct {
	mu     sync.Mutex
	states map[CounterID]*State
}

func (m *localLimiter) init() { m.states = make(map[CounterID]*State) }

func (m *localLimiter) decide(r *Request, now int64) Decision {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Decide over copies, because a request that charges nothing must not move a counter to another
	// definition: that carries over what is used, and may free it sooner.
	states := make([]*State, len(r.Limits))
	for i := range r.Limits {
		states[i] = new(State)
		if known := m.states[r.Limits[i].CounterID]; known != nil {
			*states[i] = known.clone()
		}
	}
	d := r.decide(states, now)
	for i := range r.Limits {
		if r.charges(&d, i) {
			m.put(r.Limits[i].CounterID, states[i], now)
		}
	}
	return d
}

// put stores a counter that was charged.
func (m *localLimiter) put(id CounterID, s *State, now int64) {
	if m.states[id] == nil && len(m.states) >= maxLocal {
		delete(m.states, m.leastUsed(now))
	}
	m.states[id] = s
}

// leastUsed returns the least used counter of a sample; one that is free again counts as unused.
func (m *localLimiter) leastUsed(now int64) (least CounterID) {
	seen, leastUse := 0, int64(math.MaxInt64)
	for id, s := range m.states { // in random order
		used := s.counting().used()
		if s.counting().freeAt() <= now {
			used = 0
		}
		if used < leastUse {
			least, leastUse = id, used
		}
		if seen++; seen == evictionSample {
			break
		}
	}
	return least
}
