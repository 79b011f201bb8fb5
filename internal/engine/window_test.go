package engine

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func loadZone(t testing.TB, name string) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

func TestParseWindow(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"100ms": MinWindow, "500ms": 500 * time.Millisecond, "1s": time.Second, "30s": 30 * time.Second,
		"5m": 5 * time.Minute, "90m": 90 * time.Minute, "1h": time.Hour, "1d": 24 * time.Hour,
		"1w": 7 * 24 * time.Hour, "52w": 364 * 24 * time.Hour, "366d": MaxWindow, "8784h": MaxWindow,
		"527040m": MaxWindow, "31622400s": MaxWindow, "31622400000ms": MaxWindow,
	} {
		w, err := ParseWindow(text)
		if err != nil || w.Millis != want.Milliseconds() || w.Period != 0 || w.String() != text || w.IsZero() {
			t.Errorf("ParseWindow(%q) = %+v, %v; want %s", text, w, err, want)
		}
	}
	for text, want := range map[string]Period{
		"minute": PeriodMinute, "hour": PeriodHour, "day": PeriodDay, "week": PeriodWeek, "month": PeriodMonth,
	} {
		w, err := ParseWindow(text)
		if err != nil || w.Period != want || w.String() != text || w.IsZero() {
			t.Errorf("ParseWindow(%q) = %+v, %v", text, w, err)
		}
	}
	const unknown, outside = "invalid window", "out of range"
	for text, want := range map[string]string{
		"": unknown, "1": unknown, "m": unknown, "1M": unknown, "1 m": unknown, " 1m": unknown, "1m ": unknown,
		"1.5h": unknown, "1h30m": unknown, "-1m": unknown, "+1m": unknown, "0": unknown, "00m": unknown, "01m": unknown,
		"1y": unknown, "1min": unknown, "Day": unknown, "days": unknown, "year": unknown, "1us": unknown,
		"１m": unknown, "1e3s": unknown, "0x10s": unknown,
		"0m": outside, "1ms": outside, "99ms": outside, "31622400001ms": outside, "367d": outside, "53w": outside, "8785h": outside,
		"9223372036854775807ms": outside, "9223372036854775808ms": outside, "99999999999999999999w": outside,
	} {
		if w, err := ParseWindow(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseWindow(%q) = %+v, %v; want an error with %q", text, w, err, want)
		}
	}
}

// A window is kept for long, the request that it was read from is not.
func TestParseWindowReadsItsString(t *testing.T) {
	t.Parallel()
	check(t, 2000, func(t *rapid.T) {
		w, err := ParseWindow(rapid.OneOf(genDuration, genPeriod).Draw(t, "window"))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseWindow(w.String()); err != nil || again != w {
			t.Fatalf("%+v came back as %+v, %v", w, again, err)
		}
	})
}

// calendar is a limit per calendar period.
func calendar(t testing.TB, period, zone string) Limit {
	t.Helper()
	l := limitOf(t, FixedWindow, 10, period)
	l.Zone = loadZone(t, zone)
	return l
}

func TestCalendarSpans(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, period, zone string
		// now is a moment; start and end are those of the period that holds it.
		now, start, end string
	}{
		{"a day", "day", "UTC", "2024-05-17T12:34:56.789Z", "2024-05-17T00:00:00Z", "2024-05-18T00:00:00Z"},
		{"its first instant", "day", "UTC", "2024-05-17T00:00:00Z", "2024-05-17T00:00:00Z", "2024-05-18T00:00:00Z"},
		{"its last instant", "day", "UTC", "2024-05-17T23:59:59.999Z", "2024-05-17T00:00:00Z", "2024-05-18T00:00:00Z"},
		{"a day ahead of UTC", "day", "Asia/Kathmandu", "2024-05-17T18:15:00Z", "2024-05-18T00:00:00+05:45", "2024-05-19T00:00:00+05:45"},
		{"a minute", "minute", "UTC", "2024-05-17T12:34:56Z", "2024-05-17T12:34:00Z", "2024-05-17T12:35:00Z"},
		{"an hour", "hour", "UTC", "2024-05-17T12:34:56Z", "2024-05-17T12:00:00Z", "2024-05-17T13:00:00Z"},
		{"an hour on the half", "hour", "Asia/Kolkata", "2024-05-17T12:34:56Z", "2024-05-17T12:30:00Z", "2024-05-17T13:30:00Z"},

		{"23 hours", "day", "Europe/Berlin", "2024-03-31T12:00:00Z", "2024-03-31T00:00:00+01:00", "2024-04-01T00:00:00+02:00"},
		{"25 hours", "day", "Europe/Berlin", "2024-10-27T12:00:00Z", "2024-10-27T00:00:00+02:00", "2024-10-28T00:00:00+01:00"},
		{"23 hours", "day", "America/New_York", "2024-03-10T12:00:00Z", "2024-03-10T00:00:00-05:00", "2024-03-11T00:00:00-04:00"},
		{"25 hours", "day", "America/New_York", "2024-11-03T12:00:00Z", "2024-11-03T00:00:00-04:00", "2024-11-04T00:00:00-05:00"},
		{"26 hours", "day", "Antarctica/Troll", "2024-10-27T12:00:00Z", "2024-10-27T00:00:00+02:00", "2024-10-28T00:00:00Z"},

		{"the hour that comes twice, once", "hour", "Europe/Berlin", "2024-10-27T00:30:00Z", "2024-10-27T02:00:00+02:00", "2024-10-27T02:00:00+01:00"},
		{"and again", "hour", "Europe/Berlin", "2024-10-27T01:30:00Z", "2024-10-27T02:00:00+01:00", "2024-10-27T03:00:00+01:00"},
		{"before the half hour that comes twice", "hour", "Australia/Lord_Howe", "2024-04-06T14:59:59Z", "2024-04-07T01:00:00+11:00", "2024-04-07T01:30:00+10:30"},
		{"that half hour again", "hour", "Australia/Lord_Howe", "2024-04-06T15:00:00Z", "2024-04-07T01:30:00+10:30", "2024-04-07T02:00:00+10:30"},
		{"after the half hour that is skipped", "hour", "Australia/Lord_Howe", "2024-10-05T15:30:00Z", "2024-10-06T02:30:00+11:00", "2024-10-06T03:00:00+11:00"},
		{"the turn of the year moves no clock", "hour", "Australia/Adelaide", "2031-01-01T00:00:00Z", "2031-01-01T10:00:00+10:30", "2031-01-01T11:00:00+10:30"},
		{"the last day of a leap year", "hour", "America/New_York", "2040-12-31T12:34:56Z", "2040-12-31T12:00:00Z", "2040-12-31T13:00:00Z"},
		{"its minutes", "minute", "Africa/Cairo", "2040-12-31T12:34:56Z", "2040-12-31T12:34:00Z", "2040-12-31T12:35:00Z"},

		{"midnight is skipped", "day", "America/Sao_Paulo", "2018-11-04T12:00:00Z", "2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"},
		{"the day before", "day", "America/Sao_Paulo", "2018-11-04T02:59:59.999Z", "2018-11-03T00:00:00-03:00", "2018-11-04T01:00:00-02:00"},
		{"midnight is skipped", "day", "Africa/Cairo", "2024-04-26T12:00:00Z", "2024-04-26T01:00:00+03:00", "2024-04-27T00:00:00+03:00"},
		{"midnight is skipped", "day", "Asia/Beirut", "2024-03-31T12:00:00Z", "2024-03-31T01:00:00+03:00", "2024-04-01T00:00:00+03:00"},
		{"midnight comes twice", "day", "America/Havana", "2024-11-03T12:00:00Z", "2024-11-03T00:00:00-04:00", "2024-11-04T00:00:00-05:00"},
		{"between the two", "day", "America/Havana", "2024-11-03T04:30:00Z", "2024-11-03T00:00:00-04:00", "2024-11-04T00:00:00-05:00"},
		{"midnight comes twice", "day", "Atlantic/Azores", "2024-10-27T12:00:00Z", "2024-10-27T00:00:00Z", "2024-10-28T00:00:00-01:00"},
		{"midnight is skipped", "day", "Atlantic/Azores", "2024-03-31T12:00:00Z", "2024-03-31T01:00:00Z", "2024-04-01T00:00:00Z"},
		{"a minute of the day, then the day before again", "day", "America/St_Johns", "2006-10-29T02:45:00Z", "2006-10-29T00:00:00-02:30", "2006-10-30T00:00:00-03:30"},
		{"that minute", "day", "America/St_Johns", "2006-10-29T02:30:30Z", "2006-10-29T00:00:00-02:30", "2006-10-30T00:00:00-03:30"},
		{"before a day that is skipped", "day", "Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		{"after it", "day", "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"},
		{"a week of six days", "week", "Pacific/Apia", "2011-12-31T12:00:00Z", "2011-12-26T00:00:00-10:00", "2012-01-02T00:00:00+14:00"},

		{"a week begins on Monday", "week", "UTC", "2024-05-19T23:59:59Z", "2024-05-13T00:00:00Z", "2024-05-20T00:00:00Z"},
		{"on Monday itself", "week", "UTC", "2024-05-20T00:00:00Z", "2024-05-20T00:00:00Z", "2024-05-27T00:00:00Z"},
		{"across the year: 2021 began in 2020-W53", "week", "UTC", "2021-01-03T12:00:00Z", "2020-12-28T00:00:00Z", "2021-01-04T00:00:00Z"},
		{"with a clock change", "week", "Europe/Berlin", "2024-03-30T12:00:00Z", "2024-03-25T00:00:00+01:00", "2024-04-01T00:00:00+02:00"},

		{"a leap February", "month", "UTC", "2024-02-29T23:59:59Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"},
		{"a February", "month", "UTC", "2023-02-28T23:59:59Z", "2023-02-01T00:00:00Z", "2023-03-01T00:00:00Z"},
		{"no leap day in 2100", "month", "UTC", "2100-02-28T23:59:59Z", "2100-02-01T00:00:00Z", "2100-03-01T00:00:00Z"},
		{"the last of 31", "month", "UTC", "2024-01-31T12:00:00Z", "2024-01-01T00:00:00Z", "2024-02-01T00:00:00Z"},
		{"December", "month", "UTC", "2024-12-31T23:59:59Z", "2024-12-01T00:00:00Z", "2025-01-01T00:00:00Z"},
		{"with a clock change", "month", "Europe/Berlin", "2024-03-31T12:00:00Z", "2024-03-01T00:00:00+01:00", "2024-04-01T00:00:00+02:00"},
		{"that begins with one", "month", "America/Havana", "2026-11-01T12:00:00Z", "2026-11-01T00:00:00-04:00", "2026-12-01T00:00:00-05:00"},
	} {
		t.Run(c.zone+" "+c.period+": "+c.name, func(t *testing.T) {
			t.Parallel()
			l := calendar(t, c.period, c.zone)
			start, end := l.span(instant(t, c.now))
			if start != instant(t, c.start) || end != instant(t, c.end) {
				t.Errorf("%s is in %s to %s; want %s to %s", c.now, show(start, l.Zone), show(end, l.Zone), c.start, c.end)
			}
		})
	}
}

// A period from the first use ends at the same time on the clock.
func TestFirstUseSpans(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, period, zone, now, end string }{
		{"a minute", "minute", "Europe/Berlin", "2024-03-31T00:59:30Z", "2024-03-31T01:00:30Z"},
		{"an hour", "hour", "Europe/Berlin", "2024-10-27T00:30:00Z", "2024-10-27T01:30:00Z"},
		{"a day", "day", "UTC", "2024-05-17T12:34:56.789Z", "2024-05-18T12:34:56.789Z"},
		{"23 hours", "day", "Europe/Berlin", "2024-03-30T12:00:00+01:00", "2024-03-31T12:00:00+02:00"},
		{"25 hours", "day", "America/New_York", "2024-11-02T12:00:00-04:00", "2024-11-03T12:00:00-05:00"},
		{"to a time that is skipped", "day", "Europe/Berlin", "2024-03-30T02:30:00+01:00", "2024-03-31T03:00:00+02:00"},
		{"to the first of two", "day", "Europe/Berlin", "2024-10-26T02:30:00+02:00", "2024-10-27T02:30:00+02:00"},
		{"to a day that is skipped", "day", "Pacific/Apia", "2011-12-29T09:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		{"a week", "week", "UTC", "2024-05-17T12:00:00Z", "2024-05-24T12:00:00Z"},
		{"a week with a clock change", "week", "Europe/Berlin", "2024-03-28T12:00:00+01:00", "2024-04-04T12:00:00+02:00"},
		{"a month", "month", "UTC", "2024-05-17T12:00:00Z", "2024-06-17T12:00:00Z"},
		{"from 31 January", "month", "UTC", "2023-01-31T12:00:00Z", "2023-02-28T12:00:00Z"},
		{"from 31 January of a leap year", "month", "UTC", "2024-01-31T12:00:00Z", "2024-02-29T12:00:00Z"},
		{"from 29 February", "month", "UTC", "2024-02-29T12:00:00Z", "2024-03-29T12:00:00Z"},
		{"from 31 March", "month", "UTC", "2024-03-31T12:00:00Z", "2024-04-30T12:00:00Z"},
		{"into the next year", "month", "UTC", "2024-12-31T12:00:00Z", "2025-01-31T12:00:00Z"},
		{"to a time that is skipped", "month", "America/Sao_Paulo", "2018-10-04T00:30:00-03:00", "2018-11-04T01:00:00-02:00"},
		{"to a time that is skipped", "month", "America/Santiago", "2026-08-06T00:30:00-04:00", "2026-09-06T01:00:00-03:00"},
		{"to a day that is skipped", "month", "Pacific/Apia", "2011-11-30T12:00:00-10:00", "2011-12-31T00:00:00+14:00"},
	} {
		t.Run(c.zone+" "+c.period+": "+c.name, func(t *testing.T) {
			t.Parallel()
			l := calendar(t, c.period, c.zone)
			l.FirstUse = true
			now := instant(t, c.now)
			start, end := l.span(now)
			if start != now || end != instant(t, c.end) {
				t.Errorf("%s to %s; want %s to %s", show(start, l.Zone), show(end, l.Zone), c.now, c.end)
			}
		})
	}
}

func TestDurationsAreAlignedToTheEpoch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		window          string
		now, start, end int64
	}{
		{"1m", 0, 0, 60_000},
		{"1m", 59_999, 0, 60_000},
		{"1m", 60_000, 60_000, 120_000},
		{"1m", -1, -60_000, 0},
		{"7s", 1_700_000_000_000, 1_699_999_994_000, 1_700_000_001_000},
		{"1w", 1_700_000_000_000, 1_699_488_000_000, 1_700_092_800_000}, // Thursday, as the epoch
	} {
		l := limitOf(t, FixedWindow, 1, c.window)
		if start, end := l.span(c.now); start != c.start || end != c.end {
			t.Errorf("%s at %d: [%d, %d); want [%d, %d)", c.window, c.now, start, end, c.start, c.end)
		}
	}
}

// Windows partition time: each instant is in one, and where it ends the next begins.
func TestSpansPartitionTime(t *testing.T) {
	t.Parallel()
	check(t, cases, func(t *rapid.T) {
		l := genLimit(FixedWindow).Draw(t, "limit")
		l.FirstUse = false
		now := genMoment(l.zone()).Draw(t, "now")
		start, end := l.span(now)
		if now < start || now >= end {
			t.Fatalf("%s: %s is not in %s to %s", l.Window, show(now, l.zone()), show(start, l.zone()), show(end, l.zone()))
		}
		if end-start > l.Window.Millis {
			t.Fatalf("%s: %s to %s is longer than the longest", l.Window, show(start, l.zone()), show(end, l.zone()))
		}
		for _, same := range []int64{start, end - 1, start + (end-start)/2} {
			if s, e := l.span(same); s != start || e != end {
				t.Fatalf("%s: %s is in [%d, %d), and %s in [%d, %d)", l.Window, show(now, l.zone()), start, end, show(same, l.zone()), s, e)
			}
		}
		if next, _ := l.span(end); next != end {
			t.Fatalf("%s: behind the window's end %s the next begins at %s", l.Window, show(end, l.zone()), show(next, l.zone()))
		}
		if _, before := l.span(start - 1); before != start {
			t.Fatalf("%s: the window before %s ends at %s", l.Window, show(start, l.zone()), show(before, l.zone()))
		}
	})
}

// A calendar period holds the instants whose local date says so, wherever the clock did not step back nearby.
func TestPeriodsFollowTheLocalDate(t *testing.T) {
	t.Parallel()
	check(t, cases, func(t *rapid.T) {
		l := genLimit(FixedWindow).Draw(t, "limit")
		text := genPeriod.Draw(t, "period")
		l.Window, _ = ParseWindow(text)
		l.Zone, l.FirstUse = genZone.Draw(t, "zone"), false
		now := genMoment(l.zone()).Draw(t, "now")
		start, end := l.span(now)
		if stepsBack(start, end, l.Zone) {
			return
		}
		for _, inside := range []int64{start, end - 1} {
			if label(inside, l.Window.Period, l.Zone) != label(now, l.Window.Period, l.Zone) {
				t.Fatalf("%s: %s is in one with %s", text, show(inside, l.Zone), show(now, l.Zone))
			}
		}
		for _, outside := range []int64{start - 1, end} {
			if label(outside, l.Window.Period, l.Zone) == label(now, l.Window.Period, l.Zone) {
				t.Fatalf("%s: %s is not in one with %s", text, show(outside, l.Zone), show(now, l.Zone))
			}
		}
	})
}

// A window from the first use ends, later, and not later than the period may last.
func TestFirstUseSpansEnd(t *testing.T) {
	t.Parallel()
	check(t, cases, func(t *rapid.T) {
		l := genLimit(FixedWindow).Draw(t, "limit")
		l.FirstUse = true
		now := genMoment(l.zone()).Draw(t, "now")
		start, end := l.span(now)
		if start != now || end <= now || end-now > l.Window.Millis {
			t.Fatalf("%s: from %s: %s to %s", l.Window, show(now, l.zone()), show(start, l.zone()), show(end, l.zone()))
		}
	})
}

// genMoment draws instants, half of them near a clock change of the zone.
func genMoment(zone *time.Location) *rapid.Generator[int64] {
	return rapid.Custom(func(t *rapid.T) int64 {
		at := genInstant.Draw(t, "at")
		_, change := time.UnixMilli(at).In(zone).ZoneBounds()
		if change.IsZero() || rapid.Bool().Draw(t, "anywhere") {
			return at
		}
		near := rapid.OneOf(rapid.Int64Range(-1, 1), rapid.Int64Range(-2*3_600_000, 2*3_600_000),
			rapid.Int64Range(-50*3_600_000, 50*3_600_000)).Draw(t, "near")
		return change.UnixMilli() + near
	})
}

// label is the local minute, hour, date, week or month, as it would be printed.
func label(at int64, p Period, zone *time.Location) string {
	t := time.UnixMilli(at).In(zone)
	switch p {
	case PeriodMinute:
		return t.Format("2006-01-02 15:04")
	case PeriodHour:
		return t.Format("2006-01-02 15")
	case PeriodDay:
		return t.Format(time.DateOnly)
	case PeriodWeek:
		for t.Weekday() != time.Monday {
			t = time.Date(t.Year(), t.Month(), t.Day()-1, 12, 0, 0, 0, time.UTC)
		}
		return t.Format(time.DateOnly)
	default:
		return t.Format("2006-01")
	}
}

// stepsBack tells whether the clock is set back within a day of [start, end].
func stepsBack(start, end int64, zone *time.Location) bool {
	const day = 86_400_000
	for at := start - day; at < end+day; {
		_, change := time.UnixMilli(at).In(zone).ZoneBounds()
		if change.IsZero() || change.UnixMilli() >= end+day {
			return false
		}
		if offsetAt(change.UnixMilli(), zone) < offsetAt(change.UnixMilli()-1, zone) {
			return true
		}
		at = change.UnixMilli()
	}
	return false
}

// instant reads a time for a table.
func instant(t testing.TB, text string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMilli()
}

func show(at int64, zone *time.Location) string {
	return time.UnixMilli(at).In(zone).Format("2006-01-02T15:04:05.999Z07:00")
}
