package app

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/keys"
)

// cleaner is what the jobs need of a store.
type cleaner interface {
	jobs.Store
	// Expire removes up to max expired counters and up to max expired receipts. It returns how many of both.
	Expire(ctx context.Context, max int) (int, error)
	RollupUsage(ctx context.Context, before time.Time, max int) (int, error)
	PruneUsage(ctx context.Context, before time.Time, max int) (int, error)
	PruneRequests(ctx context.Context, before time.Time, max int) (int, error)
	PruneKeys(ctx context.Context, before time.Time, max int) (int, error)
	PruneOverrides(ctx context.Context, before time.Time, max int) (int, error)
}

const (
	// batchSize rows are removed in one transaction, so that decisions wait for a short time only.
	batchSize = 500
	// maxPruneTime is how long a run goes on removing; the next one, mostly an hour later, removes the rest. It is most of that
	// hour, because an hour with many keys adds more rows of usage than ten minutes remove.
	maxPruneTime = 40 * time.Minute
	// overrideRetention is how long an override that has expired is still shown: as long as an API key that has ended.
	overrideRetention = keys.EndedRetention
)

// startJobs starts scheduled jobs, if alerts run here or the store is SQLite: no other process can open its file.
func (l *limiter) startJobs(context.Context) error {
	if !l.runsAlerts() && l.DatabaseURL != "" {
		return nil
	}
	all := slices.Concat(maintenanceJobs(&l.Options, l.store), l.nightlyJobs())
	if l.runsAlerts() {
		all = append(all, l.alertJobs()...)
	}
	var names []string
	for _, j := range all {
		names = append(names, j.Name)
	}
	runner, err := jobs.New(jobs.Config{Jobs: all, Store: l.store, Logger: l.log, Replica: replica(), Observer: l.metrics.WatchJobs(names)})
	if err != nil {
		return err
	}
	runner.Start()
	l.onStop("jobs", runner.Close)
	l.jobs = runner
	return nil
}

// replica names this process. The random part is there because processes in containers often have the same pid.
func replica() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:4])
}

// maintenanceJobs keep the store small. A job whose retention is 0 (for ever) is left out: if it were run by hand it
// would remove everything.
func maintenanceJobs(o *Options, s cleaner) []jobs.Job {
	all := []jobs.Job{expireJob(o.CleanupEvery, s)}
	for _, j := range []struct {
		name, schedule, did string
		retention           time.Duration
		remove              func(ctx context.Context, before time.Time, max int) (int, error)
	}{
		{"usage-rollup", "7 * * * *", "rolled up", days(o.UsageMinuteDays), s.RollupUsage},
		{"usage-prune", "17 * * * *", "removed", days(o.UsageDays), s.PruneUsage},
		{"requests-prune", "27 * * * *", "removed", days(o.RequestDays), s.PruneRequests},
		{"keys-prune", "32 3 * * *", "removed", keys.EndedRetention, s.PruneKeys},
		{"overrides-prune", "37 3 * * *", "removed", overrideRetention, s.PruneOverrides},
		{"history-prune", "47 3 * * *", "removed", days(o.JobDays), s.PruneRuns},
	} {
		if j.retention == 0 {
			continue
		}
		all = append(all, pruneJob(j.name, j.schedule, j.did, j.retention, j.remove))
	}
	return all
}

// pruneJob removes rows older than retention. did begins the note of a run, such as "removed".
func pruneJob(name, schedule, did string, retention time.Duration,
	remove func(ctx context.Context, before time.Time, max int) (int, error)) jobs.Job {
	return jobs.Job{Name: name, Schedule: schedule, Jitter: time.Minute, Timeout: maxPruneTime + 2*time.Minute,
		Run: func(ctx context.Context) (string, error) {
			before := time.Now().Add(-retention)
			return inBatches(ctx, did, maxPruneTime, func(ctx context.Context, max int) (int, error) { return remove(ctx, before, max) })
		}}
}

func days(n int) time.Duration { return time.Duration(n) * 24 * time.Hour }

// expireJob removes expired counters and receipts. If every is 0 it runs only on request. A run ends before the next one is
// due on another replica, which would skip that one, and with it the work of its time.
func expireJob(every time.Duration, s cleaner) jobs.Job {
	j, maxTime := jobs.Job{Name: "expire", Timeout: 3 * time.Minute}, time.Minute
	if every > 0 {
		j.Schedule, j.Jitter = "@every "+every.String(), min(every/10, 2*time.Second)
		maxTime = min(maxTime, every-2*j.Jitter) // once for the late beginning, once for the last batch
	}
	j.Run = func(ctx context.Context) (string, error) { return inBatches(ctx, "removed", maxTime, s.Expire) }
	return j
}

// inBatches removes batches of rows until one is not full, or maxTime is over. It returns the note of the run.
//
// After each batch it pauses: at first for as long as the batch took, so that decisions have half of the time to themselves.
// The pauses get shorter until there is none at the end of maxTime, because the longer a run lasts, the more it is behind: rows
// must be removed as fast as a busy hour adds them.
func inBatches(ctx context.Context, did string, maxTime time.Duration, remove func(ctx context.Context, max int) (int, error)) (string, error) {
	total, end := 0, time.Now().Add(maxTime)
	for {
		began := time.Now()
		n, err := remove(ctx, batchSize)
		total += n
		took, left := time.Since(began), time.Until(end)
		note := fmt.Sprintf("%s %d", did, total)
		switch {
		case err != nil:
			return note, err
		case n < batchSize:
			return note, nil
		case ctx.Err() != nil:
			return note, ctx.Err()
		case left <= 0:
			return note + ", more is left", nil
		}
		select {
		case <-ctx.Done():
			return note, ctx.Err()
		case <-time.After(time.Duration(float64(took) * float64(left) / float64(maxTime))):
		}
	}
}
