package sqlite

import (
	"testing"
	"time"

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
