package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/jobs"
)

const (
	// maxStaleLogged is how many stale counters of a run are logged one by one.
	maxStaleLogged = 20
	// maxQuotaTime is how long a run goes on.
	maxQuotaTime = 10 * time.Minute
)

// quotaCheck reads all counters, some millions in a run. The next run continues after the last counter that this worker
// read.
type quotaCheck struct {
	store engine.Store
	log   *slog.Logger
	// maxTime is how long a run goes on.
	maxTime time.Duration

	mu    sync.Mutex
	after engine.CounterID
}

// pagePause follows each page of counters that is read.
const pagePause = 25 * time.Millisecond

// quotaCheckJob checks that quotas whose window is over read as zero even if their rows are still there.
func quotaCheckJob(s engine.Store, log *slog.Logger) jobs.Job {
	q := &quotaCheck{store: s, log: log, maxTime: maxQuotaTime}
	return jobs.Job{Name: "quota-check", Schedule: "7 4 * * *", Jitter: time.Minute, Timeout: maxQuotaTime + 2*time.Minute, Run: q.run}
}

func (q *quotaCheck) run(ctx context.Context) (string, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var f findings
	for end := time.Now().Add(q.maxTime); ; {
		page, err := engine.CheckQuotas(ctx, q.store, q.after, batchSize)
		if err != nil {
			return f.note(), err
		}
		f.add(&page, q.log)
		q.after = page.Last
		switch {
		case page.Read < batchSize:
			q.after = engine.CounterID{}
			return f.note(), f.error()
		case time.Now().After(end):
			return f.note() + "; the next run continues", f.error()
		}
		select {
		case <-ctx.Done():
			return f.note(), ctx.Err()
		case <-time.After(pagePause):
		}
	}
}

// findings counts what one run has found.
type findings struct {
	read, over, stale int
	first             engine.Stale
}

// add counts a page, and logs the first stale counters of the run.
func (f *findings) add(page *engine.QuotaPage, log *slog.Logger) {
	f.read, f.over = f.read+page.Read, f.over+page.Over
	for _, s := range page.Stale {
		if f.stale == 0 {
			f.first = s
		}
		if f.stale++; f.stale <= maxStaleLogged {
			log.Error("a quota past its reset does not read as zero; remove it with: limiter reset KEY",
				"key", s.Key, "name", s.Label(), "policy", s.PolicyPart(), "error", s.Err)
		}
	}
}

func (f *findings) note() string {
	return fmt.Sprintf("checked %d counters, %d past their window", f.read, f.over)
}

func (f *findings) error() error {
	if f.stale == 0 {
		return nil
	}
	return fmt.Errorf("quotas that do not read as zero after their reset: %d; the first is %s of %s: %w", f.stale, f.first.Label(), f.first.Key, f.first.Err)
}
