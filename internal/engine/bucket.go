package engine

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// tokenBucket holds limit + burst tokens and continuously refills limit tokens per window. Its
// level is exact: whole tokens and a fraction in units of 1/window of a token (the window in
// milliseconds), so one millisecond adds limit units.
type tokenBucket struct {
	limit, burst, window int64
	// level is negative after a record past the limit.
	level, fraction int64
	// last is when level was computed.
	last int64
	// oldDebt is the part of a negative level that was used under a higher limit, oldLimit, or
	// under another definition. It is refilled first, at the rate of oldLimit: whoever used much
	// while it was allowed does not wait longer than under that limit. Both are 0 for none.
	oldDebt, oldLimit int64
	// notYet are tokens of level that count as used in a decision, because they come within its range
	// of time. They are not stored.
	notYet int64
}

func (t *tokenBucket) sameDefinition(l *Limit) bool { return t.window == l.Window.Millis }

func (t *tokenBucket) start(l *Limit, now int64) {
	t.limit, t.burst, t.window = l.Limit, l.Burst, l.Window.Millis
	t.last = now
	t.level, t.fraction = t.capacity(), 0
	t.oldDebt, t.oldLimit, t.notYet = 0, 0, 0
}

func (t *tokenBucket) capacity() int64 { return t.limit + t.burst }

// advance refills at the rate of l since last. If limit or burst have changed, it first moves the
// level so that what was used stays used. The fraction stays too, otherwise a counter that two
// limits use by turns would never refill.
func (t *tokenBucket) advance(l *Limit, now int64) {
	if t.limit != l.Limit || t.burst != l.Burst {
		used, before := t.used(), t.limit
		t.limit, t.burst, t.notYet = l.Limit, l.Burst, 0
		t.level = max(t.capacity()-used, -maxUsed)
		if before > t.limit {
			t.oldDebt, t.oldLimit = maxUsed, max(t.oldLimit, before)
		}
		t.boundOldDebt()
	}
	t.refill(now)
}

// carry charges what was used under another definition. What the bucket cannot hold of it is
// refilled within one window.
func (t *tokenBucket) carry(used int64) {
	t.charge(used)
	t.oldDebt, t.oldLimit = maxUsed, min(max(0, -t.level), MaxAmount)
	t.boundOldDebt()
}

// boundOldDebt limits oldDebt to the debt that is left, and drops it if its rate is no higher than
// the present one.
func (t *tokenBucket) boundOldDebt() {
	if t.oldDebt = min(t.oldDebt, max(0, -t.level)); t.oldDebt == 0 || t.oldLimit <= t.limit {
		t.oldDebt, t.oldLimit = 0, 0
	}
}

func (t *tokenBucket) refill(now int64) {
	if t.oldDebt > 0 && now > t.last {
		t.refillOldDebt(now)
	}
	if now <= t.last {
		return
	}
	hi, lo := bits.Mul64(uint64(now-t.last), uint64(t.limit))
	lo, carry := bits.Add64(lo, uint64(t.fraction), 0)
	hi += carry
	t.last = now
	if hi < uint64(t.window) {
		tokens, fraction := bits.Div64(hi, lo, uint64(t.window))
		if tokens < uint64(t.capacity()-t.level) {
			t.level += int64(tokens)
			t.fraction = int64(fraction)
			return
		}
	}
	t.level, t.fraction = t.capacity(), 0
}

// refillOldDebt refills to the moment at which no old debt is left, or to now if that is earlier.
func (t *tokenBucket) refillOldDebt(now int64) {
	if wait := t.wait(t.oldDebt, t.oldLimit); wait <= now-t.last {
		t.level, t.fraction, t.last = t.level+t.oldDebt, 0, t.last+wait
		t.oldDebt, t.oldLimit = 0, 0
		return
	}
	hi, lo := bits.Mul64(uint64(now-t.last), uint64(t.oldLimit))
	lo, carry := bits.Add64(lo, uint64(t.fraction), 0)
	tokens, fraction := bits.Div64(hi+carry, lo, uint64(t.window)) // fewer than oldDebt
	t.level, t.oldDebt = t.level+int64(tokens), t.oldDebt-int64(tokens)
	t.fraction, t.last = int64(fraction), now
}

func (t *tokenBucket) moment() int64 { return t.last }

// used counts a token that is not whole yet as used.
func (t *tokenBucket) used() int64 { return t.capacity() - t.level + t.notYet }

func (t *tokenBucket) charge(cost int64) { t.level = max(t.level-cost, -maxUsed) }

func (t *tokenBucket) refund(cost int64) {
	t.level = min(t.level+cost, t.capacity())
	if t.level == t.capacity() {
		t.fraction = 0
	}
	t.boundOldDebt()
}

// addFraction gives back a fraction of a token.
func (t *tokenBucket) addFraction(fraction int64) {
	if t.level == t.capacity() {
		return
	}
	if t.fraction += fraction; t.fraction >= t.window {
		t.fraction -= t.window
		t.refund(1)
	}
}

// giveBackLike gives back what was given back of later: tokens, and a fraction, which may be
// negative. The same refill follows, except that of an old debt, which is faster. So that comes
// before, and moves the moment.
func (t *tokenBucket) giveBackLike(later *tokenBucket, tokens, fraction int64) {
	if t.oldDebt > 0 {
		t.refillOldDebt(later.last)
	}
	t.level, t.fraction = t.level+tokens, t.fraction+fraction
	switch {
	case t.fraction < 0:
		t.level, t.fraction = t.level-1, t.fraction+t.window
	case t.fraction >= t.window:
		t.level, t.fraction = t.level+1, t.fraction-t.window
	}
	t.boundOldDebt()
}

func (t *tokenBucket) uncharge(cost, _ int64) { t.refund(cost) }

func (t *tokenBucket) freeAt() int64 {
	if t.used() == 0 {
		return 0
	}
	return t.reachedAt(t.capacity())
}

func (t *tokenBucket) fitsAt(_, cost int64) int64 { return t.reachedAt(cost) }

// reachedAt is when the level will reach target, which must be positive.
func (t *tokenBucket) reachedAt(target int64) int64 {
	if t.level >= target {
		return t.last
	}
	after := *t
	if t.oldDebt > 0 {
		after.refillOldDebt(math.MaxInt64 / 2)
	}
	return after.last + after.wait(target-after.level, t.limit)
}

// wait is how many milliseconds, rounded up, the rate of a limit takes for tokens; capped at 2 *
// farFuture.
func (t *tokenBucket) wait(tokens, limit int64) int64 {
	const most = 2 * farFuture
	hi, lo := bits.Mul64(uint64(tokens), uint64(t.window))
	lo, borrow := bits.Sub64(lo, uint64(t.fraction), 0)
	hi -= borrow
	lo, carry := bits.Add64(lo, uint64(limit-1), 0)
	hi += carry
	if hi >= uint64(limit) {
		return most
	}
	wait, _ := bits.Div64(hi, lo, uint64(limit))
	return int64(min(wait, most))
}

// holdFull keeps a bucket full until a later time if it is full by then, since the next charge may
// be made then, and refill in between is lost. It returns the tokens that are missing now, when the
// charge may be made, too.
func (t *tokenBucket) holdFull(until int64) (missing int64) {
	if t.last < until && t.reachedAt(t.capacity()) <= until {
		missing = t.used()
		t.refill(until)
	}
	return missing
}

// steadyUntil is unlimited: refill after last is not lost unless the bucket becomes full, which
// holdFull looks after.
func (t *tokenBucket) steadyUntil() int64 { return farFuture }

// append writes a negative limit if there is old debt, which then follows at the end.
func (t *tokenBucket) append(b []byte) []byte {
	limit := t.limit
	if t.oldDebt > 0 {
		limit = -limit
	}
	for _, v := range [...]int64{limit, t.burst, t.window, t.level, t.fraction, t.last} {
		b = binary.AppendVarint(b, v)
	}
	if t.oldDebt > 0 {
		b = binary.AppendVarint(binary.AppendVarint(b, t.oldDebt), t.oldLimit)
	}
	return b
}

func (t *tokenBucket) decode(d *decoder) {
	limit := d.between(-MaxAmount, MaxAmount)
	t.limit, t.burst = max(limit, -limit), d.between(0, MaxAmount)
	t.window = d.between(MinWindow.Milliseconds(), MaxWindow.Milliseconds())
	t.level = d.between(-maxUsed, t.capacity())
	t.fraction = d.between(0, t.window-1)
	t.last = d.between(-farFuture, lastMoment)
	if limit == 0 || t.level == t.capacity() && t.fraction != 0 {
		d.bad = true
	}
	if limit < 0 {
		t.oldDebt, t.oldLimit = d.between(1, -t.level), d.between(t.limit+1, MaxAmount)
	}
}
