package engine

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/sony/gobreaker/v2"
)

// The errors of [Engine.Settle] beside those of every request.
var (
	ErrUnknownID       = errors.New("no consume is known under this id")
	ErrNothingToSettle = errors.New("the request of this id charged nothing that could be settled")
)

// reservation is what the receipt of a consume keeps beside its answer, so that its final cost can be set later.
type reservation struct {
	Cost   int64      `json:"cost"`
	Limits []reserved `json:"limits"`
}

// reserved is one limit of a reservation, and the counter's moment at which it was charged.
type reserved struct {
	Key       string `json:"key"`
	Name      string `json:"name"`
	Spec      Spec   `json:"spec"`
	Threshold int64  `json:"threshold"`
	User      string `json:"user,omitempty"`
	At        int64  `json:"at"`
}

// kept is the answer of a receipt. One of an older release has no reservation.
type kept struct {
	Decision
	Reservation *reservation `json:"reservation,omitempty"`
}

// keep gives what a receipt keeps of a request that was decided over the batch's states.
func (b *batch) keep(r *Request) ([]byte, error) {
	k := kept{Decision: r.decision}
	if r.Verb == Consume && r.decision.Allowed {
		k.Reservation = &reservation{Cost: r.Cost}
		for i, s := range b.states {
			l := &r.Limits[i]
			k.Reservation.Limits = append(k.Reservation.Limits, reserved{
				Key: l.Key, Name: l.Name, Spec: l.Spec(), Threshold: l.Threshold, User: l.User, At: s.counting().moment(),
			})
		}
	}
	return json.Marshal(k)
}

// limits gives back the limits that were charged.
func (r *reservation) limits() ([]Limit, error) {
	all := make([]Limit, len(r.Limits))
	for i, k := range r.Limits {
		l, err := k.Spec.Resolve(CounterID{Key: k.Key, Name: k.Name})
		if err != nil {
			return nil, fmt.Errorf("%w: limit %q %q: %w", ErrCorrupt, k.Key, k.Name, err)
		}
		l.Threshold, l.User = k.Threshold, k.User
		all[i] = l
	}
	return all, nil
}

// Settle sets the final cost of the consume that had the id, 0 to MaxAmount. What the work cost more is charged now,
// even past the limit, as a record does; what it cost less is given back to the window that was charged, if it still
// counts. The same cost again gets the same answer, another one ErrIDConflict. An id is known as long as its receipt:
// at least 10 minutes.
func (e *Engine) Settle(ctx context.Context, id string, cost int64) (Decision, error) {
	r := &Request{Verb: Settle, Cost: cost, ID: settleID(id), Fingerprint: sha256.Sum256(strconv.AppendInt(nil, cost, 10))}
	first, settled, err := e.receipts(ctx, id, r.ID)
	switch {
	case err != nil:
		return Decision{}, err
	case settled != nil:
		return settled.replay(r)
	case first == nil:
		return Decision{}, fmt.Errorf("settle %q: %w", id, ErrUnknownID)
	}
	var k kept
	if err := json.Unmarshal(first.Answer, &k); err != nil {
		return Decision{}, fmt.Errorf("settle %q: %w: %w", id, ErrCorrupt, err)
	}
	if k.Reservation == nil {
		return Decision{}, fmt.Errorf("settle %q: %w", id, ErrNothingToSettle)
	}
	if r.Limits, err = k.Reservation.limits(); err != nil {
		return Decision{}, fmt.Errorf("settle %q: %w", id, err)
	}
	r.reserved = k.Reservation
	return e.Do(ctx, r)
}

// settleID is the id of a settle's own receipt. No request can have it: ids that come over the bus are printable.
func settleID(id string) string { return "settle\n" + id }

// receipts reads two receipts, by a transaction that writes nothing.
func (e *Engine) receipts(ctx context.Context, first, second string) (a, b *Receipt, err error) {
	if e.breaker.State() == gobreaker.StateOpen {
		return nil, nil, unavailable("read receipts", *e.lastFailure.Load())
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.Deadline)
	defer cancel()
	ids := []string{first, second}
	slices.Sort(ids)
	err = e.cfg.Store.Update(ctx, Batch{IDs: ids}, func(s Snapshot) Changes {
		e.exhausted.forgetOthers(&s.Others)
		a, b = s.Receipts[0], s.Receipts[1]
		return Changes{}
	})
	if err != nil {
		return nil, nil, unavailable("read receipts", err)
	}
	if ids[0] != first {
		a, b = b, a
	}
	return a, b, nil
}

// decideSettle sets the final cost over the counters as the requests before left them. Where a limit was redefined
// since, no event is raised: it would speak of a limit that is gone.
func (b *batch) decideSettle(r *Request, newID func() string) {
	before := make([]int64, len(b.states))
	for i, s := range b.states {
		s.arrive(&r.Limits[i], b.now)
		before[i] = s.counting().used()
	}
	r.decision, r.err = r.settle(b.states, b.now), nil
	for i, slot := range r.slots {
		c, l, result := &b.counters[slot], &r.Limits[i], &r.decision.Results[i]
		switch used := c.state.counting().used(); {
		case used < before[i]:
			c.dirty, c.freed = true, true
		case used > before[i]:
			c.dirty = true
			if c.state.spec == l.hash() {
				b.overrun(c, l, result, newID)
			}
		}
	}
}

// overrun raises the events of a charge that may have gone past the limit.
func (b *batch) overrun(c *counter, l *Limit, result *Result, newID func() string) {
	if c.state.warn(l, b.now, result.Remaining) {
		b.events = append(b.events, b.event(EventWarning, l, result, newID))
	}
	if !result.Allowed {
		c.denied = true
		b.refused(c, result, newID)
	}
}

// delta is what is to be charged, below 0 what is to be given back.
func (r *Request) delta() int64 { return r.Cost - r.reserved.Cost }

// settle is what decide is for the other verbs, over states that have arrived at now. A limit that was redefined
// gives nothing back: its charges were carried over, and the moment of this one is no longer known.
func (r *Request) settle(states []*State, now int64) Decision {
	delta := r.delta()
	d := Decision{Allowed: true, Results: r.results()}
	for i := range r.Limits {
		fits := delta <= 0 || total(states, i, delta) <= states[i].remaining(&r.Limits[i])
		d.Results[i] = Result{Allowed: fits}
		d.Allowed = d.Allowed && fits
	}
	for i, s := range states {
		switch {
		case delta > 0:
			s.counting().charge(delta)
		case s.spec == r.Limits[i].hash():
			s.giveBack(-delta, r.reserved.Cost, r.reserved.Limits[i].At)
		}
	}
	for i := range r.Limits {
		d.Results[i].fill(&r.Limits[i], states[i], now, max(1, delta))
	}
	return d
}

// arrive brings the state to now without redefining it: to bring an old definition back could lose charges. What is
// charged to a fixed window that is over, and that another definition will begin anew, goes with it.
func (s *State) arrive(l *Limit, now int64) {
	switch {
	case s.spec == 0 || s.spec == l.hash():
		s.advance(l, now)
	case s.algorithm == TokenBucket:
		s.bucket.refill(now)
	case s.algorithm == FixedWindow:
		s.fixed.last = min(max(s.fixed.last, now), s.fixed.end-1)
	default:
		s.sliding.advance(l, now)
	}
}

// giveBack takes back a part of a charge that was made at a moment, as far as it still counts, and never what is lent.
//
// Of a token bucket, all that was refilled since is taken to be this charge's. To give more back could be too much:
// had the charge been less, the bucket may have been full in between, and what is refilled then is lost.
func (s *State) giveBack(cost, charged, at int64) {
	keep := s.lent.amount
	if s.algorithm == TokenBucket {
		cost = min(cost, charged-s.bucket.refilledSince(at))
		if keep > 0 {
			keep += s.bucket.refilledBy(s.lent.until)
		}
	}
	if cost = min(cost, s.counting().used()-keep); cost > 0 {
		s.counting().unlend(cost, at)
	}
}

// refilledSince is at least the tokens that came since a moment, up to what the bucket holds.
func (t *tokenBucket) refilledSince(at int64) int64 {
	since := *t
	since.level, since.fraction, since.last = 0, 0, at
	if since.refill(t.last); t.last <= at {
		return 0
	}
	return min(since.level+1, t.capacity())
}
