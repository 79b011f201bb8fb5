package storetest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/jobs"
)

// MovedClock runs the part of the suite in which hours pass, or a clock that was ahead is set back.
// open returns an empty store, which is closed when its test ends, and a function that moves the
// clock of jobs, deliveries and groups of events by d.
func MovedClock(t *testing.T, open func(t *testing.T) (s Store, pass func(d time.Duration))) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, s Store, pass func(d time.Duration))
	}{
		{"a run that started while the clock was ahead is lost at the end of its lease", runAhead},
		{"a delivery made while the clock was ahead ends by age", deliveryAhead},
		{"a group is kept from its last change on", groupChanges},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, pass := open(t)
			c.run(t, s, pass)
		})
	}
}

// runAhead: a run started while the clock was ahead. Its lease starts when that is noticed, since
// the run may still be going on.
func runAhead(t *testing.T, s Store, pass func(d time.Duration)) {
	for i, c := range []struct {
		job     string
		passed  time.Duration
		outcome jobs.Outcome
		lost    int
	}{
		{"daily", 0, jobs.Running, 0},
		{"often", -30 * 24 * time.Hour, jobs.Running, 0},
		{"daily", 5 * time.Minute, jobs.Skipped, 0},
		{"daily", 2 * time.Minute, jobs.Running, 2},
	} {
		pass(c.passed)
		got, err := s.ClaimRun(t.Context(), jobs.Claim{Job: c.job, Scheduled: int64(i), Replica: "a", Lease: 6 * time.Minute})
		if err != nil || got.Outcome != c.outcome || len(got.Lost) != c.lost {
			t.Errorf("%s: %+v, %v; want %s, and %d lost", c.job, got, err, c.outcome, c.lost)
		}
	}
}

// deliveryAhead: the age of a delivery that was made while the clock was ahead counts from when it
// is recalled or replayed.
func deliveryAhead(t *testing.T, s Store, pass func(d time.Duration)) {
	const day = 24 * time.Hour
	for _, id := range []string{"waits", "dead"} {
		if err := s.AddDelivery(t.Context(), alerts.NewDelivery(alerts.Message{ID: id}, "x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SaveResults(t.Context(), []alerts.DeliveryResult{{ID: "dead/x", State: alerts.DeliveryDead}}); err != nil {
		t.Fatal(err)
	}
	pass(-365 * day)
	n, err := s.RecallDeliveries(t.Context(), day, time.Minute, 9)
	if n != 1 || err != nil {
		t.Errorf("recalled %d, %v", n, err)
	}
	if n, err = s.ReplayDeliveries(t.Context(), alerts.DeadFilter{Max: 9}); n != 1 || err != nil {
		t.Errorf("replayed %d, %v", n, err)
	}
	for _, want := range []int{0, 2} {
		ended, err := s.EndDeliveries(t.Context(), alerts.Overdue{Age: 2 * day, Lease: time.Minute, Max: 9},
			func(*alerts.Delivery) string { return "too old" })
		if err != nil || len(ended) != want {
			t.Errorf("%d ended, %v; want %d", len(ended), err, want)
		}
		pass(2*day + time.Hour)
	}
}

// groupChanges has two groups that begin at the same time, of which one changes later.
func groupChanges(t *testing.T, s Store, pass func(d time.Duration)) {
	count := func(state string, groups ...alerts.GroupID) alerts.TakeState {
		t.Helper()
		return take(t, s, alerts.TakeQuery{Groups: groups}, func(alerts.TakeState) alerts.Changes {
			c := alerts.Changes{States: map[alerts.GroupID]json.RawMessage{}}
			for _, g := range groups {
				c.States[g] = json.RawMessage(state)
			}
			return c
		})
	}
	both := []alerts.GroupID{group("changes"), group("rests")}
	count(`1`, both...)
	pass(3 * time.Hour)
	now := count(`2`, group("changes")).Now
	if n, err := s.PruneGroups(within(t), time.UnixMilli(now-hour), 9); n != 1 || err != nil {
		t.Errorf("removed %d, %v; want the group that rests", n, err)
	}
	seen := take(t, s, alerts.TakeQuery{Groups: both}, nil)
	equal(t, "left", seen.States, map[alerts.GroupID]json.RawMessage{group("changes"): json.RawMessage(`2`)})
}
