package engine

import (
	"errors"
	"strconv"
	"strings"
	"testing"
)

// deniedBy is a request of that user that never fits.
func deniedBy(t *testing.T, user string, cost int64) asked {
	l := limitOf(t, SlidingWindow, 5, "1h")
	l.User = user
	return asked{verb: Consume, limits: []Limit{l}, cost: cost}
}

// TestAReportOfNothingWritesNothing, whether its event is due or not, so the next denial has its event at once.
func TestAReportOfNothingWritesNothing(t *testing.T) {
	t.Parallel()
	w, denied := newTable(noon), deniedBy(t, "u", 6)
	report := denied
	report.verb = reportDenials
	nothing := func(what string) {
		t.Helper()
		if _, changes := w.commit(report); len(changes.Counters) > 0 || len(changes.Events) > 0 {
			t.Errorf("%s: %+v", what, changes)
		}
	}
	w.write(denied)
	w.now = noon + 1
	nothing("just after the event")
	w.now = noon + exceededInterval
	nothing("when the next event is due")
	if _, changes := w.commit(denied); len(changes.Events) != 1 || changes.Events[0].Denied != 1 {
		t.Errorf("the next denial: %+v", changes.Events)
	}
	w.now++
	w.write(denied)
	if _, changes := w.commit(report); len(changes.Counters) != 1 || len(changes.Events) > 0 {
		t.Errorf("a report that leaves a denial in the counter: %+v", changes)
	}
	nothing("when the counter has what is to be reported")
	w.now += exceededInterval
	if _, changes := w.commit(denied, report); len(changes.Events) != 1 || changes.Events[0].Denied != 2 {
		t.Errorf("a denial and a report: %+v, want one event", changes.Events)
	}
}

// TestAnEarlyReportWaitsForTheNextEvent of the counter, which another worker may raise; or for as long from now, if the clock
// was set back.
func TestAnEarlyReportWaitsForTheNextEvent(t *testing.T) {
	t.Parallel()
	for after, due := range map[int64]int64{4000: noon + exceededInterval, -5000: noon - 5000 + exceededInterval} {
		w, denied := newTable(noon), deniedBy(t, "u", 6)
		report := denied
		report.verb = reportDenials
		w.write(denied)
		w.now += after
		w.write(denied)
		w.write(report)
		if early, then := w.denials.due(due-1), w.denials.due(due); len(early) != 0 || len(then) != 1 {
			t.Errorf("after %d ms: %d reports before, and %d at %d ms after the event", after, len(early), len(then), due-noon)
		}
	}
}

// TestDenialsAreReportedAsThoseOfTheFirst in their batch.
func TestDenialsAreReportedAsThoseOfTheFirst(t *testing.T) {
	t.Parallel()
	w := newTable(noon)
	w.write(deniedBy(t, "told", 6))
	w.now++
	w.write(deniedBy(t, "first", 7), deniedBy(t, "then", 8))
	if rs := w.denials.all(); len(rs) != 1 || rs[0].Limits[0].User != "first" || rs[0].deniedCosts[0] != 7 {
		t.Errorf("%+v", rs)
	}
}

// TestAFailedReportIsRepeated with the denials that came since, none of which counts twice.
func TestAFailedReportIsRepeated(t *testing.T) {
	t.Parallel()
	var d denialCounts
	d.init()
	l := limitOf(t, SlidingWindow, 5, "1h")
	lost := func(want string) {
		t.Helper()
		if err := d.lost(errors.New("down")); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("lost: %v, want %q", err, want)
		}
	}
	add := func(n, due int64) { d.addTo(&unreported{limit: l}, &l, 6, n, due) }
	lost("")
	add(2, noon)
	lost("2 denials of 1 counters")
	for range 2 {
		if got := d.take(l.CounterID); got != 2 {
			t.Errorf("took %d, want 2", got)
		}
		lost("2 denials of 1 counters")
	}
	add(3, noon)
	add(4, noon)
	lost("9 denials of 1 counters")
	for range 2 {
		if got := d.take(l.CounterID); got != 9 {
			t.Errorf("took %d, want 9", got)
		}
		lost("9 denials of 1 counters")
	}
	add(1, noon)
	d.afterCommit(&counter{limit: &l, exceededEvent: 0, cachedDenials: 9}, noon)
	lost("1 denials of 1 counters")
	if early, then := d.due(noon+exceededInterval-1), d.due(noon+exceededInterval); len(early) != 0 || len(then) != 1 {
		t.Errorf("%d reports before the next event is due, and %d then", len(early), len(then))
	}
	if got := d.take(l.CounterID); got != 1 {
		t.Errorf("took %d, want 1", got)
	}
	d.afterCommit(&counter{limit: &l, exceededEvent: 0, cachedDenials: 1}, noon)
	if lost(""); len(d.pending) != 0 {
		t.Errorf("%d counters have denials", len(d.pending))
	}
}

// TestDenialsThatAreLeftInTheCounterAreNotLost, and its next denial is reported with the next event.
func TestDenialsThatAreLeftInTheCounterAreNotLost(t *testing.T) {
	t.Parallel()
	var d denialCounts
	d.init()
	l := limitOf(t, SlidingWindow, 5, "1h")
	d.addTo(&unreported{limit: l}, &l, 6, countClosed, 0)
	if err := d.lost(errors.New("down")); err != nil || d.take(l.CounterID) != 0 {
		t.Errorf("%v, and %d to take", err, d.take(l.CounterID))
	}
	d.addTo(&unreported{limit: l}, &l, 6, 1, noon+exceededInterval)
	for at, want := range map[int64]int{noon: 0, noon + exceededInterval: 1, noon - 1: 1} { // the last after the clock was set back
		if got := len(d.due(at)); got != want {
			t.Errorf("%d ms from now: %d reports, want %d", at-noon, got, want)
		}
	}
}

// TestDenialsOfManyCountersAreNotCounted beyond a bound, apart from those of counters that are counted already.
func TestDenialsOfManyCountersAreNotCounted(t *testing.T) {
	t.Parallel()
	var d denialCounts
	d.init()
	add := func(key string) bool {
		l := limitOf(t, SlidingWindow, 5, "1h")
		l.Key = key
		return d.addTo(&unreported{limit: l}, &l, 6, 1, noon) != nil
	}
	for i := range maxUnreported {
		if !add(strconv.Itoa(i)) {
			t.Fatalf("%d counters are counted, want %d", i, maxUnreported)
		}
	}
	d.take(CounterID{"7", "1h"})
	if add("one more") || !add("7") || len(d.pending) != maxUnreported {
		t.Errorf("%d counters are counted, want %d", len(d.pending), maxUnreported)
	}
}

// TestAnEventIsDueAfterItsInterval, to the millisecond, on both sides: the clock may have been set back.
func TestAnEventIsDueAfterItsInterval(t *testing.T) {
	t.Parallel()
	for after, want := range map[int64]bool{
		0: false, exceededInterval - 1: false, exceededInterval: true, 1 - exceededInterval: false, -exceededInterval: true,
	} {
		if got := exceededDue(noon, noon+after); got != want {
			t.Errorf("due %d ms after the last: %t", after, got)
		}
	}
	if !exceededDue(0, 1) {
		t.Error("the first is not due")
	}
}
