package engine

import (
	"bytes"
	"math/big"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// cases is how many random histories each property of an algorithm is tried on.
const cases = 10_000

// charged is a charge in the log that a law is checked on: what was admitted, at the counter's time.
type charged struct {
	at, cost int64
	// window is the beginning of the charged fixed window, for refunds that leave it ambiguous.
	window int64
}

// law checks by brute force whether the charges keep what the limit promises.
func law(l Limit, log []charged) bool {
	switch l.Algorithm {
	case FixedWindow:
		return fixedLaw(l, log)
	case TokenBucket:
		return bucketLaw(l, log)
	default:
		return slidingLaw(l, log)
	}
}

// fixedLaw: in each window at most the limit.
func fixedLaw(l Limit, log []charged) bool {
	var sum, end int64
	for i, c := range log {
		if i == 0 || c.at >= end {
			_, end = l.span(c.at)
			sum = 0
		}
		if sum += c.cost; sum > l.Limit {
			return false
		}
	}
	return true
}

// slidingLaw: in every interval of one window's length, both ends included, at most the limit. It is enough to try
// those that begin with a charge.
func slidingLaw(l Limit, log []charged) bool {
	for i := range log {
		var sum int64
		for _, c := range log[i:] {
			if c.at <= log[i].at+l.Window.Millis {
				sum += c.cost
			}
		}
		if sum > l.Limit {
			return false
		}
	}
	return true
}

// bucketLaw: in every interval of length t at most limit + burst + limit·t/window. It is enough to try those that
// begin and end with a charge.
func bucketLaw(l Limit, log []charged) bool {
	for i := range log {
		var sum int64
		for _, c := range log[i:] {
			sum += c.cost
			over := big.NewInt(sum - l.Limit - l.Burst)
			over.Mul(over, big.NewInt(l.Window.Millis))
			refilled := big.NewInt(l.Limit)
			if over.Cmp(refilled.Mul(refilled, big.NewInt(c.at-log[i].at))) > 0 {
				return false
			}
		}
	}
	return true
}

func begin(t *rapid.T, a Algorithm) history {
	return history{limit: genLimit(a).Draw(t, "limit"), now: genInstant.Draw(t, "now")}
}

// Invariant 1.
func TestNeverAdmitsMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, cases, func(t *rapid.T) {
			h := begin(t, a)
			var log []charged
			for _, o := range genOps(h.limit, 16, Consume, Consume, Consume, Check).Draw(t, "ops") {
				if r := h.play(o); o.verb == Consume && r.Allowed {
					log = append(log, charged{at: h.latest, cost: o.cost})
				}
			}
			if !law(h.limit, log) {
				t.Fatalf("%+v admitted %v", h.limit.Spec(), log)
			}
		})
	})
}

// Invariant 1, with refunds: whichever of the charges that still count a refund is meant for, those that are kept
// obey the law.
func TestRefundMakesNoMoreRoomThanItGaveBack(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, cases, func(t *rapid.T) {
			h := begin(t, a)
			var kept []charged
			for _, o := range genOps(h.limit, 16, Consume, Consume, Consume, Refund).Draw(t, "ops") {
				switch {
				case o.verb == Refund:
					h.play(op{o.after, Check, 1})
					giveBack(t, &h, kept, o.cost)
				case h.play(o).Allowed:
					kept = append(kept, charged{h.latest, o.cost, h.state.fixed.begin})
				}
				if !keptLaw(h.limit, kept) {
					t.Fatalf("%+v admitted %v beside what was refunded", h.limit.Spec(), kept)
				}
			}
		})
	})
}

// keptLaw is the law after refunds: the charges left of a window anchored at its first use do not
// show when that was.
func keptLaw(l Limit, kept []charged) bool {
	if l.Algorithm != FixedWindow {
		return law(l, kept)
	}
	sums := map[int64]int64{}
	for _, c := range kept {
		if sums[c.window] += c.cost; sums[c.window] > l.Limit {
			return false
		}
	}
	return true
}

// giveBack refunds cost, meant for any charges that still count. A bucket cannot tell a charge that
// was refilled from one that was not, so for it no more is refunded than counts.
func giveBack(t *rapid.T, h *history, kept []charged, cost int64) {
	if len(kept) == 0 {
		return
	}
	left := cost
	for _, i := range rapid.Permutation(indexes(len(kept))).Draw(t, "meant") {
		back := min(left, counts(h, kept, i))
		kept[i].cost -= back
		left -= back
	}
	if h.limit.Algorithm == TokenBucket {
		cost -= left
	}
	if cost > 0 {
		h.ask(Refund, cost)
	}
}

func indexes(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// counts is how much of a charge still counts against the limit.
func counts(h *history, log []charged, i int) int64 {
	c := log[i]
	switch h.limit.Algorithm {
	case FixedWindow:
		if c.window != h.state.fixed.begin {
			return 0
		}
		return c.cost
	case TokenBucket:
		// Refills repay the oldest charges first.
		m := newModel(h.limit)
		var later int64
		for j, c := range log {
			m.at(c.at)
			m.charge(c.cost)
			if j > i {
				later += c.cost
			}
		}
		m.at(h.latest)
		return max(0, min(c.cost, m.(*bucketModel).owed()-later))
	default:
		width := subBucketWidth(h.limit.Window.Millis)
		if c.at/width*width+width+h.limit.Window.Millis <= h.latest {
			return 0
		}
		return c.cost
	}
}

func (m *bucketModel) owed() int64 {
	owed := new(big.Rat).Sub(m.full(), m.level)
	return new(big.Int).Div(owed.Num(), owed.Denom()).Int64()
}

// The state answers as the model does: for every verb, with clocks that step back, and after
// storing.
func TestDecisionsMatchModel(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, cases, func(t *rapid.T) {
			h := begin(t, a)
			m := newModel(h.limit)
			for _, o := range genOps(h.limit, 16, Consume, Consume, Consume, Check, Record, Refund).Draw(t, "ops") {
				h.state = *stored(t, &h.state)
				got := h.play(o)
				if want := expect(m, h.limit, h.now, h.latest, o); got != want {
					t.Fatalf("%+v at %d: %s %d:\n%s", h.limit.Spec(), h.now, o.verb, o.cost, cmp.Diff(want, got))
				}
			}
		})
	})
}

// Invariant 3.
func TestRetryAfterIsHonest(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, cases, func(t *rapid.T) {
			h := begin(t, a)
			for _, o := range genOps(h.limit, 12, Consume, Consume, Consume, Record, Refund).Draw(t, "ops") {
				r := h.play(o)
				switch {
				case r.Allowed || o.verb != Consume:
					continue
				case r.RetryAfter == 0:
					if o.cost <= h.limit.capacity() {
						t.Fatalf("%+v: no retry after for %d", h.limit.Spec(), o.cost)
					}
					continue
				case h.now+r.RetryAfter >= farFuture:
					continue
				}
				if !h.later(t, h.now+r.RetryAfter, Consume, o.cost).Allowed {
					t.Fatalf("%+v: %d is refused after %d ms", h.limit.Spec(), o.cost, r.RetryAfter)
				}
				if r.RetryAfter > 1 && h.later(t, h.now+r.RetryAfter-1, Consume, o.cost).Allowed {
					t.Fatalf("%+v: %d is allowed before %d ms", h.limit.Spec(), o.cost, r.RetryAfter)
				}
			}
		})
	})
}

// Invariant 3 for the sliding window, compared with one that knows each charge to the millisecond:
// a retry is late by at most one sub-bucket, and never early.
func TestASlidingWindowIsLateByOneBucketAtMost(t *testing.T) {
	t.Parallel()
	check(t, cases, func(t *rapid.T) {
		h := begin(t, SlidingWindow)
		w := h.limit.Window.Millis
		var log []charged
		for _, o := range genOps(h.limit, 12, Consume).Draw(t, "ops") {
			r := h.play(o)
			switch {
			case r.Allowed:
				log = append(log, charged{at: h.latest, cost: o.cost})
				continue
			case r.RetryAfter == 0:
				continue
			}
			room := func(at int64) bool {
				sum := o.cost
				for _, c := range log {
					if c.at+w > at {
						sum += c.cost
					}
				}
				return sum <= h.limit.Limit
			}
			ideal := h.latest
			for _, c := range log {
				if room(ideal) {
					break
				}
				ideal = max(ideal, c.at+w)
			}
			if late := h.now + r.RetryAfter - ideal; late < 0 || late > subBucketWidth(w) {
				t.Fatalf("%+v: %d ms later than the first moment that fits", h.limit.Spec(), late)
			}
		}
	})
}

// Invariant 2.
func TestADenialChargesNothing(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, 2000, func(t *rapid.T) {
			h := begin(t, a)
			for _, o := range genOps(h.limit, 12, Consume, Consume, Check, Record).Draw(t, "ops") {
				before := stored(t, &h.state)
				r := h.play(o)
				if o.verb == Record || o.verb == Consume && r.Allowed {
					continue
				}
				before.advance(&h.limit, h.now)
				if !bytes.Equal(before.Append(nil), h.state.Append(nil)) {
					t.Fatalf("%+v: %s %d left a trace", h.limit.Spec(), o.verb, o.cost)
				}
			}
		})
	})
}

// Invariant 2, over several limits.
func TestSeveralLimitsAreChargedTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	check(t, cases, func(t *rapid.T) {
		n := rapid.IntRange(2, 4).Draw(t, "limits")
		limits, states := make([]Limit, n), make([]*State, n)
		for i := range limits {
			limits[i] = genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm")).Draw(t, "limit")
			states[i] = new(State)
		}
		now := genInstant.Draw(t, "now")
		for _, o := range genOps(limits[0], 8, Consume, Consume, Check, Record, Refund).Draw(t, "ops") {
			now += o.after
			before := decide(Check, limits, states, now, o.cost)
			all := true
			for _, r := range before.Results {
				all = all && o.cost <= r.Remaining
			}
			after := decide(o.verb, limits, states, now, o.cost)
			if want := o.verb == Refund || all; after.Allowed != want {
				t.Fatalf("%s %d of %+v: allowed %t", o.verb, o.cost, before.Results, after.Allowed)
			}
			for i, r := range after.Results {
				want := before.Results[i].Used
				switch {
				case o.verb == Record || o.verb == Consume && all:
					want += o.cost
				case o.verb == Refund:
					want = max(0, want-o.cost)
				}
				if r.Used != want {
					t.Fatalf("%s %d of %+v: used %d; want %d", o.verb, o.cost, before.Results[i], r.Used, want)
				}
				if fits := o.cost <= before.Results[i].Remaining; o.verb != Refund && r.Allowed != fits {
					t.Fatalf("%s %d of %+v: allowed %t", o.verb, o.cost, before.Results[i], r.Allowed)
				}
			}
		}
	})
}

// Invariant 4.
func TestRemainingNeverRisesInsideAFixedWindow(t *testing.T) {
	t.Parallel()
	check(t, cases, func(t *rapid.T) {
		h := begin(t, FixedWindow)
		var last Result
		var in int64
		for _, o := range genOps(h.limit, 16, Consume, Check, Record).Draw(t, "ops") {
			r := h.play(o)
			if begin := h.state.fixed.begin; begin != in {
				in = begin
			} else if r.Remaining > last.Remaining {
				t.Fatalf("%+v: remaining rose from %d to %d", h.limit.Spec(), last.Remaining, r.Remaining)
			}
			last = r
		}
	})
}

// A refund gives back at most what is used, and the windows after it hold what they always hold.
func TestARefundNeverReachesIntoALaterWindow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, 2000, func(t *rapid.T) {
			h := begin(t, a)
			for _, o := range genOps(h.limit, 12, Consume, Consume, Record, Refund).Draw(t, "ops") {
				if r := h.play(o); r.Used < 0 || r.Remaining > h.limit.capacity() {
					t.Fatalf("%+v: %d used, %d remaining", h.limit.Spec(), r.Used, r.Remaining)
				}
			}
			free := h.ask(Refund, MaxAmount).ResetAt
			for h.state.counting().used() > 0 {
				free = h.ask(Refund, MaxAmount).ResetAt
			}
			if free != h.now {
				t.Fatalf("%+v: nothing used, but free only in %d ms", h.limit.Spec(), free-h.now)
			}
			h.ask(Refund, MaxAmount)
			for range 3 {
				if r := h.ask(Check, 1); r.Remaining != h.limit.capacity() {
					t.Fatalf("%+v: %d remaining after a refund of everything", h.limit.Spec(), r.Remaining)
				}
				h.now = h.latest + h.limit.Window.Millis
			}
		})
	})
}

// A stored state decides like the one in memory.
func TestAStoredStateDecidesTheSame(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, 2000, func(t *rapid.T) {
			kept := begin(t, a)
			restored := kept
			for _, o := range genOps(kept.limit, 16, Consume, Consume, Check, Record, Refund).Draw(t, "ops") {
				restored.state = *stored(t, &restored.state)
				if x, y := kept.play(o), restored.play(o); x != y {
					t.Fatalf("%+v: %s %d: %s", kept.limit.Spec(), o.verb, o.cost, cmp.Diff(x, y))
				}
				if x, y := kept.state.Append(nil), restored.state.Append(nil); !bytes.Equal(x, y) {
					t.Fatalf("%+v: stored as % x and % x", kept.limit.Spec(), x, y)
				}
			}
		})
	})
}

// A copy may be advanced and decided over without a trace in the original.
func TestAdvancingCopyKeepsOriginal(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, 1000, func(t *rapid.T) {
			h := begin(t, a)
			for _, o := range genOps(h.limit, 12, Consume, Record, Refund).Draw(t, "ops") {
				h.play(o)
				before := h.state.Append(nil)
				copy := h.state
				decide(Check, []Limit{h.limit}, []*State{&copy}, h.latest+abs(o.after), o.cost)
				if !bytes.Equal(before, h.state.Append(nil)) {
					t.Fatalf("%+v: advancing a copy changed the state", h.limit.Spec())
				}
			}
		})
	})
}

func abs(n int64) int64 { return max(n, -n) }
