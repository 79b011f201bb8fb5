package postgres

import (
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/jobs"
)

// TestARunOfAClockThatWasAheadIsLost when its process died, at the end of its lease from when that is seen: it may still go on.
func TestARunOfAClockThatWasAheadIsLost(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	conn := connect(t, s)
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
		// To the clock it is as if what is there were older.
		if _, err := conn.Exec(t.Context(), `UPDATE job_runs SET started_at = started_at - $1, deadline = deadline - $1`, c.passed.Milliseconds()); err != nil {
			t.Fatal(err)
		}
		got, err := s.ClaimRun(t.Context(), jobs.Claim{Job: c.job, Scheduled: int64(i), Replica: "a", Lease: 6 * time.Minute})
		if err != nil || got.Outcome != c.outcome || len(got.Lost) != c.lost {
			t.Errorf("%s: %+v, %v; want %s, and %d lost", c.job, got, err, c.outcome, c.lost)
		}
	}
}
