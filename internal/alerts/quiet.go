package alerts

import (
	"time"

	"github.com/seed503877ad/limits/internal/week"
)

// QuietHours is a time of day, on some days, in a zone.
type QuietHours struct {
	spans week.Spans
	zone  *time.Location
}

// Bounds of the search for the end of quiet hours. What is quiet for so long is quiet always.
const (
	longestQuiet  = 15 * 24 * time.Hour
	maxQuietSteps = 1000
)

// quietUntil tells whether the rule, nil for one that is no more, holds alerts back at a time, and up to when. It goes by what the clock on the wall
// shows: an hour that is skipped has no part in it, and one that is repeated has its part twice. Quiet hours that follow on
// one another are one.
func (r *Rule) quietUntil(t time.Time) (until time.Time, quiet bool) {
	until = t
	if r == nil {
		return until, false
	}
	for step := 0; step < maxQuietSteps && until.Sub(t) < longestQuiet; step++ {
		next := until
		for i := range r.Quiet {
			if end := r.Quiet[i].next(until); end.After(next) {
				next = end
			}
		}
		if !next.After(until) {
			break
		}
		until, quiet = next, true
	}
	return until, quiet
}

// digestAfter is up to when an alert that the throttle holds waits for its digest, in Unix milliseconds: to the end of the
// quiet hours in which the next digest would come, which is at the next full hour; 0 for no wait.
func (r *Rule) digestAfter(now time.Time) int64 {
	if until, quiet := r.quietUntil(now.UTC().Truncate(time.Hour).Add(time.Hour)); quiet {
		return r.digestFrom(until)
	}
	return 0
}

// digestFrom is from when on, in Unix milliseconds, a digest may tell what is held up to t: digests come at full hours, and
// the next one must not be quiet again.
func (r *Rule) digestFrom(t time.Time) int64 {
	for at := t; at.Sub(t) < longestQuiet; {
		run := at.UTC().Truncate(time.Hour)
		if run.Before(at) {
			run = run.Add(time.Hour)
		}
		until, quiet := r.quietUntil(run)
		if !quiet {
			return at.UnixMilli()
		}
		at = until
	}
	return t.UnixMilli() // every full hour is quiet: it is told all the same
}

// next gives a time up to which it is quiet from t on; t itself when it is not. It looks no further than the next change of
// the clock, because what follows is another time of day than it seems.
func (q *QuietHours) next(t time.Time) time.Time {
	if len(q.spans) == 0 {
		return t
	}
	local := t.In(q.zone)
	minute := week.Minute(local)
	end := q.spans.End(minute)
	if end < 0 {
		return t
	}
	past := time.Duration(local.Second())*time.Second + time.Duration(local.Nanosecond())
	until := t.Add(time.Duration(end-minute)*time.Minute - past)
	if _, change := local.ZoneBounds(); !change.IsZero() && change.Before(until) {
		until = change
	}
	return until.In(t.Location())
}
