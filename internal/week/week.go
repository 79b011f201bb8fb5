// Package week handles times of the week such as "mon to fri from 22:00 to 07:00", in local time. A
// clock change moves such a time with it.
package week

import (
	"slices"
	"time"
)

// Minutes of a day and of a week.
const (
	DayMinutes = 24 * 60
	Minutes    = 7 * DayMinutes
)

// Days are the names of the days, Sunday first, as in package time.
var Days = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// Spans are parts of the week, each from [0] until before [1], in minutes of local time since Sunday
// 00:00.
type Spans [][2]int

// New gives the spans that begin on each of the days at minute from of the day, and end at minute to:
// on the next day if to is not later than from.
func New(days []int, from, to int) (s Spans) {
	if to <= from {
		to += DayMinutes
	}
	for _, d := range days {
		begin, end := d*DayMinutes+from, d*DayMinutes+to
		s = append(s, [2]int{begin, min(end, Minutes)})
		if end > Minutes {
			s = append(s, [2]int{0, end - Minutes})
		}
	}
	return s
}

// Minute is the minute of the week at t, in the time zone of t.
func Minute(t time.Time) int { return int(t.Weekday())*DayMinutes + t.Hour()*60 + t.Minute() }

// Holds reports whether a minute is in a span.
func (s Spans) Holds(minute int) bool { return s.End(minute) >= 0 }

// End gives the end of the first span that holds the minute; -1 if none does.
func (s Spans) End(minute int) int {
	for _, span := range s {
		if span[0] <= minute && minute < span[1] {
			return span[1]
		}
	}
	return -1
}

// Covers reports whether each span of t lies within one of s. It is false if t is empty.
func (s Spans) Covers(t Spans) bool {
	for _, b := range t {
		if !slices.ContainsFunc(s, func(a [2]int) bool { return a[0] <= b[0] && b[1] <= a[1] }) {
			return false
		}
	}
	return len(t) > 0
}

// Overlaps reports whether any minute is in both.
func (s Spans) Overlaps(t Spans) bool {
	for _, a := range s {
		for _, b := range t {
			if a[0] < b[1] && b[0] < a[1] {
				return true
			}
		}
	}
	return false
}
