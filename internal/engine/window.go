package engine

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Bounds of a window that is a duration.
const (
	MinWindow = 100 * time.Millisecond
	MaxWindow = 366 * 24 * time.Hour
)

// Period is a calendar period; zero for a window that is a duration.
type Period uint8

// The calendar periods. A week begins on Monday (ISO 8601).
const (
	PeriodMinute Period = iota + 1
	PeriodHour
	PeriodDay
	PeriodWeek
	PeriodMonth
)

var periodNames = map[string]Period{
	"minute": PeriodMinute, "hour": PeriodHour, "day": PeriodDay, "week": PeriodWeek, "month": PeriodMonth,
}

// periodMillis is the longest that a period lasts, including the extra hours of a clock change: one
// almost everywhere, two in Antarctica/Troll.
var periodMillis = [...]int64{
	PeriodMinute: 60_000,
	PeriodHour:   3_600_000,
	PeriodDay:    26 * 3_600_000,
	PeriodWeek:   (7*24 + 2) * 3_600_000,
	PeriodMonth:  (31*24 + 2) * 3_600_000,
}

var windowUnits = map[string]int64{
	"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000,
}

// Window is a duration or a calendar period. The zero Window is none.
type Window struct {
	text string
	// Millis is the length in milliseconds; for a calendar period the longest possible.
	Millis int64
	Period Period
}

// ParseWindow reads a window as written on the wire: a whole number with a unit (ms, s, m, h, d, w)
// between 100ms and 366d, or minute, hour, day, week, month.
func ParseWindow(text string) (Window, error) {
	if p, ok := periodNames[text]; ok {
		return Window{text: strings.Clone(text), Millis: periodMillis[p], Period: p}, nil
	}
	digits := 0
	for digits < len(text) && text[digits] >= '0' && text[digits] <= '9' {
		digits++
	}
	unit, ok := windowUnits[text[digits:]]
	if digits == 0 || !ok || text[0] == '0' && digits > 1 {
		return Window{}, fmt.Errorf("invalid window %q; want a number with a unit such as 500ms, 30s, 5m, 1h, 1d, 1w, "+
			"or minute, hour, day, week, month", text)
	}
	n, err := strconv.ParseInt(text[:digits], 10, 64)
	if err != nil || n > MaxWindow.Milliseconds()/unit || n*unit < MinWindow.Milliseconds() {
		return Window{}, fmt.Errorf("window %q is out of range; want 100ms to 366d", text)
	}
	return Window{text: strings.Clone(text), Millis: n * unit}, nil
}

// String returns the window as it was written.
func (w Window) String() string { return w.text }

// IsZero reports whether there is no window.
func (w Window) IsZero() bool { return w.Millis == 0 }

// span returns the fixed window [start, end) that contains now, in Unix milliseconds. A window from
// its first use starts at now.
func (l *Limit) span(now int64) (start, end int64) {
	if l.Window.Period != 0 {
		if l.FirstUse {
			return now, addPeriod(now, l.Window.Period, l.zone())
		}
		return periodSpan(now, l.Window.Period, l.zone())
	}
	if l.FirstUse {
		return now, now + l.Window.Millis
	}
	start = floorDiv(now, l.Window.Millis) * l.Window.Millis
	return start, start + l.Window.Millis
}

// addPeriod returns the same wall-clock time one period later. A day that the later month does not
// have becomes its last.
func addPeriod(now int64, p Period, zone *time.Location) int64 {
	t := time.UnixMilli(now).In(zone)
	y, m, d := t.Date()
	switch p {
	case PeriodDay:
		d++
	case PeriodWeek:
		d += 7
	case PeriodMonth:
		m++
		d = min(d, lastDay(y, m))
	default:
		return now + periodMillis[p]
	}
	// Time.AddDate is no alternative: if the clock skips the time, it may give one on the day before.
	hour, minute, second := t.Clock()
	return firstInstant(time.Date(y, m, d, hour, minute, second, t.Nanosecond(), time.UTC), zone)
}

// lastDay returns the length of a month.
func lastDay(y int, m time.Month) int { return time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC).Day() }

func periodSpan(now int64, p Period, zone *time.Location) (start, end int64) {
	if p <= PeriodHour {
		return clockSpan(now, periodMillis[p], zone)
	}
	t := time.UnixMilli(now).In(zone)
	y, m, d := t.Date()
	// at returns the first instant of the n-th period after the one that contains the local date of now.
	at := func(n int) int64 {
		switch p {
		case PeriodWeek:
			monday := d - (int(t.Weekday())+6)%7
			return firstMidnight(y, m, monday+7*n, zone)
		case PeriodMonth:
			return firstMidnight(y, m+time.Month(n), 1, zone)
		default:
			return firstMidnight(y, m, d+n, zone)
		}
	}
	// Around a clock change at midnight the local date may step back or be skipped, so the period
	// of an instant is the last one that has begun. That of its local date has begun.
	n := 0
	for at(n+1) <= now {
		n++
	}
	return at(n), at(n + 1)
}

// clockSpan returns the minute or hour on the local clock. A clock change within cuts it.
func clockSpan(now, length int64, zone *time.Location) (start, end int64) {
	shift := offsetAt(now, zone)
	start = floorDiv(now+shift, length)*length - shift
	end = start + length
	if offsetAt(start, zone) != shift {
		start = changeIn(start, now, zone)
	}
	if offsetAt(end-1, zone) != shift {
		end = changeIn(now, end-1, zone)
	}
	return start, end
}

// firstMidnight returns the first instant of a local date. Months and days out of range carry over as
// in [time.Date].
func firstMidnight(y int, m time.Month, d int, zone *time.Location) int64 {
	return firstInstant(time.Date(y, m, d, 0, 0, 0, 0, time.UTC), zone)
}

// firstInstant returns the first instant at which the local clock shows wall, a local time written in
// UTC. If the clock skips it, that is the instant of the change.
func firstInstant(wall time.Time, zone *time.Location) int64 {
	at := wall.UnixMilli()
	// No zone is more than 14 hours from UTC, so these two lie before and after any change near wall.
	before, after := offsetAt(at-26*3_600_000, zone), offsetAt(at+26*3_600_000, zone)
	first, second := at-max(before, after), at-min(before, after)
	for _, t := range [...]int64{first, second} {
		if t+offsetAt(t, zone) == at {
			return t
		}
	}
	return changeIn(first, second, zone)
}

// offsetAt is the offset of the local clock from UTC at an instant, in milliseconds.
func offsetAt(at int64, zone *time.Location) int64 {
	_, offset := time.UnixMilli(at).In(zone).Zone()
	return int64(offset) * 1000
}

// changeIn returns the instant after from, up to until, at which the clock changed to the offset that
// it has at until.
//
// Time.ZoneBounds is no alternative: it also reports changes that move no clock, such as the turn
// of the year in zones with summer time, and on 31 December of a leap year the end that it gives
// has passed.
func changeIn(from, until int64, zone *time.Location) int64 {
	offset := offsetAt(until, zone)
	n := sort.Search(int(until-from), func(i int) bool { return offsetAt(from+1+int64(i), zone) == offset })
	return from + 1 + int64(n)
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
