package sqlite

import (
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/jobs"
)

// TestARunOfAClockThatWasAheadIsLost when its process died, at the end of its lease from when that is seen: it may still go on.
func TestARunOfAClockThatWasAheadIsLost(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	s := open(t, Config{Now: func() time.Time { return now }})
	for _, c := range []struct {
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
		now = now.Add(c.passed)
		got, err := s.ClaimRun(t.Context(), jobs.Claim{Job: c.job, Scheduled: now.UnixMilli(), Replica: "a", Lease: 6 * time.Minute})
		if err != nil || got.Outcome != c.outcome || len(got.Lost) != c.lost {
			t.Errorf("%s: %+v, %v; want %s, and %d lost", c.job, got, err, c.outcome, c.lost)
		}
	}
}

// TestADeliveryOfAClockThatWasAheadEndsByAge, counted from when it was recalled, or replayed.
func TestADeliveryOfAClockThatWasAheadEndsByAge(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	now := time.UnixMilli(1_700_000_000_000)
	s := open(t, Config{Now: func() time.Time { return now }})
	pass := func(d time.Duration) { now = now.Add(d) }
	for _, id := range []string{"waits", "dead"} {
		if err := s.AddDelivery(t.Context(), alerts.Delivery{Channel: "x", Message: alerts.Message{ID: id}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Deliver(t.Context(), []alerts.Tried{{ID: "dead/x", State: alerts.DeliveryDead}}); err != nil {
		t.Fatal(err)
	}
	pass(-365 * day)
	if n, err := s.RecallDeliveries(t.Context(), day, time.Minute, 9); n != 1 || err != nil {
		t.Errorf("recalled %d, %v", n, err)
	}
	if n, err := s.ReplayDeliveries(t.Context(), alerts.DeadFilter{Max: 9}); n != 1 || err != nil {
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
