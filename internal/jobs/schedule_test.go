package jobs

import (
	"strings"
	"testing"
	"time"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	moment, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return moment
}

func TestDue(t *testing.T) {
	t.Parallel()
	const epoch = "1970-01-01T00:00:00Z"
	for _, c := range []struct{ spec, after, now, want string }{
		{"@every 1m", "2026-03-01T10:00:00Z", "2026-03-01T10:00:59Z", ""},
		{"@every 1m", "2026-03-01T10:00:00Z", "2026-03-01T10:01:00Z", "2026-03-01T10:01:00Z"},
		{"@every 1m", "2026-03-01T10:00:30Z", "2026-03-01T10:01:00Z", "2026-03-01T10:01:00Z"}, // behind a run by hand
		{"@every 1m", "2026-03-01T10:00:00Z", "2026-03-01T12:34:56Z", "2026-03-01T12:34:00Z"},
		{"@every 1m", epoch, "2026-03-01T12:34:56Z", "2026-03-01T12:34:00Z"},
		{"@every 90s", epoch, "1970-01-01T00:04:00Z", "1970-01-01T00:03:00Z"}, // counted from the epoch
		{"30 3 * * *", epoch, "2026-03-01T03:29:59Z", "2026-02-28T03:30:00Z"},
		{"30 3 * * *", "2026-02-28T03:30:00Z", "2026-03-01T03:29:59Z", ""},
		{"30 3 * * *", "2026-02-20T03:30:00Z", "2026-03-01T03:30:00Z", "2026-03-01T03:30:00Z"},      // over the end of a month
		{"30 2 * * *", "2026-03-28T02:30:00Z", "2026-03-29T12:00:00+02:00", "2026-03-29T02:30:00Z"}, // an hour that Berlin leaves out
		{"30 0 * * *", "2026-10-25T00:30:00Z", "2026-10-25T02:45:00+01:00", ""},                     // an hour that Berlin repeats
		{"30 3 * * *", "2026-03-01T01:30:00-02:00", "2026-03-01T06:00:00Z", ""},                     // done, as a clock in another zone shows it
		{"0 0 31 * *", "2026-01-31T00:00:00Z", "2026-03-30T00:00:00Z", ""},
		{"0 0 1 * *", "2025-11-01T00:00:00Z", "2026-02-27T00:00:00Z", "2026-02-01T00:00:00Z"},
		{"0 0 29 2 *", epoch, "2027-01-01T00:00:00Z", "2024-02-29T00:00:00Z"},
		{"0 0 29 2 *", "2096-02-29T00:00:00Z", "2097-01-01T00:00:00Z", ""},                     // the next is farther away than schedules look
		{"0 0 29 2 *", "2095-01-01T00:00:00Z", "2097-01-01T00:00:00Z", "2096-02-29T00:00:00Z"}, // but the last is not
	} {
		s, err := parse(c.spec)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := due(s, at(t, c.after), at(t, c.now))
		if ok != (c.want != "") || ok && !got.Equal(at(t, c.want)) {
			t.Errorf("%s after %s at %s: %s %t, want %q", c.spec, c.after, c.now, got, ok, c.want)
		}
	}
}

func TestInvalidSchedules(t *testing.T) {
	t.Parallel()
	for spec, word := range map[string]string{
		"every day":                    "want a cron line",
		"@every x":                     "want a cron line",
		"0 0 30 2 *":                   "no date that exists",
		"CRON_TZ=Europe/Berlin @daily": "UTC",
		"61 * * * *":                   "61",
	} {
		if _, err := parse(spec); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want %q", spec, err, word)
		}
	}
}
