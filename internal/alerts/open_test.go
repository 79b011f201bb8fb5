package alerts

import (
	"testing"
	"time"

	"github.com/seed503877ad/limits"
)

// TestAnOpenAlertFollowsItsEvents: it began with the earliest, also if that came late, and ended with the latest. It stays open
// until it has been quiet for ResolveAfter, and for Dedup after it was raised, not after its last event.
func TestAnOpenAlertFollowsItsEvents(t *testing.T) {
	t.Parallel()
	r := oneRule(func(r *Rule) { r.Dedup, r.ResolveAfter = 60*time.Minute, 10*time.Minute })
	k := taker{now: start}
	for _, c := range []struct{ now, at, first, last, resolve int64 }{
		{0, 0, 0, 0, 60 * minute},
		{20 * minute, 20 * minute, 0, 20 * minute, 60 * minute},
		{21 * minute, -minute, -minute, 20 * minute, 60 * minute},
		{50*minute + 1, 50 * minute, -minute, 50 * minute, 60*minute + 1},
	} {
		k.now = start + c.now
		k.take(t, r, denial(int(c.now), c.at, 5))
		if len(k.open) != 1 {
			t.Fatalf("%d alerts", len(k.open))
		}
		for _, a := range k.open {
			if a.FirstAt != start+c.first || a.LastAt != start+c.last || a.ResolveAt != start+c.resolve {
				t.Errorf("an event of %d at %d: from %d to %d, open until %d; want from %d to %d, until %d", c.at, c.now, a.FirstAt-start, a.LastAt-start,
					a.ResolveAt-start, c.first, c.last, c.resolve)
			}
		}
	}
}

// TestAChargeIsValidForTheShortestOfItsThrottles: an alert that is sent on it counts for a whole window of each.
func TestAChargeIsValidForTheShortestOfItsThrottles(t *testing.T) {
	t.Parallel()
	const hour, day = 60 * minute, 24 * 60 * minute
	a := Alert{Throttles: []Throttle{{Limit: 20, Window: "1h"}, {Name: "one", Limit: 5, Window: "1d"}}}
	for _, c := range []struct{ ofHour, ofDay, want int64 }{
		{start + hour, start + day + 1, start}, {start + hour + 1, start + day, start}, {start, start + day, start - hour},
	} {
		reply := &limits.Reply{Reset: c.ofDay, Limits: []limits.LimitReply{{Reset: c.ofHour}, {Reset: c.ofDay}}}
		if got := a.chargeValidUntil(reply); got != c.want {
			t.Errorf("resets %d and %d from now: valid for %d ms, want %d", c.ofHour-start, c.ofDay-start, got-start, c.want-start)
		}
	}
	a.Throttles = a.Throttles[:1] // a reply about one limit lists none
	if got := a.chargeValidUntil(&limits.Reply{Reset: start + hour + 7}); got != start+7 {
		t.Errorf("of one throttle: valid for %d ms, want 7", got-start)
	}
}
