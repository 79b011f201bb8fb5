package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/robfig/cron/v3"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// houseNames returns the names of the jobs with their schedules.
func houseNames(o Options, s cleaner) (all []string) {
	for _, j := range maintenanceJobs(&o, s) {
		all = append(all, strings.TrimSpace(j.Name+" "+j.Schedule))
	}
	return all
}

func TestUnlimitedRetentionHasNoPruneJob(t *testing.T) {
	t.Parallel()
	store := &sqlite.Store{}
	want := []string{"expire", "keys-prune 32 3 * * *", "overrides-prune 37 3 * * *"}
	if got := houseNames(Options{}, store); !slices.Equal(got, want) {
		t.Errorf("jobs %q, want %q", got, want)
	}
	want = []string{"expire @every 1m0s", "usage-rollup 7 * * * *", "usage-prune 17 * * * *", "requests-prune 27 * * * *",
		"keys-prune 32 3 * * *", "overrides-prune 37 3 * * *", "history-prune 47 3 * * *"}
	o := Options{CleanupEvery: time.Minute, UsageMinuteDays: 1, UsageDays: 1, RequestDays: 1, JobDays: 1}
	if got := houseNames(o, store); !slices.Equal(got, want) {
		t.Errorf("jobs %q, want %q", got, want)
	}
}

// TestSQLiteJobsRunWithoutAlerts: no separate alerter can run them on a limiter's SQLite file.
func TestSQLiteJobsRunWithoutAlerts(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Alerter, o.CleanupEvery = "off", time.Minute
	nc := running(t, Run, o).connect(t)
	r, err := limits.NewClient(nc, limits.Timeout(patience)).RunJob(t.Context(), "expire")
	if err != nil || r.Run.Outcome != "done" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := nc.Request(limits.SubjectAlertsList, []byte(`{}`), patience); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("alerts: %v", err)
	}
}

// TestMaintenanceJobsRemoveInBatches runs every job on a store that has more than a batch of rows for it.
func TestMaintenanceJobsRemoveInBatches(t *testing.T) {
	t.Parallel()
	store := eachstore.SQLite(t, nil)
	const expired, live = 2*batchSize + 7, 5
	var b engine.Batch
	for i := range expired + live {
		b.Counters = append(b.Counters, engine.CounterID{Key: fmt.Sprintf("k%05d", i), Name: "1m"})
	}
	err := store.Update(t.Context(), b, func(snap engine.Snapshot) (c engine.Changes) {
		for i := range b.Counters {
			change := engine.CounterChange{Slot: i, State: []byte("s"), Spec: []byte("{}"), ExpiresAt: snap.Now}
			if i >= expired {
				change.ExpiresAt = snap.Now + time.Hour.Milliseconds()
			}
			c.Counters = append(c.Counters, change)
		}
		return c
	})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{UsageMinuteDays: 1, UsageDays: 1, RequestDays: 1, JobDays: 1}
	for _, j := range maintenanceJobs(&o, store) {
		want := map[string]string{"expire": fmt.Sprint("removed ", expired), "usage-rollup": "rolled up 0"}[j.Name]
		if want == "" {
			want = "removed 0"
		}
		if note, err := j.Run(t.Context()); note != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", j.Name, note, err, want)
		}
	}
	left, _, err := store.List(t.Context(), "", engine.CounterID{}, expired)
	if err != nil || len(left) != live {
		t.Errorf("%d counters are left, %v; want %d", len(left), err, live)
	}
}

// TestHourlyRemovalsHaveMostOfTheirHour, and end before the next run is due.
func TestHourlyRemovalsHaveMostOfTheirHour(t *testing.T) {
	t.Parallel()
	hourly := 0
	for _, j := range maintenanceJobs(&Options{UsageMinuteDays: 2, UsageDays: 90, RequestDays: 30}, eachstore.SQLite(t, nil)) {
		if !strings.HasSuffix(j.Schedule, " * * * *") {
			continue
		}
		hourly++
		if j.Timeout < 40*time.Minute || j.Timeout+2*j.Jitter >= time.Hour {
			t.Errorf("%s takes %s at most, and begins up to %s late", j.Name, j.Timeout, j.Jitter)
		}
	}
	if hourly != 3 {
		t.Errorf("%d hourly jobs, want those of usage and of the request log", hourly)
	}
}

// TestUnfinishedDigestIsMadeAgainSoon: alerts that a digest run left when it was killed do not wait for the next hour. Its
// claim is over by then.
func TestUnfinishedDigestIsMadeAgainSoon(t *testing.T) {
	t.Parallel()
	all := (&limiter{}).alertJobs()
	digest := all[slices.IndexFunc(all, func(j jobs.Job) bool { return j.Name == "alerts-digest" })]
	repeat, err := cron.ParseStandard(digest.Repeat)
	if err != nil {
		t.Fatal(err)
	}
	hour := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	if after := repeat.Next(hour).Sub(hour); after <= digest.Timeout+time.Minute || after > 15*time.Minute {
		t.Errorf("repeated after %s; a run takes %s at most", after, digest.Timeout)
	}
}

// TestDigestAllowsForTheClocksOfJobs: otherwise one that runs too early would keep others from running at the full hour, and
// leave out what may be sent then.
func TestDigestAllowsForTheClocksOfJobs(t *testing.T) {
	t.Parallel()
	if alerts.DigestLead < jobs.MaxAhead {
		t.Errorf("a digest runs %s ahead of the store's clock; a worker that runs it may be %s ahead", alerts.DigestLead, jobs.MaxAhead)
	}
}

// endless is a store with ever more that has expired, of which it removes 500 in half a second.
type endless struct{ *sqlite.Store }

func (endless) Expire(_ context.Context, max int) (int, error) {
	time.Sleep(500 * time.Millisecond)
	return max, nil
}

// TestExpireThatIsBehindRunsEachTime, on one of two alerters: a run ends before the next one is due anywhere, or that one would
// be skipped and its time be idle.
func TestExpireThatIsBehindRunsEachTime(t *testing.T) {
	t.Parallel()
	for _, every := range []time.Duration{10 * time.Second, time.Minute, 2 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s := endless{eachstore.SQLite(t, nil)}
			for _, replica := range []string{"a", "b"} {
				r, err := jobs.New(jobs.Config{Jobs: []jobs.Job{expireJob(every, s)}, Store: s, Logger: slog.New(slog.DiscardHandler), Replica: replica})
				if err != nil {
					t.Fatal(err)
				}
				r.Start()
				t.Cleanup(func() { _ = r.Close(context.WithoutCancel(t.Context())) })
			}
			const times = 100
			time.Sleep(times * every)
			synctest.Wait()
			runs, err := s.Runs(t.Context(), jobs.Filter{Job: "expire", Max: 2 * times})
			if err != nil || len(runs) < times {
				t.Fatalf("every %s: %d runs in %d times it, %v", every, len(runs), times, err)
			}
			most := min(every, time.Minute)
			for _, r := range runs[1:] { // the last one may go on
				took := time.Duration(r.EndedAt-r.StartedAt) * time.Millisecond
				if r.Outcome != jobs.Done || !strings.HasSuffix(r.Note, "more is left") || took < most*3/4 {
					t.Errorf("every %s: %+v", every, r)
				}
			}
		})
	}
}

func TestRemovalInBatchesEnds(t *testing.T) {
	t.Parallel()
	full := func(context.Context, int) (int, error) { return batchSize, nil }
	if note, err := inBatches(t.Context(), "removed", 0, full); note != "removed 500, more is left" || err != nil {
		t.Errorf("over its time: %q, %v", note, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if note, err := inBatches(ctx, "removed", time.Hour, full); note != "removed 500" || err == nil {
		t.Errorf("cancelled: %q, %v", note, err)
	}
	broken := func(context.Context, int) (int, error) { return 3, jobs.ErrStopped }
	if note, err := inBatches(t.Context(), "removed", time.Hour, broken); note != "removed 3" || err != jobs.ErrStopped {
		t.Errorf("with an error: %q, %v", note, err)
	}
}

// TestRemovalPausesLessTheLongerItLasts: decisions have half of the time to themselves at first. A run that is behind makes no
// pauses in the end, and so removes more than two thirds of what it could.
func TestRemovalPausesLessTheLongerItLasts(t *testing.T) {
	t.Parallel()
	for _, took := range []time.Duration{time.Millisecond, 18 * time.Millisecond, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var pauses []time.Duration
			began := time.Now()
			ended := began
			note, err := inBatches(t.Context(), "removed", time.Minute, func(_ context.Context, n int) (int, error) {
				pauses = append(pauses, time.Since(ended))
				time.Sleep(took)
				ended = time.Now()
				return n, nil
			})
			lasted, batches := time.Since(began), len(pauses)
			pauses = pauses[1:] // before the first batch there is none
			if err != nil || note != fmt.Sprintf("removed %d, more is left", batches*batchSize) || lasted > time.Minute+took {
				t.Errorf("batches of %s: %q, %v after %s", took, note, err, lasted)
			}
			if first, last := pauses[0], pauses[len(pauses)-1]; first > took || first < took*95/100 || last > took/20 {
				t.Errorf("batches of %s: pauses from %s to %s", took, first, last)
			}
			if !slices.IsSortedFunc(pauses, func(a, b time.Duration) int { return cmp.Compare(b, a) }) {
				t.Errorf("batches of %s: a pause is longer than the one before: %s", took, pauses)
			}
			if most := int(lasted / took); batches*3 < most*2 {
				t.Errorf("batches of %s: %d of %d at most", took, batches, most)
			}
		})
	}
}
