package engine

import (
	"errors"
	"math"
	"sync"

	"github.com/sony/gobreaker/v2"
)

// degradedRetry is the retryAfter of a denial for want of the store, in milliseconds: by then its circuit is
// tried again.
const degradedRetry = 1000

func isCircuitOpen(err error) bool {
	return errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests)
}

// answerWithoutStore answers a request that the store failed, as its OnError says. What cannot be guessed stays an
// error: a refund or a record that was not written, and an id used twice or not known. So does what waited too long for a store
// that works: a flood must not open the limits of others. A limiter in memory can record.
func (e *Engine) answerWithoutStore(r *Request) {
	if errors.Is(r.err, ErrIDConflict) || errors.Is(r.err, ErrUnknownID) || errors.Is(r.err, ErrOverloaded) {
		return
	}
	if r.Refusal != nil {
		r.err = r.Refusal
		return
	}
	if r.Verb == Refund || r.Verb == Settle || r.Verb == Record && r.OnError != OnErrorLocal {
		if isCircuitOpen(r.err) {
			r.err = e.cause() // which says why
		}
		r.err = unavailable(r.Verb.String(), r.err)
		return
	}
	r.err = nil
	switch r.OnError {
	case OnErrorLocal:
		r.decision = e.local.decide(r, e.now())
	default:
		r.decision = fixedAnswer(r, e.now())
	}
	r.decision.Degraded = true
}

// fixedAnswer answers for all limits alike: everything is free, or nothing. What is in shadow never refuses.
func fixedAnswer(r *Request, now int64) Decision {
	allow := r.OnError == OnErrorAllow
	d := Decision{Allowed: true, Results: r.makeResults()}
	for i := range r.Limits {
		l, res := &r.Limits[i], &d.Results[i]
		var s State
		s.advance(l, now)
		res.Allowed = true
		res.fill(l, &s, now, r.Cost)
		if !allow && !l.Shadow {
			d.Allowed = false
			res.Allowed, res.Remaining, res.RetryAfter, res.ResetAt = false, 0, degradedRetry, now+degradedRetry
		}
	}
	return d
}

// localMost bounds the counters of the local limiter. Beyond it one of localSought goes, one that is free again or has the least used: a
// flood of others must not have those forgotten that deny.
const (
	maxLocal       = 65536
	evictionSample = 16
)

// localLimiter is a limiter in the worker's memory. It stands in for a store that fails, and knows only what this worker
// charged meanwhile.
type localLimiter struct {
	mu     sync.Mutex
	states map[CounterID]*State
}

func (m *localLimiter) init() { m.states = make(map[CounterID]*State) }

func (m *localLimiter) decide(r *Request, now int64) Decision {
	m.mu.Lock()
	defer m.mu.Unlock()
	// Copies, because what a request charges nothing to it leaves as it is: to bring it under another definition is to carry what is
	// used over into that, from where it may be gone the sooner.
	states := make([]*State, len(r.Limits))
	for i := range r.Limits {
		states[i] = new(State)
		if known := m.states[r.Limits[i].CounterID]; known != nil {
			*states[i] = known.clone()
		}
	}
	d := r.decide(states, now)
	for i := range r.Limits {
		l := &r.Limits[i]
		known := m.states[l.CounterID]
		switch {
		case r.charges(&d, i), r.Verb == Refund && known != nil && known.spec == l.hash():
			m.put(l.CounterID, states[i], now)
		case r.Verb == Refund && known != nil:
			known.refund(r.Cost)
		}
	}
	return d
}

// put keeps a counter that something was charged to.
func (m *localLimiter) put(id CounterID, s *State, now int64) {
	if m.states[id] == nil && len(m.states) >= maxLocal {
		var least CounterID
		sought, used := 0, int64(math.MaxInt64)
		for other, o := range m.states { // in no order
			has := o.counting().used()
			if o.counting().freeAt() <= now {
				has = 0
			}
			if has < used {
				least, used = other, has
			}
			if sought++; sought == evictionSample {
				break
			}
		}
		delete(m.states, least)
	}
	m.states[id] = s
}
