package jobs_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/jobs"
)

// TestClockChangesAndMonths runs three replicas, whose clocks show the time of Berlin, over changes of the clock and ends of
// months: each run once, at its time in UTC.
func TestClockChangesAndMonths(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, schedule, from string
		lasts                time.Duration
		want                 []string
	}{
		{"an hour that is left out", "30 2 * * *", "2026-03-29T00:15:00Z", 3 * time.Hour, []string{"03-29 00:15", "03-29 02:30"}},
		{"an hour that comes twice", "30 0 * * *", "2026-10-25T00:15:00Z", 3 * time.Hour, []string{"10-25 00:15", "10-25 00:30"}},
		{"every hour over it", "0 * * * *", "2026-10-24T23:30:00Z", 3 * time.Hour, []string{"10-24 23:30", "10-25 00:00", "10-25 01:00", "10-25 02:00"}},
		{"the end of a month", "0 0 1 * *", "2026-02-28T22:30:00Z", 3 * time.Hour, []string{"02-28 22:30", "03-01 00:00"}},
		{"a day that the month lacks", "0 0 29 * *", "2026-02-28T22:30:00Z", 3 * time.Hour, []string{"02-28 22:30"}},
		{"the end of a year", "59 23 31 12 *", "2026-12-31T22:30:00Z", 3 * time.Hour, []string{"12-31 22:30", "12-31 23:59"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			from, err := time.Parse(time.RFC3339, c.from)
			if err != nil {
				t.Fatal(err)
			}
			// What was missed before the start is made up for at once.
			equal(t, c.schedule, runsOfThree(t, c.schedule, from, c.lasts), c.want)
		})
	}
}

// runsOfThree gives when any of three replicas ran the job.
func runsOfThree(t *testing.T, schedule string, from time.Time, lasts time.Duration) (times []string) {
	t.Helper()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s, ran, ahead := file(t), make(chan time.Time, 1000), time.Until(from)
		now := func() time.Time { return time.Now().Add(ahead).In(berlin) }
		for _, replica := range []string{"a", "b", "c"} {
			r, err := jobs.New(jobs.Config{Store: s, Logger: slog.New(slog.DiscardHandler), Replica: replica, Now: now,
				Jobs: []jobs.Job{{Name: "j", Schedule: schedule, Run: func(context.Context) (string, error) {
					ran <- now()
					return "", nil
				}}}})
			if err != nil {
				t.Fatal(err)
			}
			r.Start()
			t.Cleanup(func() { closeRunner(t, r) })
		}
		time.Sleep(lasts)
		synctest.Wait()
		close(ran)
		for at := range ran {
			times = append(times, at.UTC().Format("01-02 15:04"))
		}
	})
	return times
}
