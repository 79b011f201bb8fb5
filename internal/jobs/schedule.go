package jobs

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// parse parses a schedule; nil for none. It refuses time zones: a scheduled time must be the same moment on all replicas, and
// a job would run twice in an hour that a zone repeats, and never in one that it skips.
func parse(spec string) (cron.Schedule, error) {
	if spec == "" {
		return nil, nil
	}
	if strings.Contains(spec, "TZ=") {
		return nil, fmt.Errorf("schedule %q: schedules are in UTC; leave out the time zone", spec)
	}
	s, err := cron.ParseStandard(spec)
	if err != nil {
		return nil, fmt.Errorf("schedule %q: %w; want a cron line such as %q, @daily, or @every 1m", spec, err, "30 3 * * *")
	}
	if every, ok := s.(cron.ConstantDelaySchedule); ok {
		return aligned(every.Delay), nil
	}
	if s.Next(time.Unix(0, 0).UTC()).IsZero() {
		return nil, fmt.Errorf("schedule %q: it matches no date that exists", spec)
	}
	return s, nil
}

// aligned is a schedule at whole multiples of a duration since the epoch. cron's own @every counts from the start of the
// process, so the replicas would have different times.
type aligned time.Duration

func (a aligned) Next(t time.Time) time.Time {
	step := time.Duration(a).Milliseconds()
	return time.UnixMilli((t.UnixMilli()/step + 1) * step).UTC()
}

// due returns the last time of a schedule that is later than after and not later than now; ok is false if there is none.
// The times between after and the returned one are skipped: one run makes up for all.
func due(s cron.Schedule, after, now time.Time) (at time.Time, ok bool) {
	after, now = after.UTC(), now.UTC()
	if at = s.Next(after); at.IsZero() || at.After(now) {
		return time.Time{}, false
	}
	// Schedules only look forward. Look from further and further back, so that the number of steps stays small both for
	// frequent and for rare schedules.
	for back := time.Minute; back < now.Sub(after); back *= 2 {
		if t := s.Next(now.Add(-back)); !t.IsZero() && !t.After(now) {
			at = t
			break
		}
	}
	for next := s.Next(at); !next.IsZero() && !next.After(now); next = s.Next(at) {
		at = next
	}
	return at, true
}
