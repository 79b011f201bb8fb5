package jobs_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// TestClockAheadForHours: after a worker's clock was ahead for long, and was set right, jobs run as before, also at the times
// for which they ran then.
func TestClockAheadForHours(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"goes on": false, "is restarted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, n := eachstore.SQLite(t, nil), newNotes()
				var ahead atomic.Int64
				start := func() *jobs.Runner {
					r, err := jobs.New(jobs.Config{Store: s, Logger: slog.New(slog.DiscardHandler), Observer: n, Replica: "a",
						Now:  func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
						Jobs: []jobs.Job{{Name: "often", Schedule: "@every 30s", Run: func(context.Context) (string, error) { return "", nil }}}})
					if err != nil {
						t.Fatal(err)
					}
					r.Start()
					return r
				}
				ahead.Store(int64(3 * time.Hour))
				r := start()
				time.Sleep(2 * time.Hour)
				ahead.Store(0)
				if restart {
					closeRunner(t, r)
					r = start()
				}
				before := len(n.ended())
				time.Sleep(4 * time.Hour)
				if runs := len(n.ended()) - before; runs < 4*120-10 {
					t.Errorf("%d runs in the 4 hours after the clock was set right; it runs 120 times an hour", runs)
				}
				closeRunner(t, r)
			})
		})
	}
}
