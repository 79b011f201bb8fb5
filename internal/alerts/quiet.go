package alerts

import (
	"time"

	"github.com/seed503877ad/limits/internal/week"
)

// QuietHours is a time of day on some days of the week, in a time zone.
type QuietHours struct {
	spans week.Spans
	zone  *time.Location
}

// Bounds of the search for the end of quiet hours. A rule that is quiet for maxQuietSearch is always quiet.
const (
	maxQuietSearch = 15 * 24 * time.Hour
	maxQuietSteps  = 1000
)

// quietUntil reports whether t is in the rule's quiet hours, and when they end. r is nil for a rule that the file no longer
// has. The times of day are local: an hour that a change of the clock skips is never quiet, and one that it repeats is
// quiet twice. Quiet hours that follow one another without a gap count as one.
func (r *Rule) quietUntil(t time.Time) (until time.Time, quiet bool) {
	until = t
	if r == nil {
		return until, false
	}
	for step := 0; step < maxQuietSteps && until.Sub(t) < maxQuietSearch; step++ {
		next := until
		for i := range r.Quiet {
			if end := r.Quiet[i].end(until); end.After(next) {
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

// digestQuietUntil reports whether a digest at a time leaves out the rule's alerts, and until when. Digests are sent at full
// hours. If all full hours are quiet, none is left out: the alerts would never be sent.
func (r *Rule) digestQuietUntil(at time.Time) (until time.Time, quiet bool) {
	until, quiet = r.quietUntil(at)
	for run := at; quiet && run.Sub(at) < maxQuietSearch; {
		run = nextHour(run)
		if _, quiet := r.quietUntil(run); !quiet {
			return until, true
		}
	}
	return until, false
}

// nextHour returns the next full hour, when the next digest is.
func nextHour(t time.Time) time.Time { return t.UTC().Truncate(time.Hour).Add(time.Hour) }

// end returns a time until which it is quiet from t on; t itself if it is not quiet. It stops at the next change of the
// zone's offset, because the time of day jumps there; the caller asks again from that time.
func (q *QuietHours) end(t time.Time) time.Time {
	local := t.In(q.zone)
	minute := week.Minute(local)
	end := q.spans.End(minute)
	if end < 0 {
		return t
	}
	past := time.Duration(local.Second())*time.Second + time.Duration(local.Nanosecond())
	until := t.Add(time.Duration(end-minute)*time.Minute - past)
	// On 31 December of a leap year the end that ZoneBounds gives may have passed.
	if _, change := local.ZoneBounds(); change.After(t) && change.Before(until) {
		until = change
	}
	return until
}
