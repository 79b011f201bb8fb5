package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The errors of a [Settle], besides those of every request.
var (
	ErrUnknownID       = errors.New("no consume found with this id")
	ErrNothingToSettle = errors.New("the request with this id has no charge to settle")
)

// reservation is stored in the receipt of a consume, beside the answer, so that its final cost can
// be set later.
type reservation struct {
	Cost   int64           `json:"cost"`
	Limits []reservedLimit `json:"limits"`
}

// reservedLimit is one limit of a reservation. At is the counter's moment when it was charged, and
// Since the state's since at that time; 0 if not known.
type reservedLimit struct {
	Key       string `json:"key"`
	Name      string `json:"name"`
	Spec      Spec   `json:"spec"`
	Threshold int64  `json:"threshold"`
	User      string `json:"user,omitempty"`
	Shadow    bool   `json:"shadow,omitempty"`
	At        int64  `json:"at"`
	Since     int64  `json:"since,omitempty"`
}

// stillCounts reports whether a charge under l is still among what the counter counts: since then
// the counter was neither reset nor redefined in more than its amount.
func (k *reservedLimit) stillCounts(s *State, l *Limit) bool {
	if k.Since == 0 {
		return s.spec == l.hash() && k.At >= s.since
	}
	return k.Since == s.since
}

// forOtherConsume reports whether the receipt is of a settle of another consume than the one that r
// settles, under the same id. A settle's receipt is written after its consume's and kept for as
// long, so it may outlast that.
func (p *Receipt) forOtherConsume(r *Request) bool {
	if r.consumeExpiry == 0 {
		return false // it is no settle
	}
	a, err := p.decode()
	return err == nil && a.ConsumeExpiry != 0 && a.ConsumeExpiry != r.consumeExpiry
}

// consumeReplaced reports whether a new consume took the id while the settle waited. Only the
// consume's receipt tells: the expiries cannot be compared, since the store's clock may have been
// set back between them.
func (b *batch) consumeReplaced(r *Request) bool {
	var consume *Receipt
	if slot, ok := slices.BinarySearch(b.receiptIDs, r.ConsumeID()); ok { // it may be of this batch
		consume = b.receipts[slot]
	} else if b.unsure = b.unsure || len(b.consumes) == 0; !b.unsure {
		slot, _ = slices.BinarySearch(b.consumeIDs, r.ConsumeID())
		consume = b.consumes[slot]
	}
	return consume != nil && consume.ExpiresAt != r.consumeExpiry
}

// limits returns the limits that were charged.
func (r *reservation) limits() ([]Limit, error) {
	all := make([]Limit, len(r.Limits))
	for i, k := range r.Limits {
		l, err := k.Spec.Resolve(CounterID{Key: k.Key, Name: k.Name})
		if err != nil {
			return nil, fmt.Errorf("%w: limit %q %q: %w", ErrCorrupt, k.Key, k.Name, err)
		}
		l.Threshold, l.User, l.Shadow = k.Threshold, k.User, k.Shadow
		all[i] = l
	}
	return all, nil
}

// settleID is the id of a settle's own receipt. It is not printable, so no request can have it.
func settleID(id string) string { return settlePrefix + id }

// ConsumeID is, after Submit, the id of the consume that is settled.
func (r *Request) ConsumeID() string { return strings.TrimPrefix(r.ID, settlePrefix) }

const settlePrefix = "settle\n"

// decideSettle sets the final cost over the counters as the earlier requests of the batch left
// them. If a limit was redefined since, no event is raised: it would be about a limit that no
// longer exists. Another amount of the same window, as of another tier, is no such change.
func (b *batch) decideSettle(r *Request) {
	redefined := make([]bool, len(b.states))
	for i, s := range b.states {
		redefined[i] = s.spec != 0 && s.spec != r.Limits[i].hash() && !s.sameWindow(&r.Limits[i])
		s.advanceInPlace(&r.Limits[i], b.now)
		b.counters[r.slots[i]].before = s.usage()
	}
	r.decision, r.err = r.settle(b.states, b.now), nil
	for i, slot := range r.slots {
		c, l, result := &b.counters[slot], &r.Limits[i], &r.decision.Results[i]
		switch now := c.state.usage(); {
		case now.used < c.before.used, now.used == c.before.used && now.fraction > c.before.fraction:
			c.freed = true
			b.keepGivenBack(c)
		case now.used > c.before.used:
			if !redefined[i] {
				b.reportOverrun(c, l, result, r.costDelta())
			}
			b.keepCharged(c)
		case !c.charged:
			c.rewind() // also to its definition
		}
	}
}

// usage is what is used of a counter, and for a token bucket the refilled fraction of the last token. For another counter the
// fraction is of a bucket that it may have been before, and stays the same.
type usage struct{ used, fraction int64 }

func (s *State) usage() usage { return usage{s.counting().used(), s.bucket.fraction} }

// reportOverrun raises the events of a charge that may have passed the limit. The counter keeps its
// definition if that has another amount.
func (b *batch) reportOverrun(c *counter, l *Limit, result *Result, cost int64) {
	stored := c.limit
	c.limit = l
	if c.state.warn(l, b.now, result.Remaining) {
		b.raise(EventWarning, l, result)
	}
	if !result.Allowed {
		b.countDenial(c, result, cost)
	}
	if c.state.spec != l.hash() {
		c.limit = stored
	} else if !result.Allowed {
		c.denied = true
	}
}

// costDelta is what is still to be charged; negative if cost is to be given back.
func (r *Request) costDelta() int64 { return r.Cost - r.reservation.Cost }

// settle is decide for a settle; the states must have been advanced in place. A limit that was
// redefined in more than its amount gives nothing back: its charges were carried over, and it is
// not known when this one was made. Nor does a limit that was reset: its charge is gone.
func (r *Request) settle(states []*State, now int64) Decision {
	delta := r.costDelta()
	d := Decision{Allowed: true, Results: r.makeResults()}
	for i, s := range states {
		l := &r.Limits[i]
		d.judge(i, l, delta <= s.remaining(l))
	}
	d.Shadow = d.Shadow && d.Allowed
	for i, s := range states {
		switch {
		case delta > 0:
			s.counting().charge(delta)
		case r.reservation.Limits[i].stillCounts(s, &r.Limits[i]):
			s.refundCharge(-delta, r.reservation.Cost, r.reservation.Limits[i].At)
		}
	}
	for i := range r.Limits {
		d.Results[i].fill(&r.Limits[i], states[i], now, delta)
	}
	return d
}

// advanceInPlace brings the state to now without redefining it, because a return to an old
// definition could lose charges. An exception is a fixed window that has ended and that the stored
// definition would begin anew: what is charged to it would vanish, so it is redefined.
func (s *State) advanceInPlace(l *Limit, now int64) {
	switch {
	case s.spec == 0 || s.spec == l.hash():
		s.advance(l, now)
	case s.algorithm == TokenBucket:
		s.bucket.refill(now)
	case s.algorithm == FixedWindow && l.Algorithm == FixedWindow && s.fixed.sameDefinition(l) && s.fixed.ended(l, now):
		// The ended window has nothing to lose. The stored definition then takes over what is
		// charged now, as from any other definition: its own window may begin at another moment.
		s.redefine(l, now)
	case s.algorithm == FixedWindow:
		s.fixed.last = min(max(s.fixed.last, now), s.fixed.end-1)
	default:
		s.sliding.advance(l, now)
	}
	s.trimLent()
}

// refundCharge takes back part of a charge that was made at a moment, as far as it still counts,
// and never what is lent.
//
// For a token bucket, all that was refilled since counts as refilled for this charge. To give back
// more could be too much: with a smaller charge the bucket might have been full in between, and
// refill would have been lost.
func (s *State) refundCharge(cost, charged, at int64) {
	keep := s.lent.amount()
	if s.algorithm == TokenBucket {
		left, fraction := s.bucket.unrefilled(charged, at)
		if keep > 0 {
			keep += s.bucket.refilledBy(s.lent.until())
		}
		if left >= 0 && left < cost && s.bucket.used() > keep {
			s.bucket.addFraction(fraction)
		}
		cost = min(cost, left)
	}
	if cost = min(cost, s.counting().used()-keep); cost > 0 {
		s.counting().uncharge(cost, at)
	}
}

// unrefilled is what is still missing of a charge that was made at a moment, if all that was
// refilled since counts as refilled for it: whole tokens, negative for none, and of one more the part that is left, which may
// be all of it.
func (t *tokenBucket) unrefilled(charged, at int64) (tokens, fraction int64) {
	since := *t
	since.level, since.fraction, since.last, since.oldDebt = 0, 0, at, 0
	since.refill(t.last)
	return charged - since.level - 1, t.window - since.fraction
}
