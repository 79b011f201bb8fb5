package jobs

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// parse reads a schedule; nil for none. Other time zones are refused: a run's time must mean one moment on all replicas,
// and an hour that a zone repeats or leaves out would run a job twice or never.
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
		return nil, fmt.Errorf("schedule %q: it names no day that there is", spec)
	}
	return s, nil
}

// aligned runs at whole multiples of itself. cron's own @every counts from the start of the process, so no two replicas
// would agree on when a run is.
type aligned time.Duration

func (a aligned) Next(t time.Time) time.Time {
	step := time.Duration(a).Milliseconds()
	return time.UnixMilli((t.UnixMilli()/step + 1) * step).UTC()
}

// due gives the last time of a schedule that is behind after and has come; ok is false when there is none. What came
// before it is made up for by it.
func due(s cron.Schedule, after, now time.Time) (at time.Time, ok bool) {
	after, now = after.UTC(), now.UTC()
	if at = s.Next(after); at.IsZero() || at.After(now) {
		return time.Time{}, false
	}
	// Schedules look forward only. Look from further and further back, so that neither a short step after a long time
	// nor a long step takes many.
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
