package alerts

import (
	"testing"
	"time"
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
