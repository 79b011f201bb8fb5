package engine

import (
	"encoding/binary"
	"math/bits"
)

const (
	// maxLease is how long a worker may serve from what it charged ahead, in milliseconds.
	maxLease = 1000
	// minLease is the shortest lease that is worth its write, in milliseconds.
	minLease = 10
	// leaseGrace is for how long after the end of a lease its rest may be given back, in milliseconds: the process may be
	// suspended, or the store be down. A token bucket refills meanwhile, so bucketGrace, which its leases have to leave room
	// for, is less.
	leaseGrace, bucketGrace = 10_000, 500
	// leaseFraction bounds a lease: it takes at most 1/leaseFraction of what remains.
	leaseFraction = 8
)

// lent is what workers charged ahead to a counter and have not settled yet, as far as the store
// knows. The state cannot tell a lease of a worker that died from the others. So leases are kept in
// two generations: new ones belong to the newer, and by the time a third generation begins all
// leases of the older have ended. The newer is empty only if both are.
type lent struct{ newer, older loans }

func graceOf(a Algorithm) int64 {
	if a == TokenBucket {
		return bucketGrace
	}
	return leaseGrace
}

// loans are the leases of one generation.
type loans struct {
	amount int64
	// until is when the last of them can be given back. since is when the first of them began; it
	// tells them from the leases of a counter before its reset.
	until, since int64
}

func (t *lent) amount() int64 { return t.newer.amount + t.older.amount }
func (t *lent) until() int64  { return max(t.newer.until, t.older.until) }

// add adds a lease that can be given back until then, and returns the beginning of its generation. Leases belong to one
// generation for as long as any of them could be given back, so when the newer generation is that old, all leases of the
// older have ended.
func (t *lent) add(amount, now, until, grace int64) (since int64) {
	if now-t.newer.since > maxLease+grace {
		t.older, t.newer = t.newer, loans{}
	}
	if t.newer.amount == 0 {
		t.newer.since = now
	}
	t.newer.amount += amount
	t.newer.until = max(t.newer.until, until)
	return t.newer.since
}

// generationOf returns the loans of the generation that began at since; nil if there are none.
func (t *lent) generationOf(since int64) *loans {
	switch {
	case t.newer.amount > 0 && t.newer.since == since:
		return &t.newer
	case t.older.amount > 0 && t.older.since == since:
		return &t.older
	}
	return nil
}

// trim drops loans that have ended at now, and what exceeds used: it has left the window or was
// refilled, and cannot be given back.
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
	if len(d.b) > 0 {
		t.older.decode(d)
	}
}

func (g *loans) decode(d *decoder) {
	g.amount = d.between(1, MaxAmount*2)
	g.until = d.between(-farFuture, farFuture)
	g.since = g.until - d.between(0, farFuture)
}

// chargeAhead charges up to want ahead, so that one worker may serve it from memory up to until. The
// amount is 0 if a lease could break what the limit promises:
//
//   - A lease ends with its fixed window, or with its sub-bucket of a sliding window, because what
//     is served counts as charged at the moment of the lease.
//   - A token bucket must not become full, apart from what is lent, before that is served or given
//     back. Otherwise what is lent would be refilled too. So at any moment used - lent ≥ rate ·
//     (until - now).
//
// It takes only a fraction of what remains, and never reaches the threshold of the warning: the
// request that crosses it is decided by the store, which writes its event.
func (s *State) chargeAhead(l *Limit, want int64) (amount, until, since int64) {
	remaining := s.remaining(l)
	amount = min(want, remaining/leaseFraction)
	if remaining > l.Threshold {
		amount = min(amount, remaining-l.Threshold-1)
	}
	now := s.counting().moment()
	until = min(now+maxLease, s.counting().steadyUntil())
	if s.algorithm == TokenBucket {
		until = min(until, now+s.bucket.notFullFor(s.lent.amount())-bucketGrace)
	}
	if amount <= 0 || until < now+minLease {
		return 0, 0, 0
	}
	s.counting().charge(amount)
	grace := graceOf(s.algorithm)
	return amount, until, s.lent.add(amount, now, until+grace, grace)
}

// settleLease ends a lease of an amount that was charged at a moment: it takes back what is unused. It
// is false if the counter does not know the lease: the counter was reset, or the lease ended too
// long ago.
func (s *State) settleLease(amount, unused, at, since int64) bool {
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

// refund gives cost back, but not what is lent, which may still be served.
func (s *State) refund(cost int64) {
	keep := s.lent.amount()
	if keep > 0 && s.algorithm == TokenBucket {
		keep += s.bucket.refilledBy(s.lent.until())
	}
	if cost = min(cost, s.counting().used()-keep); cost > 0 {
		s.counting().refund(cost)
	}
}

// notFullFor returns the milliseconds for which the bucket surely does not become full, apart from
// what is lent.
func (t *tokenBucket) notFullFor(lent int64) int64 {
	const most = maxLease + bucketGrace
	// used counts a token that is not whole yet.
	hi, lo := bits.Mul64(uint64(max(0, t.capacity()-t.level-lent-1)), uint64(t.window))
	if hi > 0 || lo/uint64(t.limit) > most {
		return most
	}
	return int64(lo / uint64(t.limit))
}

// refilledBy returns the tokens that are refilled until then, plus two for those that are not whole.
func (t *tokenBucket) refilledBy(then int64) int64 {
	return max(0, min(then-t.last, maxLease+bucketGrace))*max(t.limit, t.oldLimit)/t.window + 2
}
