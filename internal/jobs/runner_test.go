package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
	"github.com/seed503877ad/limits/internal/testenv"
)

// A bubble begins at 2000-01-01 00:00:00 UTC.

func TestJobRunsOnSchedule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, n := eachstore.SQLite(t, nil), newNotes()
		began := time.Now()
		var took []string
		r := runner(t, s, n, "a", jobs.Job{Name: "j", Schedule: "@every 1m", Run: func(context.Context) (string, error) {
			took = append(took, time.Since(began).String())
			return fmt.Sprint("run ", len(took)), nil
		}})
		time.Sleep(150 * time.Second)
		closeRunner(t, r)
		time.Sleep(10 * time.Minute) // stopped, it runs no more
		equal(t, "runs", took, []string{"0s", "1m0s", "2m0s"})
		equal(t, "history", history(t, s, "j"), []string{"00:00:00 done run 1", "00:01:00 done run 2", "00:02:00 done run 3"})

		// Times that were missed while no replica was up are made up for by one run.
		r = runner(t, s, n, "b", jobs.Job{Name: "j", Schedule: "@every 1m", Run: func(context.Context) (string, error) { return "late", nil }})
		synctest.Wait()
		equal(t, "history", history(t, s, "j")[3:], []string{"00:12:00 done late"})
		closeRunner(t, r)
	})
}

func TestJitter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := eachstore.SQLite(t, nil)
		var delays []time.Duration
		runner(t, s, newNotes(), "a", jobs.Job{Name: "j", Schedule: "@every 1m", Jitter: 20 * time.Second, Run: func(context.Context) (string, error) {
			now := time.Now()
			delays = append(delays, now.Sub(now.Truncate(time.Minute)))
			return "", nil
		}})
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if len(delays) < 20 || slices.Max(delays) >= 20*time.Second || delays[0] == 0 ||
			slices.Max(delays[1:]) == slices.Min(delays[1:]) {
			t.Errorf("delays %v", delays)
		}
		if got := history(t, s, "j")[1]; got != "00:01:00 done" {
			t.Errorf("the second run is %q: a run is named by its time", got)
		}
	})
}

func TestPanicsAndErrorsAreStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, n, turn := eachstore.SQLite(t, nil), newNotes(), 0
		runner(t, s, n, "a", jobs.Job{Name: "j", Schedule: "@every 1m", Run: func(context.Context) (string, error) {
			switch turn++; turn {
			case 1:
				panic("boom\nbang")
			case 2:
				return "half", errors.New("no such table\x1b")
			}
			return "", nil
		}})
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		equal(t, "history", history(t, s, "j"), []string{"00:00:00 failed : panic: boom bang", "00:01:00 failed half: no such table", "00:02:00 done"})
		if !n.logged("runner_test.go") {
			t.Error("no stack of the panic in the log")
		}
		if !n.logged("job ended job=j outcome=failed took=0s note=half error=no such table") {
			t.Errorf("log: %q", n.all())
		}
		equal(t, "observed", n.ended(), []string{"j failed 0s", "j failed 0s", "j done 0s"})
	})
}

// brittle is a store that fails, after a second, while down is set.
type brittle struct {
	jobs.Store
	down atomic.Bool
}

var errDown = errors.New("down")

func (b *brittle) fails() bool {
	down := b.down.Load()
	if down {
		time.Sleep(time.Second)
	}
	return down
}

func (b *brittle) ClaimRun(ctx context.Context, c jobs.Claim) (jobs.Claimed, error) {
	if b.fails() {
		return jobs.Claimed{}, errDown
	}
	return b.Store.ClaimRun(ctx, c)
}

func (b *brittle) Runs(ctx context.Context, f jobs.Filter) ([]jobs.Run, error) {
	if b.fails() {
		return nil, errDown
	}
	return b.Store.Runs(ctx, f)
}

// TestStoreOutageIsLoggedOnce: one outage is before the first run, and two are later.
func TestStoreOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, n := &brittle{Store: eachstore.SQLite(t, nil)}, newNotes()
		s.down.Store(true)
		runner(t, s, n, "a", jobs.Job{Name: "j", Schedule: "@every 1m", Run: func(context.Context) (string, error) { return "", nil }})
		time.Sleep(time.Hour + 5*time.Second) // off every time at which anything is tried
		s.down.Store(false)
		for range 2 {
			time.Sleep(2 * time.Minute)
			s.down.Store(true)
			time.Sleep(time.Hour)
			s.down.Store(false)
		}
		time.Sleep(2 * time.Minute)
		told := func(text string) (times int) {
			for _, line := range n.all() {
				if strings.Contains(line, text) {
					times++
				}
			}
			return times
		}
		if a, b := told("job is waiting for the store"), told("job could not be claimed"); a != 1 || b != 2 {
			t.Errorf("the first outage was logged %d times and the others %d times, want once each: %q", a, b, n.all())
		}
		if got := len(history(t, s, "j")); got < 2 {
			t.Errorf("%d runs", got)
		}
	})
}

// TestCloseDoesNotWaitForStore if it failed before the first run, or after it.
func TestCloseDoesNotWaitForStore(t *testing.T) {
	t.Parallel()
	for _, since := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := &brittle{Store: eachstore.SQLite(t, nil)}
			s.down.Store(since == 0)
			r := runner(t, s, newNotes(), "a", jobs.Job{Name: "j", Schedule: "@every 1m", Run: func(context.Context) (string, error) { return "", nil }})
			time.Sleep(since)
			s.down.Store(true)
			time.Sleep(5*time.Minute + 100*time.Millisecond)
			began := time.Now()
			closeRunner(t, r)
			if took := time.Since(began); took > time.Second { // what it was asking when it was stopped
				t.Errorf("away since %s: closed after %s", since, took)
			}
		})
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, n := eachstore.SQLite(t, nil), newNotes()
		stuck := make(chan struct{})
		runner(t, s, n, "a",
			jobs.Job{Name: "obeys", Schedule: "@hourly", Timeout: 5 * time.Second, Run: func(ctx context.Context) (string, error) {
				<-ctx.Done()
				return "half", fmt.Errorf("delete: %w", ctx.Err())
			}},
			jobs.Job{Name: "stuck", Schedule: "@every 1m", Timeout: 5 * time.Second, Run: func(context.Context) (string, error) {
				<-stuck
				return "", nil
			}})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		equal(t, "obeys", history(t, s, "obeys"), []string{"00:00:00 timeout half: delete: context deadline exceeded"})
		equal(t, "stuck", history(t, s, "stuck"), []string{"00:00:00 running"})
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		// Runs do not overlap on one replica, and times that passed meanwhile are made up for by one run.
		equal(t, "stuck", history(t, s, "stuck"), []string{"00:00:00 timeout : the job did not return after its context ended"})
		close(stuck)
		synctest.Wait()
		equal(t, "stuck", history(t, s, "stuck")[1:], []string{"00:03:00 done"})
		if !n.logged("job returned long after its context ended job=stuck took=3m5s") {
			t.Errorf("log: %q", n.all())
		}
		equal(t, "observed", n.ended(), []string{"obeys timeout 5s", "stuck timeout 35s", "stuck done 0s"})
	})
}

func TestCloseCancelsAndWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, n := eachstore.SQLite(t, nil), newNotes()
		r := runner(t, s, n, "a", jobs.Job{Name: "j", Schedule: "@hourly", Run: func(ctx context.Context) (string, error) {
			<-ctx.Done()
			time.Sleep(3 * time.Second) // it tidies up
			return "half", ctx.Err()
		}})
		synctest.Wait()
		began := time.Now()
		closeRunner(t, r)
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("closed after %s", took)
		}
		equal(t, "history", history(t, s, "j"), []string{"00:00:00 canceled half: context canceled"})
		if n.loudest > slog.LevelDebug { // a stop is no failure
			t.Errorf("log, up to %s: %q", n.loudest, n.all())
		}
		if _, err := r.RunNow(t.Context(), "j"); !errors.Is(err, jobs.ErrStopped) {
			t.Errorf("run when stopped: %v", err)
		}
	})
}

// TestCloseAbandonsStuckJob when the context of Close ends.
func TestCloseAbandonsStuckJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		r := runner(t, eachstore.SQLite(t, nil), newNotes(), "a", jobs.Job{Name: "j", Schedule: "@hourly", Run: func(context.Context) (string, error) {
			<-stuck
			return "", nil
		}})
		time.AfterFunc(time.Minute, func() { close(stuck) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := r.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("closed after %s: %v", time.Since(began), err)
		}
	})
}

func TestDeadReplicaIsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, n := eachstore.SQLite(t, nil), newNotes()
		claimed, err := s.ClaimRun(t.Context(), jobs.Claim{Job: "j", Scheduled: time.Now().UnixMilli(), Replica: "dead", Lease: 90 * time.Second})
		if err != nil || claimed.Outcome != jobs.Running {
			t.Fatalf("claim: %+v, %v", claimed, err)
		}
		runner(t, s, n, "a", jobs.Job{Name: "j", Schedule: "@every 1m", Run: func(context.Context) (string, error) { return "alive", nil }})
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		equal(t, "history", history(t, s, "j"), []string{"00:00:00 lost", "00:01:00 skipped", "00:02:00 done alive"})
		equal(t, "observed", n.ended(), []string{"j skipped", "j lost", "j done 0s"})
		if !n.logged("job skipped: the previous run has not ended job=j") {
			t.Errorf("log: %q", n.all())
		}
	})
}

// TestDeadReplicaIsFoundByOtherJobs: one job is not due for a day, but another one each minute finds the lost run.
func TestDeadReplicaIsFoundByOtherJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, n := eachstore.SQLite(t, nil), newNotes()
		if _, err := s.ClaimRun(t.Context(), jobs.Claim{Job: "daily", Scheduled: time.Now().UnixMilli(), Replica: "dead", Lease: 90 * time.Second}); err != nil {
			t.Fatal(err)
		}
		run := func(context.Context) (string, error) { return "", nil }
		runner(t, s, n, "a", jobs.Job{Name: "daily", Schedule: "@daily", Run: run}, jobs.Job{Name: "often", Schedule: "@every 1m", Run: run})
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		equal(t, "history", history(t, s, "daily"), []string{"00:00:00 lost"})
		if ended := n.ended(); !slices.Contains(ended, "daily lost") {
			t.Errorf("observed %q", ended)
		}
		if !n.logged("job lost: its replica died, or could not store the outcome job=daily") {
			t.Errorf("log: %q", n.all())
		}
	})
}

// hourly is a job with a Repeat, whose next scheduled run does not make up for a failed one.
func hourly(run func() (string, error)) jobs.Job {
	return jobs.Job{Name: "hourly", Schedule: "3 * * * *", Repeat: "13-53/10 * * * *", Jitter: time.Minute, Timeout: time.Minute,
		Run: func(context.Context) (string, error) { return run() }}
}

// TestFailedRunIsRepeated: three replicas have a job that fails for a part of an hour.
func TestFailedRunIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, n, begun := eachstore.SQLite(t, nil), newNotes(), time.Now()
		run := func() (string, error) {
			if up := time.Since(begun); up > time.Hour && up < 80*time.Minute {
				return "", errors.New("lock timeout")
			}
			return "", nil
		}
		for _, replica := range []string{"a", "b", "c"} {
			runner(t, s, n, replica, hourly(run))
		}
		time.Sleep(70 * time.Minute)
		synctest.Wait()
		// The time missed before the start is made up for, and a run that is done is not repeated.
		equal(t, "the first hour", history(t, s, "hourly"), []string{"23:03:00 done", "00:03:00 done", "01:03:00 failed : lock timeout"})
		r := runner(t, s, n, "d", hourly(run))
		all, err := r.Jobs(t.Context())
		if err != nil || all[0].Next.Format("15:04") != "01:13" {
			t.Errorf("jobs: %+v, %v", all, err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		equal(t, "the second", history(t, s, "hourly")[3:], []string{"01:13:00 failed : lock timeout", "01:23:00 done", "02:03:00 done"})
		if all, err = r.Jobs(t.Context()); err != nil || all[0].Next.Format("15:04") != "03:03" {
			t.Errorf("jobs: %+v, %v", all, err)
		}
	})
}

// TestFailedRunIsRepeatedThoughRunsCannotBeRead at the time of the repeat.
func TestFailedRunIsRepeatedThoughRunsCannotBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, turn := &unreadable{Store: eachstore.SQLite(t, nil)}, 0
		r := runner(t, s, newNotes(), "a", jobs.Job{Name: "j", Schedule: "@daily", Repeat: "@hourly", Run: func(context.Context) (string, error) {
			if turn++; turn == 1 {
				return "", errDown
			}
			return "", nil
		}})
		time.Sleep(time.Hour - time.Second)
		s.no.Store(true)
		if _, err := r.Jobs(t.Context()); !errors.Is(err, errDown) {
			t.Errorf("jobs: %v", err)
		}
		if _, err := r.History(t.Context(), jobs.Filter{Job: "j", Max: 1}); !errors.Is(err, errDown) {
			t.Errorf("history: %v", err)
		}
		time.Sleep(5 * time.Second)
		s.no.Store(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		equal(t, "history", history(t, s, "j"), []string{"00:00:00 failed : down", "01:00:00 done"})
	})
}

// TestRunAfterTheTimeOfARepeatIsNotRepeatedForIt: it was run by request meanwhile, by a replica whose clock is a little ahead.
func TestRunAfterTheTimeOfARepeatIsNotRepeatedForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := eachstore.SQLite(t, nil)
		runner(t, s, newNotes(), "a", jobs.Job{Name: "j", Schedule: "@daily", Repeat: "@every 1m", Run: func(context.Context) (string, error) { return "", errDown }})
		time.Sleep(50 * time.Second)
		ahead := time.Now().Add(30 * time.Second).UnixMilli()
		if claimed, err := s.ClaimRun(t.Context(), jobs.Claim{Job: "j", Scheduled: ahead, Replica: "b", Lease: time.Minute}); err != nil || claimed.Outcome != jobs.Running {
			t.Fatal(claimed, err)
		}
		if found, err := s.FinishRun(t.Context(), jobs.Run{Job: "j", Scheduled: ahead, Outcome: jobs.Failed}); !found || err != nil {
			t.Fatal(found, err)
		}
		time.Sleep(70 * time.Second)
		synctest.Wait()
		equal(t, "history", history(t, s, "j"), []string{"00:00:00 failed : down", "00:01:20 failed", "00:02:00 failed : down"})
	})
}

// TestLostRunIsRepeated: a replica dies during the run, and another starts later.
func TestLostRunIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, n := eachstore.SQLite(t, nil), newNotes()
		time.Sleep(3 * time.Minute)
		if _, err := s.ClaimRun(t.Context(), jobs.Claim{Job: "hourly", Scheduled: time.Now().UnixMilli(), Replica: "dead", Lease: 35 * time.Minute}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(25 * time.Minute) // 00:28
		runner(t, s, n, "a", hourly(func() (string, error) { return "alive", nil }))
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		// At 00:23 and 00:33 the run counts as running, until its lease is over.
		equal(t, "history", history(t, s, "hourly"), []string{"00:03:00 lost", "00:43:00 done alive"})
		equal(t, "observed", n.ended(), []string{"hourly lost", "hourly done 0s"})
	})
}

// TestNextRunIsEarlierOfScheduleAndRepeat for a job whose last run failed.
func TestNextRunIsEarlierOfScheduleAndRepeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fail := func(context.Context) (string, error) { return "", errDown }
		r := runner(t, eachstore.SQLite(t, nil), newNotes(), "a",
			jobs.Job{Name: "due", Schedule: "@every 1m", Repeat: "@hourly", Run: fail},
			jobs.Job{Name: "repeated", Schedule: "@hourly", Repeat: "@every 1m", Run: fail})
		synctest.Wait()
		all, err := r.Jobs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if s.Last == nil || !s.Next.Equal(time.Now().Truncate(time.Minute).Add(time.Minute)) {
				t.Errorf("%s: last %+v, next %s", s.Name, s.Last, s.Next)
			}
		}
	})
}

// TestOneReplicaDoesEachRun: of three replicas on one database one does the run, and the others see that.
func TestOneReplicaDoesEachRun(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	ran := make(chan string, 100)
	// Its last time was in February, so it is late at the start, and not due again during the test.
	job := jobs.Job{Name: "j", Schedule: "0 0 29 2 *"}
	n, runners := newNotes(), make([]*jobs.Runner, 3)
	for i := range runners {
		s := eachstore.Postgres(t, url)
		replica := fmt.Sprint("replica ", i)
		mine := job
		mine.Run = func(context.Context) (string, error) { ran <- replica; return "", nil }
		r, err := jobs.New(jobs.Config{Jobs: []jobs.Job{mine}, Store: s, Logger: slog.New(n), Observer: n, Replica: replica})
		if err != nil {
			t.Fatal(err)
		}
		runners[i] = r
	}
	for _, r := range runners {
		r.Start()
	}
	// A replica that first reads the store after the run sees that the job is not late, and logs nothing.
	await(t, n, "job ended")
	for _, r := range runners {
		closeRunner(t, r)
	}
	if len(ran) != 1 {
		t.Errorf("%d ran", len(ran))
	}
	equal(t, "observed", []string{strings.Fields(n.ended()[0])[1]}, []string{"done"})
}

func await(t *testing.T, n *notes, text string) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case line := <-n.told:
			if strings.HasPrefix(line, text) {
				return
			}
		case <-late:
			t.Fatalf("%q was not logged", text)
		}
	}
}

func TestInvalidConfigs(t *testing.T) {
	t.Parallel()
	run := func(context.Context) (string, error) { return "", nil }
	good := jobs.Job{Name: "j", Run: run}
	for word, change := range map[string]func(c *jobs.Config){
		"Store":     func(c *jobs.Config) { c.Store = nil },
		"Logger":    func(c *jobs.Config) { c.Logger = nil },
		"Replica":   func(c *jobs.Config) { c.Replica = "" },
		"Name is":   func(c *jobs.Config) { c.Jobs[0].Name = "" },
		"Run is":    func(c *jobs.Config) { c.Jobs[0].Run = nil },
		"duplicate": func(c *jobs.Config) { c.Jobs = append(c.Jobs, good) },
		"jitter":    func(c *jobs.Config) { c.Jobs[0].Jitter = -1 },
		"timeout":   func(c *jobs.Config) { c.Jobs[0].Timeout = -1 },
		"schedule":  func(c *jobs.Config) { c.Jobs[0].Schedule = "x" },
		"\"y\"":     func(c *jobs.Config) { c.Jobs[0].Repeat = "y" },
	} {
		c := jobs.Config{Jobs: []jobs.Job{good}, Store: &sqlite.Store{}, Logger: slog.New(slog.DiscardHandler), Replica: "a"}
		change(&c)
		if _, err := jobs.New(c); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}
