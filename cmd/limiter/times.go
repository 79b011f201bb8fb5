package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/seed503877ad/limits/internal/settings"
)

// spanFlag is a duration: one of Go's, or days or weeks.
type spanFlag time.Duration

// UnmarshalText reads 30d, 2w, 12h, 1h30m.
func (f *spanFlag) UnmarshalText(text []byte) error {
	d, ok := parseSpan(string(text))
	if !ok || d <= 0 {
		return fmt.Errorf("%q is not a duration above 0 and up to %d days; want one such as 90m, 12h, 30d or 2w", text, settings.MaxDays)
	}
	*f = spanFlag(d)
	return nil
}

func parseSpan(text string) (d time.Duration, ok bool) {
	for unit, days := range map[string]uint64{"d": 1, "w": 7} {
		if digits, ok := strings.CutSuffix(text, unit); ok {
			n, err := strconv.ParseUint(digits, 10, 16)
			return time.Duration(n*days) * 24 * time.Hour, err == nil && n*days <= settings.MaxDays
		}
	}
	d, err := time.ParseDuration(text)
	return d, err == nil
}

// periodFlag is how far back usage is shown, in the format of the service.
type periodFlag string

// period is one number with one unit; the service does not accept 1h30m.
var period = regexp.MustCompile(`^[1-9][0-9]*(ms|s|m|h|d|w)$`)

// UnmarshalText refuses what the service would refuse.
func (f *periodFlag) UnmarshalText(text []byte) error {
	if d, ok := parseSpan(string(text)); !ok || !period.Match(text) || d < 100*time.Millisecond || d > 366*24*time.Hour {
		return fmt.Errorf("%q is not a duration from 100ms to 366d; want one such as 30m, 1h or 7d", text)
	}
	*f = periodFlag(text)
	return nil
}

// timeFlag is a point in time.
type timeFlag time.Time

// UnmarshalText reads RFC 3339, or a date, which is its beginning in the zone of this machine.
func (f *timeFlag) UnmarshalText(text []byte) error {
	t, ok := parseTime(string(text), time.Local)
	if !ok || t.UnixMilli() <= 0 {
		return fmt.Errorf("%q is not a time; want one such as 2027-01-31 or 2027-01-31T12:00:00Z", text)
	}
	*f = timeFlag(t)
	return nil
}

func parseTime(text string, local *time.Location) (t time.Time, ok bool) {
	if t, err := time.ParseInLocation(time.DateOnly, text, local); err == nil {
		if t.Format(time.DateOnly) != text { // the clock skips that midnight, and this is the hour before
			_, t = t.ZoneBounds()
		}
		return t, true
	}
	t, err := time.Parse(time.RFC3339, text)
	return t, err == nil
}

// checkFuture refuses an --until in the past; one that was not given passes. The error of the service would show the times
// in milliseconds.
func (f timeFlag) checkFuture(s *session) error {
	at, now := time.Time(f), s.now()
	if at.IsZero() || at.After(now) {
		return nil
	}
	return usageError(fmt.Sprintf("--until: %s is not in the future; it is now %s", moment(s, at.UnixMilli(), "-"), moment(s, now.UnixMilli(), "-")))
}

// moment formats a time in Unix milliseconds as a date; 0 as none.
func moment(s *session, millis int64, none string) string {
	if millis == 0 {
		return none
	}
	return time.UnixMilli(millis).In(s.now().Location()).Format(time.DateTime)
}
