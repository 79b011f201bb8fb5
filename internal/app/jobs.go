package app

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/seed503877ad/limits/internal/jobs"
)

// cleaner is what the jobs need of a store.
type cleaner interface {
	jobs.Store
	// Expire removes up to max counters and up to max receipts that have expired, and gives how many of both.
	Expire(ctx context.Context, max int) (int, error)
	RollupUsage(ctx context.Context, before time.Time, max int) (int, error)
	PruneUsage(ctx context.Context, before time.Time, max int) (int, error)
	PruneRequests(ctx context.Context, before time.Time, max int) (int, error)
	PruneOverrides(ctx context.Context, before time.Time, max int) (int, error)
}

const (
	// batchSize rows go at a time, which keeps what decisions wait for short. Behind each batch, and behind more of them the longer
	// there is more, comes a pause as long as that took, of batchPause at most: what a busy hour adds has to go as fast.
	batchSize  = 500
	batchPause = 25 * time.Millisecond
	// batchesMost is how many go without a pause at most; behind those that took longer than batchesTime half as many do.
	batchesMost = 16
	batchesTime = 400 * time.Millisecond
	// runMost is how long a run goes on removing; what is left is the next one's.
	runMost = 10 * time.Minute
	// overridesKept is how long an override that has expired can still be looked at.
	overridesKept = 30 * 24 * time.Hour
)

// startJobs runs what is done by the clock: where alerts are, and where a file is the store, of which no alerter beside could do it.
func (l *limiter) startJobs(context.Context) error {
	if !l.RunsAlerts() && l.DatabaseURL != "" {
		return nil
	}
	all := slices.Concat(houseJobs(&l.Options, l.store), l.nightJobs())
	if l.RunsAlerts() {
		all = append(all, l.alertJobs()...)
	}
	runner, err := jobs.New(jobs.Config{Jobs: all, Store: l.store, Logger: l.log, Replica: replica(), Observer: l.metrics.WatchJobs()})
	if err != nil {
		return err
	}
	runner.Start()
	l.onStop("jobs", runner.Close)
	l.jobs = runner
	return nil
}

// replica names this process: processes in containers all have the same number.
func replica() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:4])
}

// houseJobs are the jobs of a limiter. One that is to keep everything is not there: by hand it would remove all.
func houseJobs(o *Options, s cleaner) []jobs.Job {
	all := []jobs.Job{expireJob(o.CleanupEvery, s)}
	for _, j := range []struct {
		name, schedule, did string
		keep                time.Duration
		remove              func(ctx context.Context, before time.Time, max int) (int, error)
	}{
		{"usage-rollup", "7 * * * *", "rolled up", days(o.UsageMinuteDays), s.RollupUsage},
		{"usage-prune", "17 * * * *", "removed", days(o.UsageDays), s.PruneUsage},
		{"requests-prune", "27 * * * *", "removed", days(o.RequestDays), s.PruneRequests},
		{"overrides-prune", "37 3 * * *", "removed", overridesKept, s.PruneOverrides},
		{"history-prune", "47 3 * * *", "removed", days(o.JobDays), s.PruneRuns},
	} {
		if j.keep == 0 {
			continue
		}
		all = append(all, pruneJob(j.name, j.schedule, j.did, j.keep, j.remove))
	}
	return all
}

// pruneJob removes what is older than keep.
func pruneJob(name, schedule, did string, keep time.Duration, remove func(ctx context.Context, before time.Time, max int) (int, error)) jobs.Job {
	return jobs.Job{Name: name, Schedule: schedule, Jitter: time.Minute, Timeout: runMost + 2*time.Minute,
		Run: func(ctx context.Context) (string, error) {
			before := time.Now().Add(-keep)
			return inBatches(ctx, did, runMost, func(ctx context.Context, max int) (int, error) { return remove(ctx, before, max) })
		}}
}

func days(n int) time.Duration { return time.Duration(n) * 24 * time.Hour }

// expireJob removes counters and receipts that have expired. Without a time it runs by hand only.
func expireJob(every time.Duration, s cleaner) jobs.Job {
	j := jobs.Job{Name: "expire", Timeout: 3 * time.Minute, Run: func(ctx context.Context) (string, error) {
		return inBatches(ctx, "removed", time.Minute, s.Expire)
	}}
	if every > 0 {
		j.Schedule, j.Jitter = "@every "+every.String(), min(every/10, 5*time.Second)
	}
	return j
}

// inBatches removes until a batch is less than asked for, or for as long as most.
func inBatches(ctx context.Context, did string, most time.Duration, remove func(ctx context.Context, max int) (int, error)) (string, error) {
	total, end := 0, time.Now().Add(most)
	for at := 1; ; {
		began := time.Now()
		for range at {
			n, err := remove(ctx, batchSize)
			total += n
			note := fmt.Sprintf("%s %d", did, total)
			switch {
			case err != nil:
				return note, err
			case n < batchSize:
				return note, nil
			case ctx.Err() != nil:
				return note, ctx.Err()
			case time.Now().After(end):
				return note + ", more is left", nil
			}
		}
		took := time.Since(began)
		select {
		case <-ctx.Done():
			return fmt.Sprintf("%s %d", did, total), ctx.Err()
		case <-time.After(min(took, batchPause)):
		}
		if took > batchesTime {
			at = max(1, at/2)
		} else {
			at = min(2*at, batchesMost)
		}
	}
}
