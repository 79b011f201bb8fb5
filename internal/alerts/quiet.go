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

// noDigest tells whether a digest at a time is to leave out what the rule holds, and up to when. Digests come at full hours:
// where all of them are quiet, it is told all the same.
func (r *Rule) noDigest(at time.Time) (until time.Time, quiet bool) {
	until, quiet = r.quietUntil(at)
	for run := at; quiet && run.Sub(at) < longestQuiet; {
		run = nextHour(run)
		if _, quiet := r.quietUntil(run); !quiet {
			return until, true
		}
	}
	return until, false
}

// nextHour is the next time for a digest.
func nextHour(t time.Time) time.Time { return t.UTC().Truncate(time.Hour).Add(time.Hour) }

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
