package week_test

import (
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/week"
)

func TestSpans(t *testing.T) {
	t.Parallel()
	const hour, day = 60, week.DayMinutes
	friday := week.New([]int{5}, 22*hour, 7*hour)
	saturday := week.New([]int{6}, 22*hour, 7*hour) // over the end of the week
	for _, c := range []struct {
		name  string
		spans week.Spans
		at    int
		end   int
	}{
		{"before", friday, 5*day + 22*hour - 1, -1}, {"begins", friday, 5*day + 22*hour, 6*day + 7*hour},
		{"the next day", friday, 6 * day, 6*day + 7*hour}, {"ended", friday, 6*day + 7*hour, -1},
		{"to the end of the week", saturday, 6*day + 23*hour, week.Minutes}, {"from the start of the week", saturday, 0, 7 * hour},
		{"until the same time of the next day", week.New([]int{1}, 7*hour, 7*hour), 2*day + 7*hour - 1, 2*day + 7*hour},
		{"all day", week.New([]int{1}, 0, day), 2*day - 1, 2 * day},
	} {
		if got := c.spans.End(c.at); got != c.end || c.spans.Holds(c.at) != (c.end >= 0) {
			t.Errorf("%s: %d, want %d", c.name, got, c.end)
		}
	}
	early := week.New([]int{6}, 0, 7*hour)
	if !friday.Overlaps(early) || !early.Overlaps(friday) || friday.Overlaps(saturday) || !friday.Covers(early) || early.Covers(friday) || friday.Covers(nil) {
		t.Error("Overlaps or Covers is wrong for spans that overlap")
	}
	if next := week.New([]int{6}, 7*hour, 8*hour); early.Overlaps(next) || next.Overlaps(early) || !early.Covers(early) || early.Covers(week.New([]int{6}, 0, 8*hour)) {
		t.Error("Overlaps or Covers is wrong for adjacent spans, or for a longer one")
	}
	if got := week.Minute(time.Date(2026, 1, 18, 1, 30, 59, 0, time.UTC)); got != 90 { // a Sunday
		t.Errorf("minute %d", got)
	}
	if got := week.Minute(time.Date(2026, 1, 21, 1, 30, 59, 0, time.UTC)); got != 3*day+90 { // a Wednesday
		t.Errorf("minute %d", got)
	}
	for _, s := range []week.Spans{friday, week.New([]int{6}, 22*hour, day), week.New([]int{6}, 22*hour, day-1)} {
		if len(s) != 1 { // an empty one would be covered by none
			t.Errorf("spans %v; want one", s)
		}
	}
}
