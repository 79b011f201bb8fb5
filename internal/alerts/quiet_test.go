package alerts

import (
	"slices"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/week"
)

// TestQuietUntil asks at times of day that are quiet, and at others, over changes of the clock: in Berlin 2026-03-29 02:00
// became 03:00, and 2026-10-25 03:00 became 02:00 again.
func TestQuietUntil(t *testing.T) {
	t.Parallel()
	const berlin = `timezone: Europe/Berlin`
	for _, c := range []struct{ name, hours, at, until string }{
		{"before", `{from: "22:00", to: "07:00"}`, "2026-01-15T21:59:59Z", ""},
		{"begins", `{from: "22:00", to: "07:00"}`, "2026-01-15T22:00:00Z", "2026-01-16T07:00:00Z"},
		{"within a minute", `{from: "22:00", to: "07:00"}`, "2026-01-15T22:00:30.5Z", "2026-01-16T07:00:00Z"},
		{"after midnight", `{from: "22:00", to: "07:00"}`, "2026-01-16T06:59:59.999Z", "2026-01-16T07:00:00Z"},
		{"ended", `{from: "22:00", to: "07:00"}`, "2026-01-16T07:00:00Z", ""},
		{"a zone", `{from: "22:00", to: "07:00", ` + berlin + `}`, "2026-01-15T21:00:00Z", "2026-01-16T06:00:00Z"},
		{"to 24:00", `{from: "22:00", to: "24:00"}`, "2026-01-15T23:00:00Z", "2026-01-16T00:00:00Z"},

		// 2026-01-16 is a Friday, 2026-01-17 a Saturday.
		{"the day on which it begins", `{days: fri, from: "22:00", to: "07:00"}`, "2026-01-17T03:00:00Z", "2026-01-17T07:00:00Z"},
		{"another day", `{days: fri, from: "22:00", to: "07:00"}`, "2026-01-16T03:00:00Z", ""},
		{"of a range", `{days: [mon-fri], from: "22:00", to: "07:00"}`, "2026-01-16T23:00:00Z", "2026-01-17T07:00:00Z"},
		{"not of a range", `{days: [mon-fri], from: "22:00", to: "07:00"}`, "2026-01-17T23:00:00Z", ""},
		{"a range over the end of the week", `{days: [fri-mon], from: "12:00", to: "13:00"}`, "2026-01-18T12:30:00Z", "2026-01-18T13:00:00Z"},
		{"saturday into sunday", `{days: sat, from: "22:00", to: "07:00"}`, "2026-01-18T01:00:00Z", "2026-01-18T07:00:00Z"},
		{"saturday, before midnight", `{days: sat, from: "22:00", to: "07:00"}`, "2026-01-17T23:00:00Z", "2026-01-18T07:00:00Z"},
		{"one after another", `{days: fri, from: "22:00", to: "24:00"}, {days: [sat, sun], from: "00:00", to: "24:00"}`,
			"2026-01-16T22:30:00Z", "2026-01-19T00:00:00Z"},
		{"the same in two zones", `{from: "22:00", to: "23:00"}, {from: "22:00", to: "23:00", ` + berlin + `}`, "2026-01-15T21:30:00Z", "2026-01-15T23:00:00Z"},
		{"one in another, by zones", `{from: "22:00", to: "07:00"}, {from: "06:00", to: "09:00", ` + berlin + `}`,
			"2026-01-16T03:00:00Z", "2026-01-16T08:00:00Z"},

		{"over the hour that is skipped", `{from: "22:00", to: "07:00", ` + berlin + `}`, "2026-03-28T21:00:00Z", "2026-03-29T05:00:00Z"},
		{"begins in the hour that is skipped", `{from: "02:30", to: "04:00", ` + berlin + `}`, "2026-03-29T00:59:59Z", ""},
		{"began in the hour that is skipped", `{from: "02:30", to: "04:00", ` + berlin + `}`, "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"},
		{"ends in the hour that is skipped", `{from: "01:00", to: "02:30", ` + berlin + `}`, "2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z"},
		{"is skipped", `{from: "02:10", to: "02:50", ` + berlin + `}`, "2026-03-29T01:00:00Z", ""},

		{"over the hour that is repeated", `{from: "22:00", to: "07:00", ` + berlin + `}`, "2026-10-24T20:00:00Z", "2026-10-25T06:00:00Z"},
		{"of the hour that is repeated, the first", `{from: "02:10", to: "02:50", ` + berlin + `}`, "2026-10-25T00:20:00Z", "2026-10-25T00:50:00Z"},
		{"between the two", `{from: "02:10", to: "02:50", ` + berlin + `}`, "2026-10-25T01:05:00Z", ""},
		{"of the hour that is repeated, the second", `{from: "02:10", to: "02:50", ` + berlin + `}`, "2026-10-25T01:20:00Z", "2026-10-25T01:50:00Z"},
		{"all of the hour that is repeated", `{from: "02:00", to: "03:00", ` + berlin + `}`, "2026-10-25T00:10:00Z", "2026-10-25T02:00:00Z"},
		{"ends at the change", `{from: "01:00", to: "02:00", ` + berlin + `}`, "2026-10-24T23:30:00Z", "2026-10-25T00:00:00Z"},

		// In Santiago 2026-09-06 00:00 became 01:00: the day has no midnight.
		{"to a midnight that is skipped", `{days: sat, from: "22:00", to: "24:00", timezone: America/Santiago}`, "2026-09-06T03:00:00Z", "2026-09-06T04:00:00Z"},
		{"from a midnight that is skipped", `{days: sun, from: "00:00", to: "06:00", timezone: America/Santiago}`, "2026-09-06T04:00:00Z", "2026-09-06T09:00:00Z"},
		// Time.ZoneBounds gives an end that has passed for this day.
		{"the last day of a leap year", `{from: "22:00", to: "07:00", ` + berlin + `}`, "2040-12-31T03:00:00Z", "2040-12-31T06:00:00Z"},
		{"the night to it", `{from: "22:00", to: "07:00", ` + berlin + `}`, "2040-12-30T23:30:00Z", "2040-12-31T06:00:00Z"},
		{"the night after it", `{from: "22:00", to: "07:00", ` + berlin + `}`, "2040-12-31T22:30:00Z", "2041-01-01T06:00:00Z"},
		{"a zone of 45 minutes", `{from: "22:00", to: "23:00", timezone: Asia/Kathmandu}`, "2026-01-15T16:15:00Z", "2026-01-15T17:15:00Z"},
	} {
		r := parseGood(t, "rules: [{name: a, quietHours: ["+c.hours+"]}]").Rules[0]
		at, err := time.Parse(time.RFC3339Nano, c.at)
		if err != nil {
			t.Fatal(err)
		}
		until, quiet := r.quietUntil(at)
		got := ""
		if quiet {
			got = until.UTC().Format(time.RFC3339Nano)
		}
		if got != c.until {
			t.Errorf("%s: at %s until %q, want %q", c.name, c.at, got, c.until)
		}
	}
}

// TestQuietUntilIsTheEnd walks through two years of three zones in steps of 7 minutes: the end that is returned for a time must
// agree with the results for the following times. 2040 is a leap year, and no file of the zone database lists its changes.
func TestQuietUntilIsTheEnd(t *testing.T) {
	t.Parallel()
	r := parseGood(t, `rules: [{name: a, quietHours: [{days: [mon-fri], from: "22:00", to: "02:30", timezone: Europe/Berlin},
  {days: [sun], from: "01:15", to: "03:00", timezone: America/New_York}, {from: "00:30", to: "02:15", timezone: Australia/Lord_Howe}]}]`).Rules[0]
	holds := func(at time.Time) bool {
		return slices.ContainsFunc(r.Quiet, func(q QuietHours) bool { return q.spans.Holds(week.Minute(at.In(q.zone))) })
	}
	for _, year := range []int{2026, 2040} {
		begin := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		var end time.Time
		for at := begin; at.Before(begin.AddDate(1, 0, 1)); at = at.Add(7 * time.Minute) {
			until, quiet := r.quietUntil(at)
			switch {
			case quiet != holds(at):
				t.Fatalf("%s: quiet %t", at, quiet)
			case quiet && (!until.After(at) || holds(until) || until.Sub(at) > 8*time.Hour):
				t.Fatalf("%s: quiet until %s", at, until)
			case quiet && at.Before(end) && !until.Equal(end):
				t.Fatalf("%s: quiet until %s, and before that until %s", at, until, end)
			case !quiet && at.Before(end):
				t.Fatalf("%s: not quiet, and said to be until %s", at, end)
			}
			if quiet {
				end = until
			}
		}
	}
}
