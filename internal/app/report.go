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

// reporter is what the report needs of a store.
type reporter interface {
	TopUsage(ctx context.Context, q usage.TopQuery) ([]usage.Top, error)
}

// reportJob tells who used, and who was denied, most on the day before. At 00:03 every worker has written what it counted
// of that day, and with --usage-days 1 the job usage-prune has removed nothing of it. The next night's is about another day, so
// one that is not done is made again that day; the id of its event is the same.
func reportJob(s reporter, now func() time.Time, publish func(context.Context, *limits.Report) error) jobs.Job {
	return jobs.Job{Name: "report", Schedule: "3 0 * * *", Repeat: "13 * * * *", Jitter: time.Minute, Timeout: 5 * time.Minute,
		Run: func(ctx context.Context) (string, error) {
			r, err := report(ctx, s, now())
			if err != nil {
				return "", err
			}
			if len(r.Used)+len(r.Denied) == 0 {
				return "nothing was decided on " + r.Date, nil
			}
			return fmt.Sprintf("%s: %d heaviest users, %d most denied", r.Date, len(r.Used), len(r.Denied)), publish(ctx, r)
		}}
}

// settled is how long a day has been over when every worker has written what it counted of it; a minute less than the job
// waits, so that a clock that is set back a little in between does not make it another day.
const settled = 2 * time.Minute

// report is that of the last day in UTC that is over and settled: the stream keeps the first report of a day, so one that is
// made up for, or run by hand, right behind midnight must not be about a day of which counts are still to come.
func report(ctx context.Context, s reporter, now time.Time) (*limits.Report, error) {
	until := now.UTC().Add(-settled).Truncate(24 * time.Hour)
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

// nightJobs look at the service once a night.
func (l *limiter) nightJobs() []jobs.Job {
	return []jobs.Job{
		reportJob(l.store, time.Now, func(ctx context.Context, r *limits.Report) error {
			return bus.PublishReport(ctx, l.events, l.origin(), r, time.Now())
		}),
		quotaCheckJob(l.store, l.log),
	}
}
