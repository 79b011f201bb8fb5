package engine

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// giveBackAtStored gives back at h.now, as act does with a state that was advanced to then, and
// keeps the moment that is stored. It returns the advanced state.
func giveBackAtStored(t failer, h *history, act func(later *history)) *State {
	later := history{limit: h.limit, state: *stored(t, &h.state), now: h.now}
	later.state.advance(&h.limit, h.now)
	later.latest = later.state.counting().moment()
	before := later.state.usage()
	act(&later)
	if later.state.usage() != before {
		h.state.giveBackLike(&later.state, before)
		h.state = *stored(t, &h.state)
	}
	return &later.state
}

// TestGivingBackAtStoredMomentIsTheSameLater: it is as if it was given back at the moment of the
// request, then and later. If the store's clock is set back, at least as much is used.
func TestGivingBackAtStoredMomentIsTheSameLater(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, cases, func(t *rapid.T) {
			h := begin(t, a)
			for _, o := range genOps(h.limit, 8, Consume, Consume, Record, Refund).Draw(t, "ops") {
				h.play(o)
			}
			if a == TokenBucket && rapid.Bool().Draw(t, "lowered") {
				h.limit.Limit = rapid.Int64Range(1, h.limit.Limit).Draw(t, "lower limit")
				h.play(op{0, Record, 1})
			}
			charge, at := rapid.Int64Range(1, h.limit.Limit).Draw(t, "charge"), h.latest
			h.play(op{0, Record, charge})
			for _, o := range genOps(h.limit, 3, Record).Draw(t, "more") {
				h.play(o)
				h.state.chargeAhead(&h.limit, rapid.Int64Range(1, 10).Draw(t, "lease"))
			}
			h.state = *stored(t, &h.state)
			h.now += rapid.Int64Range(-10, h.limit.Window.Millis*3/2).Draw(t, "after")
			cost := rapid.Int64Range(1, h.limit.Limit).Draw(t, "cost")
			later := giveBackAtStored(t, &h, func(later *history) {
				if rapid.Bool().Draw(t, "settle") {
					later.state.refundCharge(min(cost, charge), charge, at)
				} else {
					later.state.refund(cost)
				}
			})
			moment := later.counting().moment()
			for _, after := range []int64{0, 1, rapid.Int64Range(0, 2*h.limit.Window.Millis).Draw(t, "later")} {
				want, got := stored(t, later), stored(t, &h.state)
				want.advance(&h.limit, moment+after)
				got.advance(&h.limit, moment+after)
				if !bytes.Equal(want.Append(nil), got.Append(nil)) {
					t.Fatalf("%+v, %d ms later: %+v, want %+v", h.limit.Spec(), after, got, want)
				}
			}
			back := rapid.Int64Range(1, 2*h.limit.Window.Millis).Draw(t, "back")
			early := stored(t, &h.state)
			early.advance(&h.limit, moment-back)
			if early.counting().used() < later.counting().used() {
				t.Fatalf("%+v, clock set back by %d ms: %+v, before %+v", h.limit.Spec(), back, early, later)
			}
		})
	})
}

// TestRefundAtStoredMomentMakesNoMoreRoomThanItGaveBack, with a clock that is set back, and denials
// that are not stored: whichever of the charges that still count a refund is meant for, those that
// are kept obey the law.
func TestRefundAtStoredMomentMakesNoMoreRoomThanItGaveBack(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, cases, func(t *rapid.T) {
			h := begin(t, a)
			var kept []charged
			for _, o := range genOps(h.limit, 16, Consume, Consume, Consume, Refund).Draw(t, "ops") {
				h.now += o.after
				before := *stored(t, &h.state)
				switch {
				case o.verb == Refund && before.spec != 0:
					giveBackAtStored(t, &h, func(later *history) { giveBack(t, later, kept, o.cost) })
				case h.ask(Consume, o.cost).Allowed:
					kept = append(kept, charged{h.state.counting().moment(), o.cost, h.state.fixed.begin})
				default:
					h.state = before
				}
				if !keptLaw(h.limit, kept) {
					t.Fatalf("%+v admitted %v beside what was refunded", h.limit.Spec(), kept)
				}
			}
		})
	})
}
