package engine

import (
	"encoding/binary"
	"math/bits"
)

const (
	// leaseFor bounds how long a worker serves from what it charged ahead, in milliseconds.
	leaseFor = 1000
	// leaseLeast is the shortest lease worth its write, in milliseconds.
	leaseLeast = 10
	// leaseGrace is how long after its end what was not served may be given back, in milliseconds.
	leaseGrace = 500
	// leasePart is the part of what remains that one lease may take.
	leasePart = 8
)

// lent is what workers charged ahead to a counter and neither spent nor gave back, as far as the store knows.
type lent struct {
	amount int64
	// until is when the last of it can be given back, since when there was always some: that tells it from what was
	// lent of a counter that was reset.
	until, since int64
}

func (t *lent) append(b []byte) []byte {
	b = binary.AppendVarint(b, t.amount)
	b = binary.AppendVarint(b, t.until)
	return binary.AppendVarint(b, t.until-t.since)
}

func (t *lent) decode(d *decoder) {
	t.amount = d.between(1, MaxAmount*2)
	t.until = d.between(-farFuture, farFuture)
	t.since = t.until - d.between(0, farFuture)
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
func (s *State) lease(l *Limit, want int64) (amount, until int64) {
	remaining := s.remaining(l)
	amount = min(want, remaining/leasePart)
	if remaining > l.Threshold {
		amount = min(amount, remaining-max(0, l.Threshold)-1)
	}
	now := s.counting().moment()
	until = min(now+leaseFor, s.counting().steadyUntil())
	if s.algorithm == TokenBucket {
		until = min(until, now+s.bucket.emptyFor(s.lent.amount)-leaseGrace)
	}
	if amount <= 0 || until < now+leaseLeast {
		return 0, 0
	}
	s.counting().charge(amount)
	if s.lent.amount == 0 {
		s.lent.since = now
	}
	s.lent.amount += amount
	s.lent.until = max(s.lent.until, until+leaseGrace)
	return amount, until
}

// settle ends a lease: of the amount that was lent at a moment, what is unused is taken back. It tells whether the
// counter knows of the lease; one that was reset, or for which it is too late, does not.
func (s *State) settle(amount, unused, at, since int64) bool {
	if s.lent.amount == 0 || s.lent.since != since {
		return false
	}
	s.counting().unlend(min(unused, s.lent.amount), at)
	if s.lent.amount -= amount; s.lent.amount <= 0 {
		s.lent = lent{}
	}
	return true
}

// refund gives cost back, down to what is lent: that is still to be served.
func (s *State) refund(cost int64) {
	keep := s.lent.amount
	if keep > 0 && s.algorithm == TokenBucket {
		keep += s.bucket.refilledBy(s.lent.until)
	}
	if cost = min(cost, s.counting().used()-keep); cost > 0 {
		s.counting().refund(cost)
	}
}

// emptyFor gives the milliseconds for which the bucket is sure not to be full, beside what is lent.
func (t *tokenBucket) emptyFor(lent int64) int64 {
	const most = leaseFor + leaseGrace
	// Used counts a token that is not whole yet.
	hi, lo := bits.Mul64(uint64(max(0, t.used()-lent-1)), uint64(t.window))
	if hi > 0 || lo/uint64(t.limit) > most {
		return most
	}
	return int64(lo / uint64(t.limit))
}

// refilledBy gives the tokens that come until then, and two for those that are not whole.
func (t *tokenBucket) refilledBy(then int64) int64 {
	return max(0, min(then-t.last, leaseFor+leaseGrace))*t.limit/t.window + 2
}
