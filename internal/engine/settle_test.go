package engine

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// settling is a history in which a cost was reserved.
type settling struct {
	history
	kept *reservation
}

// reserve consumes and keeps what a receipt would.
func (h *settling) reserve(cost int64) bool {
	if !h.ask(Consume, cost).Allowed {
		return false
	}
	h.kept = &reservation{Cost: cost, Limits: []reservedLimit{{At: h.state.counting().moment()}}}
	return true
}

func (h *settling) settle(cost int64) Result {
	r := Request{Verb: Settle, Cost: cost, Limits: []Limit{h.limit}, reservation: h.kept}
	h.state.advanceInPlace(&h.limit, h.now)
	return r.settle([]*State{&h.state}, h.now).Results[0]
}

// copied returns a history of its own that goes on from here.
func (h *settling) copied(t failer) *settling {
	c := *h
	c.state = *stored(t, &h.state)
	return &c
}

func genSettling(t *rapid.T, a Algorithm) *settling {
	h := &settling{history: history{limit: genLimit(a).Draw(t, "limit"), now: genInstant.Draw(t, "now")}}
	for _, o := range genOps(h.limit, 5, Consume, Check).Draw(t, "before") {
		h.play(o)
	}
	return h
}

// TestImmediateSettleEqualsConsumeOfTrueCost: where the true cost fitted, nothing tells that
// another was reserved.
func TestImmediateSettleEqualsConsumeOfTrueCost(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, cases, func(t *rapid.T) {
			h := genSettling(t, a)
			top := h.limit.capacity()
			reserve, truly := rapid.Int64Range(1, min(top, MaxAmount)).Draw(t, "reserve"), rapid.Int64Range(0, min(top, MaxAmount)).Draw(t, "true cost")
			direct := h.copied(t)
			if direct.ask(Check, 1); !h.reserve(reserve) || truly > 0 && !direct.ask(Consume, truly).Allowed {
				return
			}
			if got := h.settle(truly); !got.Allowed {
				t.Fatalf("settled from %d to %d: %+v", reserve, truly, got)
			}
			if truly == 0 && a == TokenBucket {
				direct.state.bucket.fraction, h.state.bucket.fraction = 0, 0 // what a full bucket had begun is gone
			}
			if h.state.counting().used() != direct.state.counting().used() ||
				truly > 0 && string(h.state.Append(nil)) != string(direct.state.Append(nil)) {
				t.Fatalf("after %d settled to %d: %+v\nwant %+v", reserve, truly, h.state, direct.state)
			}
		})
	})
}

// TestLateSettleNeverGivesBackTooMuch: whatever happened meanwhile, what is left to others after
// a settle is never more than if the true cost had been consumed at the first moment; where
// nothing was refilled meanwhile, it is as much.
func TestLateSettleNeverGivesBackTooMuch(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, cases, func(t *rapid.T) {
			h := genSettling(t, a)
			reserve := rapid.Int64Range(1, min(h.limit.capacity(), MaxAmount)).Draw(t, "reserve")
			truly := rapid.Int64Range(1, reserve).Draw(t, "true cost")
			direct := h.copied(t)
			if !h.reserve(reserve) || !direct.ask(Consume, truly).Allowed {
				return
			}
			for _, o := range genOps(h.limit, 6, Consume).Draw(t, "meanwhile") {
				// What the reserve keeps out is kept out of both: they are to differ in nothing else.
				if h.play(o).Allowed {
					direct.play(o)
				} else {
					direct.play(op{o.after, Check, 1})
				}
			}
			h.settle(truly)
			used, want := h.state.counting().used(), direct.state.counting().used()
			if used < want {
				t.Fatalf("%d used after the settle, %d had the true cost been consumed", used, want)
			}
			if a != TokenBucket && used != want {
				t.Fatalf("%d used after the settle, want %d", used, want)
			}
			if b, d := &h.state.bucket, &direct.state.bucket; a == TokenBucket && used == want && b.fraction > d.fraction {
				t.Fatalf("a token is there to %d of %d after the settle, %d had the true cost been consumed", b.fraction, b.window, d.fraction)
			}
			stored(t, &h.state)
		})
	})
}

// TestSettleToZeroRefillsBucket, though a part of a token was refilled meanwhile.
func TestSettleToZeroRefillsBucket(t *testing.T) {
	t.Parallel()
	for _, meanwhile := range []int64{0, 1, 7, 86_399_999, 86_400_000} {
		h := settling{history: history{limit: limitOf(t, TokenBucket, 1, "1d"), now: noon}}
		if !h.reserve(1) {
			t.Fatal("denied")
		}
		h.play(op{meanwhile, Check, 1})
		h.settle(0)
		if r := h.play(op{0, Check, 1}); r.Used != 0 || !r.Allowed {
			t.Errorf("settled to nothing %d ms after the charge: %+v", meanwhile, r)
		}
	}
}

// TestSettleNeverOverAdmits: the law of the limit holds for what was charged in the end.
func TestSettleNeverOverAdmits(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, cases, func(t *rapid.T) {
			h := genSettling(t, a)
			h.state = State{} // the log begins here
			reserve := rapid.Int64Range(1, min(h.limit.capacity(), MaxAmount)).Draw(t, "reserve")
			if !h.reserve(reserve) {
				return
			}
			truly := rapid.Int64Range(0, reserve).Draw(t, "true cost")
			log := []charged{{at: h.kept.Limits[0].At, cost: truly}}
			play := func(ops []op) {
				for _, o := range ops {
					if h.play(o).Allowed {
						log = append(log, charged{at: h.state.counting().moment(), cost: o.cost})
					}
				}
			}
			play(genOps(h.limit, 6, Consume).Draw(t, "meanwhile"))
			h.settle(truly)
			play(genOps(h.limit, 6, Consume).Draw(t, "afterwards"))
			if a == FixedWindow && h.limit.FirstUse {
				return // its windows depend on what was charged first
			}
			if !law(h.limit, log) {
				t.Fatalf("%d settled to %d; charged in the end: %v", reserve, truly, log)
			}
		})
	})
}

// TestSettleTellsWhetherItFitted: all that remains fits. For one more, retryAfter is until as much as was missing fits again.
func TestSettleTellsWhetherItFitted(t *testing.T) {
	t.Parallel()
	wait := map[Algorithm]int64{FixedWindow: 60_000, SlidingWindow: 61_000, TokenBucket: 8 * 6_000} // 7 more at 11 of 10
	each(t, func(t *testing.T, a Algorithm) {
		h := &settling{history: history{limit: limitOf(t, a, 10, "1m"), now: noon}}
		if !h.reserve(4) {
			t.Fatal("denied")
		}
		if r := h.copied(t).settle(10); !r.Allowed || r.Used != 10 || r.Remaining != 0 || r.RetryAfter != 0 {
			t.Errorf("settled from 4 to 10 of 10: %+v", r)
		}
		if r := h.copied(t).settle(11); r.Allowed || r.Used != 11 || r.Remaining != 0 || r.RetryAfter != wait[a] {
			t.Errorf("settled from 4 to 11 of 10: %+v; want a retry after %d ms", r, wait[a])
		}
	})
}

// TestSettleGivesBackWhatIsLeftOfItsCharge: a refund took from the oldest charge, which was that of the settle, and what
// came later stays charged.
func TestSettleGivesBackWhatIsLeftOfItsCharge(t *testing.T) {
	t.Parallel()
	h := &settling{history: history{limit: limitOf(t, SlidingWindow, 10, "1m"), now: noon}}
	if !h.reserve(5) {
		t.Fatal("denied")
	}
	h.play(op{10_000, Consume, 5})
	h.play(op{0, Refund, 3})
	if r := h.settle(0); r.Used != 5 || r.Remaining != 5 {
		t.Errorf("after 5 and 5, and a refund of 3, the first 5 were settled to nothing: %+v", r)
	}
	h.state = *stored(t, &h.state)
}

// TestSettleKeepsOpenLeases: a lease that was charged meanwhile can still be served.
func TestSettleKeepsOpenLeases(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		h := &settling{history: history{limit: Limit{CounterID: CounterID{"k", "n"}, Algorithm: a, Limit: 1000, Threshold: -1}, now: 1_700_000_000_000}}
		h.limit.Window, _ = ParseWindow("1h")
		if !h.reserve(600) {
			t.Fatal("denied")
		}
		lent, _, _ := h.state.chargeAhead(&h.limit, 40)
		if lent != 40 {
			t.Fatalf("lent %d", lent)
		}
		h.ask(Refund, 590) // somebody gave back what was not his
		h.settle(0)
		if used := h.state.counting().used(); used < lent {
			t.Errorf("%d used, and %d lent", used, lent)
		}
	})
}

// TestSettleGivesBackWhatWasLent, once the lease is over, also if the counter has another amount by then.
func TestSettleGivesBackWhatWasLent(t *testing.T) {
	t.Parallel()
	for _, a := range []Algorithm{SlidingWindow, FixedWindow} {
		h := &settling{history: history{limit: limitOf(t, a, 1000, "1h"), now: noon}}
		if !h.reserve(600) {
			t.Fatal("denied")
		}
		h.kept.Limits[0].Since = h.state.since
		first := h.limit
		h.limit.Limit = 2000
		h.ask(Check, 1)
		if lent, _, _ := h.state.chargeAhead(&h.limit, 40); lent != 40 {
			t.Fatalf("lent %d", lent)
		}
		h.ask(Refund, 590)
		h.limit, h.now = first, noon+maxLease+leaseGrace+1
		if r := h.settle(0); r.Used != 0 {
			t.Errorf("%s: %d used after all was given back and every lease has ended", a, r.Used)
		}
	}
}

// TestSettleOfRedefinedLimitOnlyCharges charges what is missing under the definition that stands
// now, and gives nothing back. It is charged at the present moment, when less is used than before.
func TestSettleOfRedefinedLimitOnlyCharges(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		h := &settling{history: history{limit: Limit{CounterID: CounterID{"k", "n"}, Algorithm: a, Limit: 100, Threshold: -1}, now: 1_700_000_000_000}}
		h.limit.Window, _ = ParseWindow("1h")
		h.reserve(50)
		old := h.limit
		h.limit.Limit = 200
		h.ask(Consume, 10)
		now := h.limit
		for cost, want := range map[int64]int64{30: 60, 70: 80} {
			c := h.copied(t)
			c.limit = old
			c.settle(cost)
			if c.state.spec != now.hash() || c.state.counting().used() != want {
				t.Errorf("settled to %d: %d used, want %d under the new definition", cost, c.state.counting().used(), want)
			}
			stored(t, &c.state)

			c = h.copied(t)
			c.limit, c.now = old, h.now+2*3_600_000
			c.settle(cost + 50)
			if a != FixedWindow { // its window has ended, and the next one is that of the settle
				c.limit = now
			}
			if r := c.ask(Check, 1); r.Used != cost || c.state.counting().moment() != c.now {
				t.Errorf("settled to %d two hours later: %d used at %d, want %d at %d", cost+50, r.Used, c.state.counting().moment(), cost, c.now)
			}
		}
	})
}

// TestASettleRedefinesAnEndedWindowAlone, and only one that begins and ends as the stored one does: under any other definition
// the counter keeps its own, and a window that is over is charged as of its last moment. A counter under the settle's
// definition is brought to now as by any request.
func TestASettleRedefinesAnEndedWindowAlone(t *testing.T) {
	t.Parallel()
	hour := limitOf(t, FixedWindow, 100, "1h")
	less, firstUse, sliding, bucket, day := hour, hour, hour, hour, limitOf(t, FixedWindow, 100, "1d")
	less.Limit, firstUse.FirstUse, sliding.Algorithm, bucket.Algorithm = 50, true, SlidingWindow, TokenBucket
	for _, stands := range []Limit{hour, firstUse, sliding, bucket, day} {
		for _, l := range []Limit{hour, less, firstUse, sliding, bucket, day} {
			for _, after := range []int64{0, 1_000_000, 2 * 3_600_000} {
				h := settling{history: history{limit: stands, now: noon + 60_000}, kept: &reservation{Cost: 1, Limits: make([]reservedLimit, 1)}}
				h.ask(Consume, 10)
				h.now += after
				same := h.copied(t)
				used, want, at := same.ask(Check, 1).Used, stands.hash(), h.now
				if ended := stands.Algorithm == FixedWindow && stands.Window.text == "1h" && after > 3_600_000; ended && l != stands {
					used, at = 10, h.state.fixed.end-1
				}
				if (l == less || l == firstUse) && stands == hour && after > 3_600_000 {
					used, want, at = 0, l.hash(), h.now
				}
				h.limit = l
				h.settle(4)
				if s := stored(t, &h.state); s.spec != want || s.counting().moment() != at || s.counting().used() != used+3 {
					t.Errorf("%+v, settled under %+v after %d ms: %d used at %d under %x, want %d at %d under %x",
						stands, l, after, s.counting().used(), s.counting().moment()-noon, s.spec, used+3, at-noon, want)
				}
			}
		}
		early, late := State{until: noon + 100}, State{until: noon + 100}
		early.advanceInPlace(&stands, noon)
		late.advance(&stands, noon)
		early.advanceInPlace(&stands, noon+1)
		late.advance(&stands, noon+1)
		if diff := cmp.Diff(late, early, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
			t.Errorf("%+v: in place as by a request (-), got (+):\n%s", stands, diff)
		}
	}
}

func TestReservationRestoresItsLimit(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, 100, func(t *rapid.T) {
			l := genLimit(a).Draw(t, "limit")
			l.Policy, l.User, l.Shadow = "p", "u", rapid.Bool().Draw(t, "shadow")
			l.Threshold = rapid.Int64Range(-1, MaxAmount).Draw(t, "threshold")
			r := Request{Verb: Consume, Cost: 1, Limits: []Limit{l}, decision: Decision{Allowed: true}}
			k := reservation{Limits: []reservedLimit{{l.Key, l.Name, l.Spec(), l.Threshold, l.User, l.Shadow, 7, 7}}}
			back, err := k.limits()
			if err != nil || !back[0].sameDefinition(&r.Limits[0]) || back[0].Threshold != l.Threshold ||
				back[0].User != l.User || back[0].Shadow != l.Shadow {
				t.Fatalf("%+v, %v", cmp.Diff(l.Spec(), back[0].Spec()), err)
			}
		})
	})
}
