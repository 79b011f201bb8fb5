package engine

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Another definition takes what was used as charged at the last moment of the one before, whenever it comes, and then keeps
// the law of the new limit.
func TestAnotherDefinitionCarriesWhatIsUsed(t *testing.T) {
	t.Parallel()
	check(t, cases, func(t *rapid.T) {
		h := begin(t, rapid.SampledFrom(algorithms).Draw(t, "from"))
		for _, o := range genOps(h.limit, 8, Consume, Consume, Record, Refund).Draw(t, "ops") {
			h.play(o)
		}
		// The change comes some time after the last request under the old definition.
		last, used := h.latest, h.state.counting().used()
		h.now = h.latest + rapid.Int64Range(0, h.limit.Window.Millis).Draw(t, "change")
		h.latest = h.now
		old := history{limit: h.limit, state: *stored(t, &h.state), now: h.now}
		h.limit = genLimit(rapid.SampledFrom(algorithms).Draw(t, "to")).Draw(t, "limit")
		if rapid.Bool().Draw(t, "same window") && old.limit.Window.Period == 0 {
			h.limit.Window, h.limit.Zone = old.limit.Window, nil
		}
		h.state = *stored(t, &h.state)
		// What counts is the window of the last request: the one after it, that the old definition would begin by now, may
		// happen to be of the new one too.
		same := goesOn(&old, &h)
		left := old.ask(Check, 1).Used
		if !same || h.limit.Algorithm == TokenBucket {
			anew := history{limit: h.limit, now: last}
			if used > 0 {
				anew.ask(Record, used)
			}
			anew.now = h.now
			left = anew.ask(Check, 1).Used
		}
		r := h.ask(Check, 1)
		if same && h.limit.Algorithm == TokenBucket && r.Used < left {
			left-- // a bucket keeps its part of a token
		}
		if r.Used != left || r.Remaining != max(0, h.limit.capacity()-left) {
			t.Fatalf("%d used of %+v, the last at %d, became %d used, %d remaining of %+v at %d, want %d", used, old.limit.Spec(), last,
				r.Used, r.Remaining, h.limit.Spec(), h.now, left)
		}
		if same || used > h.limit.capacity() {
			return // what is used may be free earlier than if it had been charged then
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

// goesOn tells whether the same window counts on under another definition.
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

// lawFrom is the law for a log whose first charge stands for what was used before; it may be of nothing, which
// starts no window.
func lawFrom(l Limit, log []charged) bool {
	if log[0].cost == 0 {
		log = slices.Delete(log, 0, 1)
	}
	return law(l, log)
}
