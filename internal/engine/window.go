package engine

import (
	"fmt"
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

// periodMillis is the longest a period lasts, with the extra hours of a clock change.
var periodMillis = [...]int64{
	PeriodMinute: 60_000,
	PeriodHour:   3_600_000,
	PeriodDay:    25 * 3_600_000,
	PeriodWeek:   (7*24 + 1) * 3_600_000,
	PeriodMonth:  (31*24 + 1) * 3_600_000,
}

var windowUnits = map[string]int64{
	"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000,
}

// Window is a duration or a calendar period. The zero Window is none.
type Window struct {
	text string
	// Millis is the length in milliseconds; for a calendar period the longest it can be.
	Millis int64
	Period Period
}

// ParseWindow reads a window as written on the wire: a whole number with a unit (ms, s, m, h, d, w) between
// 100ms and 366d, or minute, hour, day, week, month.
func ParseWindow(text string) (Window, error) {
	if p, ok := periodNames[text]; ok {
		return Window{text: text, Millis: periodMillis[p], Period: p}, nil
	}
	digits := 0
	for digits < len(text) && text[digits] >= '0' && text[digits] <= '9' {
		digits++
	}
	unit, ok := windowUnits[text[digits:]]
	if digits == 0 || !ok || text[0] == '0' {
		return Window{}, fmt.Errorf("unknown window %q; want a number with a unit such as 500ms, 30s, 5m, 1h, 1d, 1w, "+
			"or minute, hour, day, week, month", text)
	}
	n, err := strconv.ParseInt(text[:digits], 10, 64)
	if err != nil || n > MaxWindow.Milliseconds()/unit || n*unit < MinWindow.Milliseconds() {
		return Window{}, fmt.Errorf("window %q is out of range; want 100ms to 366d", text)
	}
	return Window{text: strings.Clone(text), Millis: n * unit}, nil
}

// String gives the window as it was written.
func (w Window) String() string { return w.text }

// IsZero tells whether there is no window.
func (w Window) IsZero() bool { return w.Millis == 0 }

// span gives the fixed window [start, end) that holds now, in Unix milliseconds. A window anchored at its first
// use starts at now.
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

// addPeriod gives the same wall-clock time one period later; a day that the later month lacks becomes its last.
func addPeriod(now int64, p Period, zone *time.Location) int64 {
	t := time.UnixMilli(now).In(zone)
	switch p {
	case PeriodDay:
		return t.AddDate(0, 0, 1).UnixMilli()
	case PeriodWeek:
		return t.AddDate(0, 0, 7).UnixMilli()
	case PeriodMonth:
		next := t.AddDate(0, 1, 0)
		if next.Day() != t.Day() {
			next = next.AddDate(0, 0, -next.Day())
		}
		return next.UnixMilli()
	default:
		return now + periodMillis[p]
	}
}

func periodSpan(now int64, p Period, zone *time.Location) (start, end int64) {
	if p <= PeriodHour {
		return clockSpan(now, periodMillis[p], zone)
	}
	t := time.UnixMilli(now).In(zone)
	y, m, d := t.Date()
	// at gives the first instant of the n-th period after the one that holds the local date of now.
	at := func(n int) int64 {
		switch p {
		case PeriodWeek:
			monday := d - (int(t.Weekday())+6)%7
			return firstInstant(y, m, monday+7*n, zone)
		case PeriodMonth:
			return firstInstant(y, m+time.Month(n), 1, zone)
		default:
			return firstInstant(y, m, d+n, zone)
		}
	}
	// Around a clock change at midnight the local date may step back or be skipped, so the period of an instant
	// is the last one that has begun.
	n := 0
	for at(n) > now {
		n--
	}
	for at(n+1) <= now {
		n++
	}
	return at(n), at(n + 1)
}

// clockSpan gives the minute or hour on the local clock. A clock change inside one cuts it.
func clockSpan(now, length int64, zone *time.Location) (start, end int64) {
	t := time.UnixMilli(now).In(zone)
	_, offset := t.Zone()
	shift := int64(offset) * 1000
	start = floorDiv(now+shift, length)*length - shift
	end = start + length
	from, until := t.ZoneBounds()
	if !from.IsZero() {
		start = max(start, from.UnixMilli())
	}
	if !until.IsZero() {
		end = min(end, until.UnixMilli())
	}
	return start, end
}

// firstInstant gives the first instant of a local date: local midnight, the first of two, or, where the clock
// jumps over it, the jump. Out-of-range months and days carry over as in [time.Date].
func firstInstant(y int, m time.Month, d int, zone *time.Location) int64 {
	wall := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	// No zone is more than 14 hours from UTC, so these two stand before and behind any change near midnight.
	_, before := wall.Add(-26 * time.Hour).In(zone).Zone()
	_, behind := wall.Add(26 * time.Hour).In(zone).Zone()
	first := wall.Add(-time.Duration(max(before, behind)) * time.Second)
	second := wall.Add(-time.Duration(min(before, behind)) * time.Second)
	for _, t := range [...]time.Time{first, second} {
		if _, offset := t.In(zone).Zone(); t.Add(time.Duration(offset) * time.Second).Equal(wall) {
			return t.UnixMilli()
		}
	}
	_, jump := first.In(zone).ZoneBounds()
	return jump.UnixMilli()
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
