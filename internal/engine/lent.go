package engine

import (
	"encoding/binary"
	"math/bits"
)

const (
	// maxLease bounds how long a worker serves from what it charged ahead, in milliseconds.
	maxLease = 1000
	// minLease is the shortest lease worth its write, in milliseconds.
	minLease = 10
	// leaseGrace is how long after its end what was not served may be given back, in milliseconds.
	leaseGrace = 500
	// leaseFraction is the part of what remains that one lease may take.
	leaseFraction = 8
)

// lent is what workers charged ahead to a counter and neither spent nor gave back, as far as the store knows. What a worker
// lost that died is not told from the rest, so it is kept in two generations: leases are of the newer, and when it is old
// enough for another to begin, all of the older are over. The newer is empty only when both are.
type lent struct{ newer, older loans }

// generationLength is for how long leases are of one generation, in milliseconds: as long as the last of the older may last.
const generationLength = maxLease + leaseGrace

// loans are the leases of one generation.
type loans struct {
	amount int64
	// until is when the last of it can be given back, since when there was always some: that tells it from what was
	// lent of a counter that was reset.
	until, since int64
}

func (t *lent) amount() int64 { return t.newer.amount + t.older.amount }
func (t *lent) until() int64  { return max(t.newer.until, t.older.until) }

// add notes a lease, and gives the beginning of its generation.
func (t *lent) add(amount, now, until int64) (since int64) {
	if t.newer.amount > 0 && now-t.newer.since > generationLength {
		t.older, t.newer = t.newer, loans{}
	}
	if t.newer.amount == 0 {
		t.newer.since = now
	}
	t.newer.amount += amount
	t.newer.until = max(t.newer.until, until)
	return t.newer.since
}

// generationOf gives the loans of the generation that began then.
func (t *lent) generationOf(since int64) *loans {
	switch {
	case t.newer.amount > 0 && t.newer.since == since:
		return &t.newer
	case t.older.amount > 0 && t.older.since == since:
		return &t.older
	}
	return nil
}

// trim ends what is over at now, and what is more than is used: it left the window, or was refilled, and is not given back.
func (t *lent) trim(now, used int64) {
	for _, g := range []*loans{&t.newer, &t.older} {
		g.amount = min(g.amount, used)
		if g.amount <= 0 || now > g.until {
			*g = loans{}
		}
		used -= g.amount
	}
	t.promoteOlder()
}

func (t *lent) promoteOlder() {
	if t.newer.amount == 0 {
		t.newer, t.older = t.older, loans{}
	}
}

func (t *lent) append(b []byte) []byte {
	for _, g := range []*loans{&t.newer, &t.older} {
		if g.amount > 0 {
			b = binary.AppendVarint(b, g.amount)
			b = binary.AppendVarint(b, g.until)
			b = binary.AppendVarint(b, g.until-g.since)
		}
	}
	return b
}

func (t *lent) decode(d *decoder) {
	t.newer.decode(d)
	if !d.bad && len(d.b) > 0 {
		t.older.decode(d)
	}
}

func (g *loans) decode(d *decoder) {
	g.amount = d.between(1, MaxAmount*2)
	g.until = d.between(-farFuture, farFuture)
	g.since = g.until - d.between(0, farFuture)
}

// lease charges up to want ahead, so that one worker may serve it from memory until the given moment. It gives 0 when
// a lease could break what the limit promises:
//
//   - a fixed window ends its leases, and a sliding window's end with their sub-bucket: what is served counts as if it
//     was charged when it was lent;
//   - a token bucket must not be full, beside what is lent, before that is served or given back: what is lent would be
//     refilled. So at any moment used - lent ≥ rate · (until - now).
//
// It never takes more than a part of what remains, and never reaches the threshold of the warning, so that the crossing
// is decided, and its event written, with the request that crosses it.
func (s *State) lease(l *Limit, want int64) (amount, until, since int64) {
	remaining := s.remaining(l)
	amount = min(want, remaining/leaseFraction)
	if remaining > l.Threshold {
		amount = min(amount, remaining-max(0, l.Threshold)-1)
	}
	now := s.counting().moment()
	until = min(now+maxLease, s.counting().steadyUntil())
	if s.algorithm == TokenBucket {
		until = min(until, now+s.bucket.notFullFor(s.lent.amount())-leaseGrace)
	}
	if amount <= 0 || until < now+minLease {
		return 0, 0, 0
	}
	s.counting().charge(amount)
	return amount, until, s.lent.add(amount, now, until+leaseGrace)
}

// settle ends a lease: of the amount that was lent at a moment, what is unused is taken back. It tells whether the
// counter knows of the lease; one that was reset, or for which it is too late, does not.
func (s *State) settle(amount, unused, at, since int64) bool {
	g := s.lent.generationOf(since)
	if g == nil {
		return false
	}
	s.counting().uncharge(min(unused, g.amount), at)
	if g.amount -= amount; g.amount <= 0 {
		*g = loans{}
		s.lent.promoteOlder()
	}
	return true
}

// refund gives cost back, down to what is lent: that is still to be served.
func (s *State) refund(cost int64) {
	keep := s.lent.amount()
	if keep > 0 && s.algorithm == TokenBucket {
		keep += s.bucket.refilledBy(s.lent.until())
	}
	if cost = min(cost, s.counting().used()-keep); cost > 0 {
		s.counting().refund(cost)
	}
}

// notFullFor gives the milliseconds for which the bucket is sure not to be full, beside what is lent.
func (t *tokenBucket) notFullFor(lent int64) int64 {
	const most = maxLease + leaseGrace
	// Used counts a token that is not whole yet.
	hi, lo := bits.Mul64(uint64(max(0, t.used()-lent-1)), uint64(t.window))
	if hi > 0 || lo/uint64(t.limit) > most {
		return most
	}
	return int64(lo / uint64(t.limit))
}

// refilledBy gives the tokens that come until then, and two for those that are not whole.
func (t *tokenBucket) refilledBy(then int64) int64 {
	return max(0, min(then-t.last, maxLease+leaseGrace))*max(t.limit, t.oldLimit)/t.window + 2
}
