package jobs_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// TestDaylightSavingAndMonthEnds runs three replicas in the time zone of Berlin over changes of the clock and ends of months.
// Each job must run once, at its time in UTC.
func TestDaylightSavingAndMonthEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, schedule, from string
		lasts                time.Duration
		want                 []string
	}{
		{"skipped hour", "30 2 * * *", "2026-03-29T00:15:00Z", 3 * time.Hour, []string{"03-29 00:15", "03-29 02:30"}},
		{"repeated hour", "30 0 * * *", "2026-10-25T00:15:00Z", 3 * time.Hour, []string{"10-25 00:15", "10-25 00:30"}},
		{"hourly over the repeated hour", "0 * * * *", "2026-10-24T23:30:00Z", 3 * time.Hour, []string{"10-24 23:30", "10-25 00:00", "10-25 01:00", "10-25 02:00"}},
		{"the end of a month", "0 0 1 * *", "2026-02-28T22:30:00Z", 3 * time.Hour, []string{"02-28 22:30", "03-01 00:00"}},
		{"day that the month lacks", "0 0 29 * *", "2026-02-28T22:30:00Z", 3 * time.Hour, []string{"02-28 22:30"}},
		{"the end of a year", "59 23 31 12 *", "2026-12-31T22:30:00Z", 3 * time.Hour, []string{"12-31 22:30", "12-31 23:59"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			from, err := time.Parse(time.RFC3339, c.from)
			if err != nil {
				t.Fatal(err)
			}
			// A run that was missed before the start happens at once.
			equal(t, c.schedule, runsOfThree(t, c.schedule, from, c.lasts), c.want)
		})
	}
}

// runsOfThree returns the times at which any of three replicas ran the job.
func runsOfThree(t *testing.T, schedule string, from time.Time, lasts time.Duration) (times []string) {
	t.Helper()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s, ran, ahead := eachstore.SQLite(t, nil), make(chan time.Time, 1000), time.Until(from)
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

// TestClockSetBack sets back a clock that was ahead, while a runner runs or between two runners. Then the job must run at
// its times again, and no time may have two runs.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	const years, little = 10 * 365 * 24 * time.Hour, 90 * time.Second
	for _, c := range []struct {
		name    string
		ahead   time.Duration
		restart bool
		want    int
	}{
		// Two runs while the clock was ahead and one a minute in the hour after that.
		{"by years, and the program restarts", years, true, 62},
		// The same, except the minute in which it wakes up and notices.
		{"by years, and the program goes on", years, false, 61},
		// Two of the three runs while it was ahead are within the hour after it was set back.
		{"by a little, and the program goes on", little, false, 61},
		{"by a little, and the program restarts", little, true, 61},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, n := eachstore.SQLite(t, nil), newNotes()
				var ahead atomic.Int64
				now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
				start := func() *jobs.Runner {
					r, err := jobs.New(jobs.Config{Store: s, Logger: slog.New(slog.DiscardHandler), Observer: n, Replica: "a",
						Now: now, Jobs: []jobs.Job{{Name: "expire", Schedule: "@every 60s",
							Run: func(context.Context) (string, error) { return "", nil }}}})
					if err != nil {
						t.Fatal(err)
					}
					r.Start()
					return r
				}
				ahead.Store(int64(c.ahead))
				r := start()
				time.Sleep(95 * time.Second)
				ahead.Store(0)
				if c.restart {
					closeRunner(t, r)
					r = start()
				}
				time.Sleep(time.Hour)
				closeRunner(t, r)
				if ran := len(n.ended()); ran != c.want {
					t.Errorf("%d runs, want %d", ran, c.want)
				}
			})
		})
	}
}

// TestRunInTheFutureIsNotTheLast: missed times after it are made up for, a failed run is repeated, and the last run is
// a real one.
func TestRunInTheFutureIsNotTheLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // from midnight on
		s, n := eachstore.SQLite(t, nil), newNotes()
		var ahead atomic.Int64
		var fails atomic.Bool
		now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		start := func() *jobs.Runner {
			r, err := jobs.New(jobs.Config{Store: s, Logger: slog.New(slog.DiscardHandler), Observer: n, Replica: "a", Now: now,
				Jobs: []jobs.Job{{Name: "report", Schedule: "3 0 * * *", Repeat: "13 * * * *", Run: func(context.Context) (string, error) {
					if fails.Load() {
						return "", errors.New("the store is away")
					}
					return "", nil
				}}}})
			if err != nil {
				t.Fatal(err)
			}
			r.Start()
			return r
		}
		r := start()
		time.Sleep(time.Hour) // a run
		ahead.Store(int64(365 * 24 * time.Hour))
		time.Sleep(24 * time.Hour) // a run, in a year
		ahead.Store(0)
		time.Sleep(22 * time.Hour) // a run, and then it is 23:00
		closeRunner(t, r)
		time.Sleep(3 * time.Hour) // down at 00:03
		before := len(n.ended())
		r = start()
		time.Sleep(time.Hour)
		if made := len(n.ended()) - before; made != 1 {
			t.Errorf("%d runs made up for the one that was missed", made)
		}
		if all, err := r.Jobs(t.Context()); err != nil || all[0].Last == nil || all[0].Last.Scheduled > now().UnixMilli() {
			t.Errorf("the last run is %+v, %v", all[0].Last, err)
		}
		fails.Store(true)
		before = len(n.ended())
		time.Sleep(24 * time.Hour) // 03:00; at 00:03, 00:13, 01:13 and 02:13
		if failed := len(n.ended()) - before; failed != 4 {
			t.Errorf("%d runs of one that fails", failed)
		}
		closeRunner(t, r)
	})
}

// noHistory is a store that tells the last run of a job, and no others.
type noHistory struct{ jobs.Store }

func (noHistory) Runs(context.Context, jobs.Filter) ([]jobs.Run, error) { return nil, errDown }

// ranAt makes a run of a job that is done.
func ranAt(t *testing.T, s jobs.Store, job string, at time.Time) {
	t.Helper()
	c := jobs.Claim{Job: job, Scheduled: at.UnixMilli(), Replica: "before", Lease: time.Minute}
	if claimed, err := s.ClaimRun(t.Context(), c); err != nil || claimed.Outcome != jobs.Running {
		t.Fatal(claimed, err)
	}
	if found, err := s.FinishRun(t.Context(), jobs.Run{Job: job, Scheduled: c.Scheduled, Outcome: jobs.Done}); !found || err != nil {
		t.Fatal(found, err)
	}
}

// TestRunBeforeOneInTheFutureIsTheLast: the job is not due again. While it cannot be read, it is unknown whether one was missed.
func TestRunBeforeOneInTheFutureIsTheLast(t *testing.T) {
	t.Parallel()
	for _, readable := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var s jobs.Store = eachstore.SQLite(t, nil)
			time.Sleep(30 * time.Second)
			last := time.Now() // by request, after midnight
			ranAt(t, s, "j", last)
			ranAt(t, s, "j", last.Add(24*time.Hour)) // by a replica whose clock was ahead
			if !readable {
				s = noHistory{s}
			}
			n := newNotes()
			r := runner(t, s, n, "a", jobs.Job{Name: "j", Schedule: "@daily", Run: func(context.Context) (string, error) { return "", nil }})
			time.Sleep(time.Minute)
			all, err := r.Jobs(t.Context())
			if readable && (err != nil || all[0].Last == nil || all[0].Last.Scheduled != last.UnixMilli()) || !readable && !errors.Is(err, errDown) {
				t.Errorf("%+v, %v; can be read: %t", all, err, readable)
			}
			equal(t, "observed", n.ended(), nil)
		})
	}
}

// TestClockSetForward: the job's time comes sooner than the runner's timers fire, because timers do not follow when the
// clock is set, and stop while the machine sleeps.
func TestClockSetForward(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, n := eachstore.SQLite(t, nil), newNotes()
		var ahead atomic.Int64
		r, err := jobs.New(jobs.Config{Store: s, Logger: slog.New(slog.DiscardHandler), Observer: n, Replica: "a",
			Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
			Jobs: []jobs.Job{{Name: "daily", Schedule: "30 3 * * *", Jitter: time.Minute,
				Run: func(context.Context) (string, error) { return "", nil }}}})
		if err != nil {
			t.Fatal(err)
		}
		r.Start()
		t.Cleanup(func() { closeRunner(t, r) })
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		equal(t, "before", n.ended(), []string{"daily done 0s"})
		ahead.Store(int64(5 * time.Hour))
		time.Sleep(time.Minute)
		synctest.Wait()
		equal(t, "at 05:11", n.ended(), []string{"daily done 0s", "daily done 0s"})
	})
}
