package app

import (
	"context"
	"fmt"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/usage"
)

// reportStore is what the report needs of a store.
type reportStore interface {
	TopUsage(ctx context.Context, q usage.TopQuery) ([]usage.Top, error)
}

// reportJob publishes which keys used most, and which were denied most, on the day before. It runs at 00:03: by then
// every worker has written its counts of that day, and with --usage-days 1 the job usage-prune has removed nothing of
// it. The next night's report is about another day, so a failed run is repeated hourly on the same day; its event has
// the same id.
func reportJob(s reportStore, now func() time.Time, publish func(context.Context, *limits.Report) error) jobs.Job {
	return jobs.Job{Name: "report", Schedule: "3 0 * * *", Repeat: "13 * * * *", Jitter: time.Minute, Timeout: 5 * time.Minute,
		Run: func(ctx context.Context) (string, error) {
			r, err := report(ctx, s, now())
			if err != nil {
				return "", err
			}
			if len(r.Used)+len(r.Denied) == 0 {
				return "nothing was decided on " + r.Date, nil
			}
			return fmt.Sprintf("%s: %d heaviest keys, %d most denied", r.Date, len(r.Used), len(r.Denied)), publish(ctx, r)
		}}
}

// countsDelay is how long after the end of a day every worker has written its counts of it. It is a minute less than
// the job waits, so that a clock that is set back a little meanwhile does not make the report one about another day.
const countsDelay = 2 * time.Minute

// report makes the report of the last day in UTC that ended at least countsDelay ago. The stream keeps the first report
// of a day, so a run that catches up, or one by hand, just after midnight must not report a day whose counts are
// incomplete.
func report(ctx context.Context, s reportStore, now time.Time) (*limits.Report, error) {
	until := now.UTC().Add(-countsDelay).Truncate(24 * time.Hour)
	since := until.AddDate(0, 0, -1)
	r := &limits.Report{Date: since.Format(time.DateOnly), Since: since.UnixMilli(), Until: until.UnixMilli()}
	q := usage.TopQuery{Since: r.Since, Until: r.Until, Max: limits.MaxReportRows}
	for _, list := range []struct {
		by   string
		rows *[]limits.TopRow
	}{{usage.ByUsed, &r.Used}, {usage.ByDenied, &r.Denied}} {
		q.By = list.by
		top, err := s.TopUsage(ctx, q)
		if err != nil {
			return nil, err
		}
		*list.rows = bus.TopRows(top)
	}
	return r, nil
}

// nightlyJobs report and check the state of the service once a night.
func (l *limiter) nightlyJobs() []jobs.Job {
	return []jobs.Job{
		reportJob(l.store, time.Now, func(ctx context.Context, r *limits.Report) error {
			return bus.PublishReport(ctx, l.events, l.origin(), r, time.Now(), l.log)
		}),
		quotaCheckJob(l.store, l.log),
	}
}
