package engine

import (
	"bytes"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Another definition takes over what was used as charged at the latest moment of the old one, and
// then keeps the new limit's law.
func TestNewDefinitionCarriesUsageOver(t *testing.T) {
	t.Parallel()
	check(t, cases, func(t *rapid.T) {
		h := begin(t, rapid.SampledFrom(algorithms).Draw(t, "from"))
		for _, o := range genOps(h.limit, 8, Consume, Consume, Record, Refund).Draw(t, "ops") {
			h.play(o)
		}
		// The definition changes some time after the last request under the old one.
		last, used := h.latest, h.state.counting().used()
		h.now = h.latest + rapid.Int64Range(0, h.limit.Window.Millis).Draw(t, "change")
		h.latest = h.now
		old := history{limit: h.limit, state: *stored(t, &h.state), now: h.now}
		h.limit = genLimit(rapid.SampledFrom(algorithms).Draw(t, "to")).Draw(t, "limit")
		if rapid.Bool().Draw(t, "same window") && old.limit.Window.Period == 0 {
			h.limit.Window, h.limit.Zone = old.limit.Window, nil
		}
		h.state = *stored(t, &h.state)
		// What counts is the window of the last request. The window that the old definition would
		// be in by now may by chance be one of the new definition too.
		same := goesOn(&old, &h)
		left := old.ask(Check, 1).Used
		if !same || h.limit.Algorithm == TokenBucket {
			left = leftAfterCharge(&old.limit, &h.limit, same, used, last, h.now)
		}
		r := h.ask(Check, 1)
		if same && h.limit.Algorithm == TokenBucket && r.Used < left {
			left-- // a bucket keeps its fraction of a token
		}
		if r.Used != left || r.Remaining != max(0, h.limit.capacity()-left) {
			t.Fatalf("%d used of %+v, the last at %d, became %d used, %d remaining of %+v at %d, want %d", used, old.limit.Spec(), last,
				r.Used, r.Remaining, h.limit.Spec(), h.now, left)
		}
		if same || used > h.limit.capacity() {
			return // what is used may be free earlier than if it were charged then
		}
		log := []charged{{at: last, cost: used}}
		for _, o := range genOps(h.limit, 8, Consume).Draw(t, "more") {
			if r := h.play(o); r.Allowed {
				log = append(log, charged{at: h.latest, cost: o.cost})
			}
		}
		if !lawFrom(h.limit, log) {
			t.Fatalf("%+v admitted %v behind %d that were used", h.limit.Spec(), log[1:], used)
		}
	})
}

// leftAfterCharge is what is used at now of a counter that was begun under the definition to, and
// charged at last with what was used under from. same says that the window goes on.
func leftAfterCharge(from, to *Limit, same bool, used, last, now int64) int64 {
	at, counts := last, used
	if beyond := used - to.capacity(); to.Algorithm == TokenBucket && beyond > 0 {
		before := *from
		if !same { // what it cannot hold is refilled in one window
			before = Limit{Limit: min(beyond, MaxAmount), Window: to.Window}
		}
		if before.Limit > to.Limit {
			at, counts = repaid(&before, beyond, last, now)
			counts += to.capacity()
		}
	}
	anew := history{limit: *to, now: at}
	if counts > 0 {
		anew.ask(Record, counts)
	}
	anew.now = now
	return anew.ask(Check, 1).Used
}

// goesOn reports whether the same window continues under the other definition.
func goesOn(old, h *history) bool {
	switch {
	case old.limit.Algorithm != h.limit.Algorithm:
		return false
	case old.limit.Algorithm == FixedWindow:
		begin, end := h.limit.span(old.state.fixed.begin)
		return old.state.fixed.begin == begin && old.state.fixed.end == end
	default:
		return old.limit.Window.Millis == h.limit.Window.Millis
	}
}

// lawFrom is the law for a log whose first charge stands for what was used before. It may be 0,
// which starts no window.
func lawFrom(l Limit, log []charged) bool {
	if log[0].cost == 0 {
		log = slices.Delete(log, 0, 1)
	}
	return law(l, log)
}

// repaid is when what was used beyond the capacity of a lower limit has been refilled at the rate
// of the higher one, and how much of it is still missing then; at is not later than now.
func repaid(before *Limit, beyond, last, now int64) (at, missing int64) {
	m := newModel(Limit{Algorithm: TokenBucket, Limit: before.Limit, Burst: maxUsed, Window: before.Window})
	m.at(last)
	m.charge(beyond)
	if m.at(now); m.used() > 0 {
		return now, m.used()
	}
	units := new(big.Int).Mul(big.NewInt(beyond), big.NewInt(before.Window.Millis))
	units.Add(units, big.NewInt(before.Limit-1))
	return last + units.Div(units, big.NewInt(before.Limit)).Int64(), 0
}

// Two definitions that use one bucket by turns, as while another policy file is rolled out,
// together admit no more than the more generous one.
func TestAlternatingBucketsAdmitNoMoreThanLarger(t *testing.T) {
	t.Parallel()
	check(t, cases, func(t *rapid.T) {
		h := begin(t, TokenBucket)
		limits := []Limit{h.limit, h.limit, h.limit}
		var most Limit
		for i := range limits {
			l := &limits[i]
			l.Limit, l.Burst = genAmount.Draw(t, "limit"), genBurst.Draw(t, "burst")
			most.Limit, most.Burst = max(most.Limit, l.Limit), max(most.Burst, l.capacity())
		}
		most.Window, most.Burst = h.limit.Window, most.Burst-most.Limit
		var log []charged
		for _, o := range genOps(most, 24, Consume, Consume, Check).Draw(t, "ops") {
			before := h.state
			h.limit = rapid.SampledFrom(limits).Draw(t, "under")
			r := h.play(o)
			switch {
			case o.verb != Consume || !r.Allowed:
				h.state = before // nothing was charged, so nothing is written
			default:
				h.state = *stored(t, &h.state)
				log = append(log, charged{at: h.state.bucket.moment(), cost: o.cost})
			}
		}
		if !bucketLaw(most, log) {
			t.Fatalf("%+v, %+v and %+v admitted %v", limits[0].Spec(), limits[1].Spec(), limits[2].Spec(), log)
		}
	})
}

// TestCarriedExcessIsRefilledWithinWindow: what it cannot hold of what was used is
// refilled within its window.
func TestCarriedExcessIsRefilledWithinWindow(t *testing.T) {
	t.Parallel()
	for _, before := range algorithms {
		h := history{limit: limitOf(t, before, 1000, "1d"), now: noon}
		h.ask(Consume, 1000)
		h.state = *stored(t, &h.state)
		h.limit = limitOf(t, TokenBucket, 10, "1h")
		// 990 take an hour, and one more takes six minutes.
		at := h.state.counting().moment() + 66*60_000
		h.now = noon + 1000
		if r := h.ask(Check, 1); h.now+r.RetryAfter != at || r.Used < 999 {
			t.Errorf("%v: %+v at once, to be free at %d", before, r, at-h.now)
		}
		h.now = at - 1
		if r := h.ask(Consume, 1); r.Allowed {
			t.Errorf("%v: too early: %+v", before, r)
		}
		h.now = at
		if r := h.ask(Consume, 1); !r.Allowed || r.Used != 10 {
			t.Errorf("%v: then: %+v", before, r)
		}
	}
}

// TestTwiceLoweredBucketRefillsAtOldRates, whatever is charged in between.
func TestTwiceLoweredBucketRefillsAtOldRates(t *testing.T) {
	t.Parallel()
	h := history{limit: limitOf(t, TokenBucket, 1000, "1m"), now: noon}
	h.ask(Consume, 1000)
	h.limit = limitOf(t, TokenBucket, 500, "1m")
	h.ask(Record, 1)
	h.state = *stored(t, &h.state)
	h.limit = limitOf(t, TokenBucket, 5, "1m")
	// 996 tokens at 1000 a minute, and one at 5 a minute.
	if r := h.ask(Consume, 1); r.RetryAfter != 59_760+12_000 {
		t.Errorf("%+v", r)
	}
}

// TestLoweredBucketRefillsAtHigherRate: use that an override or a schedule's factor
// allowed makes nobody wait longer than under that limit.
func TestLoweredBucketRefillsAtHigherRate(t *testing.T) {
	t.Parallel()
	low := limitOf(t, TokenBucket, 10, "1m")
	low.Burst = 5
	high := low
	high.Limit = 1000
	h := history{limit: high, now: noon}
	h.ask(Consume, 1005)
	h.limit = low
	// 990 beyond the 15 are refilled after 59.4 s, and one more after 6 s.
	if r := h.later(t, noon, Consume, 1); r.RetryAfter != 65_400 || r.Used != 1005 || r.ResetAt != noon+59_400+90_000 {
		t.Errorf("at once: %+v", r)
	}
	for _, o := range []op{{30_000, Record, 3}, {0, Refund, 3}} { // what is stored meanwhile
		h.play(o)
		h.state = *stored(t, &h.state)
	}
	if r := h.play(op{35_399, Consume, 1}); r.Allowed || r.RetryAfter != 1 {
		t.Errorf("too early: %+v", r)
	}
	if r := h.play(op{1, Consume, 1}); !r.Allowed || r.Used != 15 {
		t.Errorf("then: %+v", r)
	}
}

// TestChargesUnderLowerLimitRefillAtItsRate, even if the burst changes after it.
func TestChargesUnderLowerLimitRefillAtItsRate(t *testing.T) {
	t.Parallel()
	h := history{limit: limitOf(t, TokenBucket, 1000, "1m"), now: noon}
	h.ask(Consume, 1000)
	h.limit = limitOf(t, TokenBucket, 10, "1m")
	h.ask(Record, 10)
	h.limit.Burst = 5
	// 990 tokens at 1000 a minute, and 6 at 10: the bucket holds 15 of the 1010, and one is to be
	// free.
	if r := h.ask(Consume, 1); r.RetryAfter != 59_400+36_000 {
		t.Errorf("%+v", r)
	}
}

// TestADefinitionBeginsAfterAllCharges that were made under another one, or they could be given back
// to it: in one millisecond, later, and after the clock was set back.
func TestADefinitionBeginsAfterAllCharges(t *testing.T) {
	t.Parallel()
	h := history{limit: limitOf(t, SlidingWindow, 10, "1m"), now: noon}
	h.ask(Consume, 1)
	for i, want := range []struct{ at, since int64 }{{0, 1}, {0, 2}, {1000, 1000}, {-5000, 1001}, {2000, 2000}} {
		h.limit = limitOf(t, algorithms[(i+1)%3], 10, "1h")
		h.now = noon + want.at
		if h.ask(Consume, 1); h.state.since != noon+want.since {
			t.Errorf("redefined at %d: begun at %d; want %d", want.at, h.state.since-noon, want.since)
		}
	}
}

// A sliding window that takes over a fixed one knows when that was warned of.
func TestAWarningIsCarriedOver(t *testing.T) {
	t.Parallel()
	h := history{limit: limitOf(t, FixedWindow, 10, "1m"), now: noon + 30_000}
	h.limit.Threshold = 10
	h.ask(Consume, 1)
	if !h.state.warn(&h.limit, h.now, 9) {
		t.Error("the fixed window is not warned of")
	}
	h.limit.Algorithm = SlidingWindow
	for _, want := range []struct {
		after int64
		warn  bool
	}{{1, false}, {60_000 - 3, false}, {2, true}} { // it was carried over as of the millisecond before
		h.play(op{want.after, Consume, 1})
		if got := h.state.warn(&h.limit, h.now, 8); got != want.warn {
			t.Errorf("warned %t at %d ms", got, h.now-noon-30_000)
		}
	}
}

// A stored state decides like the one in memory, which keeps nothing of the definitions before that is not stored.
func TestAStoredStateDecidesTheSameUnderAnyDefinition(t *testing.T) {
	t.Parallel()
	check(t, 2000, func(t *rapid.T) {
		kept := begin(t, TokenBucket)
		limits := []Limit{kept.limit}
		for range 2 {
			l := kept.limit
			l.Limit = rapid.Int64Range(1, kept.limit.Limit).Draw(t, "lower limit")
			limits = append(limits, l, genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm")).Draw(t, "other"))
		}
		restored := kept
		for _, o := range genOps(kept.limit, 16, Consume, Consume, Check, Record, Refund).Draw(t, "ops") {
			kept.limit = rapid.SampledFrom(limits).Draw(t, "under")
			restored.limit, restored.state = kept.limit, *stored(t, &restored.state)
			if x, y := kept.play(o), restored.play(o); x != y {
				t.Fatalf("%+v: %s %d: %+v, and stored %+v", kept.limit.Spec(), o.verb, o.cost, x, y)
			}
			lease := rapid.Int64Range(0, 10).Draw(t, "lease")
			kept.state.chargeAhead(&kept.limit, lease)
			restored.state.chargeAhead(&restored.limit, lease)
			if x, y := kept.state.Append(nil), restored.state.Append(nil); !bytes.Equal(x, y) {
				t.Fatalf("%+v: stored as % x and % x", kept.limit.Spec(), x, y)
			}
		}
	})
}
