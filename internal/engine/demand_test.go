package engine

import (
	"testing"

	"pgregory.net/rapid"
)

// asks are requests as a demand counts them, remembered one by one.
type asks struct {
	span int64
	cost map[int64]int64 // by span
}

func (a *asks) at(now int64) {
	if span := floorDiv(now, demandSpan); span > a.span || span < a.span-1 { // the clock was set back
		if span < a.span {
			a.cost = map[int64]int64{}
		}
		a.span = span
	}
}

func (a *asks) add(now, cost int64) {
	a.at(now)
	a.cost[a.span] += cost
}

// within is the cost of so many spans up to now: what is left of the present one counts of the oldest one.
func (a *asks) within(spans, now int64) int64 {
	left := min(demandSpan, (a.span+1)*demandSpan-now)
	sum := (2*a.cost[a.span-spans]*left + demandSpan) / (2 * demandSpan) // rounded
	for ago := range spans {
		sum += a.cost[a.span-ago]
	}
	return sum
}

func (a *asks) recent(now int64) int64 {
	a.at(now)
	return max(a.within(1, now), (2*a.within(4, now)+4)/8)
}

// TestDemandIsWhatWasAskedForLately: in the last quarter of a second, or on average in each of the last four.
func TestDemandIsWhatWasAskedForLately(t *testing.T) {
	t.Parallel()
	check(t, 200, func(t *rapid.T) {
		now := genInstant.Draw(t, "now")
		var d demand
		model := asks{cost: map[int64]int64{}}
		after := rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(0, 6*demandSpan), rapid.Int64Range(-3*demandSpan, 0),
			rapid.SampledFrom([]int64{-1, 1, demandSpan, 4 * demandSpan, 5 * demandSpan}))
		for range rapid.IntRange(1, 20).Draw(t, "requests") {
			now += after.Draw(t, "after")
			cost := rapid.Int64Range(1, 1000).Draw(t, "cost")
			d.add(now, cost)
			if rapid.Bool().Draw(t, "undone") {
				d.subtract(cost)
				cost = 0
			}
			model.add(now, cost)
			asked := now + rapid.Int64Range(0, 400).Draw(t, "asked after")
			if got, want := d.recent(asked), model.recent(asked); got != want {
				t.Fatalf("at %d: %d, want %d of %+v, %+v", asked, got, want, model, d)
			}
			now = max(now, asked)
		}
	})
}

// TestDemandIsBounded by what one request may ask for, and never below nothing, also where what is undone was asked for in an
// earlier span.
func TestDemandIsBounded(t *testing.T) {
	t.Parallel()
	var d demand
	d.add(noon, MaxAmount-1)
	if got := d.recent(noon); got != MaxAmount-1 {
		t.Errorf("%d is asked for", got)
	}
	if d.add(noon, 5); d.recent(noon) != MaxAmount {
		t.Errorf("%d is asked for, want no more than %d", d.recent(noon), int64(MaxAmount))
	}
	d = demand{}
	d.add(noon, 5)
	d.advance(noon + 5*demandSpan)
	if d.subtract(5); d.recent(noon+5*demandSpan) != 0 {
		t.Errorf("%d is asked for, want nothing", d.recent(noon+5*demandSpan))
	}
}
