package engine

import (
	"math/big"
	"testing"
)

// The largest and slowest bucket there is: one token of it refills in 32 ms, so what it holds, in
// units of 1/window of a token, does not fit into 64 bits.
func largestBucket(level, fraction int64) tokenBucket {
	const window = int64(366 * 86_400_000)
	return tokenBucket{limit: MaxAmount, burst: MaxAmount, window: window, level: level, fraction: fraction, last: noon}
}

// TestRefillIsExactBeyond64Bits, where the fraction carries into the upper 64 bits of the product.
func TestRefillIsExactBeyond64Bits(t *testing.T) {
	t.Parallel()
	const after = 18_446_744_073 // times MaxAmount is just below 1<<64
	for name, oldDebt := range map[string]int64{"": 0, "of an old debt": 900_000_000} {
		b := largestBucket(-MaxAmount, 0)
		b.fraction = b.window - 1
		if b.oldDebt = oldDebt; oldDebt > 0 {
			b.limit, b.oldLimit = 1, MaxAmount
		}
		units := big.NewInt(MaxAmount)
		units.Add(units.Mul(units, big.NewInt(after)), big.NewInt(b.fraction))
		tokens, fraction := units.QuoRem(units, big.NewInt(b.window), new(big.Int))
		before := b.level
		b.refill(noon + after)
		if got := b.level - before; got != tokens.Int64() || b.fraction != fraction.Int64() {
			t.Errorf("refill %s: %d %d/%d tokens; want %d %d", name, got, b.fraction, b.window, tokens, fraction)
		}
	}
}

// TestAnyRefillEndsWithAFullBucket, also one of more tokens than 64 bits hold.
func TestAnyRefillEndsWithAFullBucket(t *testing.T) {
	t.Parallel()
	for _, after := range []int64{1_844_674_407_370, 1_844_674_407_371, farFuture / 2} { // 100<<64 units, about
		h := history{limit: limitOf(t, TokenBucket, MaxAmount, "100ms"), now: noon}
		h.ask(Record, MaxAmount)
		if r := h.play(op{after, Check, 1}); r.Used != 0 {
			t.Errorf("after %d ms %d are used", after, r.Used)
		}
	}
}

// TestWaitIsExactBeyond64Bits, where the fraction borrows from the upper 64 bits of the product.
func TestWaitIsExactBeyond64Bits(t *testing.T) {
	t.Parallel()
	for k := int64(1); k < 4; k++ {
		b := largestBucket(0, 0)
		b.fraction = b.window - 1
		tokens := new(big.Int).Lsh(big.NewInt(k), 64)
		tokens.Add(tokens.Quo(tokens, big.NewInt(b.window)), big.NewInt(1))
		for _, limit := range []int64{1, 5, MaxAmount} {
			want := new(big.Int).Mul(tokens, big.NewInt(b.window))
			want.Add(want.Sub(want, big.NewInt(b.fraction)), big.NewInt(limit-1))
			want.Quo(want, big.NewInt(limit))
			if most := big.NewInt(2 * farFuture); want.Cmp(most) > 0 {
				want = most
			}
			if got := b.wait(tokens.Int64(), limit); got != want.Int64() {
				t.Errorf("%d tokens at %d a window take %d ms; want %d", tokens, limit, got, want)
			}
		}
	}
}

// TestAnAlmostEmptyBucketIsLeasedFor as long as any, though what is used does not fit into 64 bits.
func TestAnAlmostEmptyBucketIsLeased(t *testing.T) {
	t.Parallel()
	b := largestBucket(2*MaxAmount-583_344_216, 0) // one token more times the window is just above 1<<64
	if got := b.notFullFor(0); got != maxLease+bucketGrace {
		t.Errorf("with %d used it is not full for %d ms", b.used(), got)
	}
}

// A bucket that begins anew owes nothing to the definition before, though it was one in debt itself.
func TestABucketThatBeginsAnewHasNoOldDebt(t *testing.T) {
	t.Parallel()
	h := history{limit: limitOf(t, TokenBucket, 1000, "1m"), now: noon}
	h.ask(Consume, 1000)
	h.limit = limitOf(t, TokenBucket, 10, "1m")
	h.ask(Record, 1)
	h.limit = limitOf(t, SlidingWindow, 10, "1m")
	h.ask(Refund, MaxAmount)
	h.limit = limitOf(t, TokenBucket, 10, "1m")
	if h.ask(Check, 1); h.state.bucket.oldDebt != 0 {
		t.Errorf("owes %d of before", h.state.bucket.oldDebt)
	}
	if r := h.play(op{1, Check, 1}); r.Used != 0 || r.Remaining != 10 {
		t.Errorf("%+v", r)
	}
}

// The last token of an old debt is refilled at the old rate too, and so says the retryAfter.
func TestTheLastTokenOfAnOldDebtKeepsItsRate(t *testing.T) {
	t.Parallel()
	h := history{limit: limitOf(t, TokenBucket, 11, "1m"), now: noon}
	h.ask(Consume, 11)
	h.limit = limitOf(t, TokenBucket, 10, "1m")
	// One token at 11 a minute, and one at 10.
	if r := h.ask(Consume, 1); r.RetryAfter != 5_455+6_000 {
		t.Errorf("%+v", r)
	}
}
