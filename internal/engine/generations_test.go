package engine

import "testing"

// TestARefundLeavesABucketWhatIsLent: until the last lease can no longer be given back, the bucket
// does not become full apart from what is lent, or that would be refilled too. All else is refunded.
func TestARefundLeavesABucketWhatIsLent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ limit, lowered, lease, after int64 }{
		{1001, 1001, 1, 0}, {1001, 1001, 10, 0}, {1001, 1001, 10, 333}, {1001, 9, 10, 0}, {1001, 9, 1, 77}, {9999, 9999, 7, 3},
	} {
		h := history{limit: limitOf(t, TokenBucket, c.limit, "10s"), now: noon}
		h.ask(Consume, c.limit*9/10)
		h.play(op{7, Check, 1}) // so that a part of a token is there
		amount, _, _ := h.state.chargeAhead(&h.limit, c.lease)
		if amount != c.lease {
			t.Fatalf("%+v: lent %d", c, amount)
		}
		end := h.state.lent.until()
		h.limit = limitOf(t, TokenBucket, c.lowered, "10s")
		h.play(op{c.after, Check, 1})
		before := h.state.counting().used()
		if r := h.ask(Refund, MaxAmount); r.Used >= before {
			t.Errorf("%+v: nothing was refunded of %d", c, before)
		}
		spare := h.state.bucket.used() - c.lease - c.limit*(end-h.now)/10_000
		if spare > 2 {
			t.Errorf("%+v: %d more could be refunded", c, spare)
		}
		b := &h.state.bucket
		b.oldDebt, b.oldLimit, b.level, b.limit = 0, 0, b.level+c.limit-b.limit, c.limit // at the higher rate all the time
		b.refill(end)
		if short := c.lease*b.window - (b.used()*b.window - b.fraction); short > 0 {
			t.Errorf("%+v: of %d that are lent, %d/%d are refilled by the end", c, c.lease, short, b.window)
		}
	}
}

// TestLeasesOfAGenerationAreGivenBackOneByOne, down to the last token.
func TestLeasesOfAGenerationAreGivenBackOneByOne(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		h := history{limit: limitOf(t, a, 1000, "1h"), now: noon}
		h.ask(Consume, 100)
		var leases []grant
		for _, want := range []int64{5, 2, 1} {
			amount, until, since := h.state.chargeAhead(&h.limit, want)
			leases = append(leases, grant{amount, h.state.counting().moment(), until, since})
		}
		for _, g := range leases {
			h.state = *stored(t, &h.state)
			if !h.state.settleLease(g.amount, g.amount, g.at, g.since) {
				t.Errorf("%+v is not known, of %+v", g, h.state.lent)
			}
		}
		if used := h.state.counting().used(); used != 100 || h.state.lent != (lent{}) {
			t.Errorf("%d used, %+v lent", used, h.state.lent)
		}
	})
}

// TestAnOlderGenerationOutlivesTheNewer, which is empty only if both are.
func TestAnOlderGenerationOutlivesTheNewer(t *testing.T) {
	t.Parallel()
	const generation = maxLease + leaseGrace
	lentTwice := func() *State {
		h := history{limit: limitOf(t, FixedWindow, 1000, "1h"), now: noon}
		h.ask(Consume, 100)
		h.state.lent.add(5, noon, noon+2*generation, leaseGrace)
		if since := h.state.lent.add(1, noon+generation, noon+2*generation, leaseGrace); since != noon {
			t.Errorf("in the last millisecond of a generation another one begins, at %d", since-noon)
		}
		h.state.lent.add(3, noon+generation+1, noon+2*generation, leaseGrace)
		return &h.state
	}
	older := lent{newer: loans{6, noon + 2*generation, noon}}
	s := lentTwice()
	if s.settleLease(3, 0, noon, noon+generation+1); s.lent != older {
		t.Errorf("settled: %+v; want %+v", s.lent, older)
	}
	s = lentTwice()
	s.lent.newer.until = noon + generation + 1
	if s.lent.trim(noon+generation+2, 100); s.lent != older {
		t.Errorf("ended: %+v; want %+v", s.lent, older)
	}
}

// All that the largest bucket holds may be lent, and its state is still readable.
func TestLeasesOfTheLargestBucketStayReadable(t *testing.T) {
	t.Parallel()
	h := history{limit: limitOf(t, TokenBucket, MaxAmount, "366d"), now: noon}
	h.limit.Burst = MaxAmount
	h.ask(Consume, 1_000_000)
	for range 40 {
		h.state.chargeAhead(&h.limit, MaxAmount)
		if s := stored(t, &h.state); s.lent != h.state.lent {
			t.Fatalf("%+v is stored as %+v", h.state.lent, s.lent)
		}
	}
	if h.state.lent.amount() < 3*MaxAmount/2 {
		t.Errorf("%d lent", h.state.lent.amount())
	}
}

// A limit that has just been warned of is leased: the warning is written.
func TestALimitAtItsThresholdIsLeased(t *testing.T) {
	t.Parallel()
	for left, want := range map[int64]int64{31: 0, 30: 3, 29: 3} {
		h := history{limit: limitOf(t, FixedWindow, 100, "1h"), now: noon}
		h.limit.Threshold = 30
		h.ask(Consume, 100-left)
		if amount, _, _ := h.state.chargeAhead(&h.limit, 10); amount != want {
			t.Errorf("%d remaining, with a threshold of 30: lent %d; want %d", left, amount, want)
		}
	}
}
