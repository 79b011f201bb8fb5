package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// losingAnswers is a store that loses the answers to claims while lose is set: the run is claimed, and the caller gets an error.
type losingAnswers struct {
	jobs.Store
	lose atomic.Bool
}

func (u *losingAnswers) ClaimRun(ctx context.Context, c jobs.Claim) (jobs.Claimed, error) {
	claimed, err := u.Store.ClaimRun(ctx, c)
	if err == nil && u.lose.CompareAndSwap(true, false) {
		return jobs.Claimed{}, errDown
	}
	return claimed, err
}

// TestClaimWithLostAnswerIsRun: otherwise no replica would run the job until the lease is over.
func TestClaimWithLostAnswerIsRun(t *testing.T) {
	t.Parallel()
	for _, every := range []string{"5s", "10s", "1m"} { // other times come before it is tried again, or do not
		t.Run(every, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, n := &losingAnswers{Store: eachstore.SQLite(t, nil)}, newNotes()
				s.lose.Store(true)
				runner(t, s, n, "a", jobs.Job{Name: "j", Schedule: "@every " + every, Run: func(context.Context) (string, error) { return "", nil }})
				time.Sleep(time.Minute)
				synctest.Wait()
				all := history(t, s, "j")
				if all[0] != "00:00:00 done" {
					t.Errorf("the first run: %q", all[0])
				}
				if i := slices.IndexFunc(all, func(run string) bool { return !strings.HasSuffix(run, "done") }); i >= 0 {
					t.Errorf("then %q", all[i])
				}
			})
		})
	}
}

// TestClaimConfirmedTooLateIsNotRun: its run could outlast the lease, and overlap with the next.
func TestClaimConfirmedTooLateIsNotRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &brittle{Store: eachstore.SQLite(t, nil)}
		s := &losingAnswers{Store: b}
		s.lose.Store(true)
		runner(t, s, newNotes(), "a", jobs.Job{Name: "j", Schedule: "@hourly", Run: func(context.Context) (string, error) { return "", nil }})
		synctest.Wait()
		b.down.Store(true)
		time.Sleep(45 * time.Second)
		b.down.Store(false)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		equal(t, "history", history(t, s, "j"), []string{"00:00:00 running"})
	})
}

// outrun is a store in which another replica is first, once; then that replica fails.
type outrun struct {
	jobs.Store
	other atomic.Bool
}

func (o *outrun) ClaimRun(ctx context.Context, c jobs.Claim) (jobs.Claimed, error) {
	if !o.other.CompareAndSwap(false, true) {
		return o.Store.ClaimRun(ctx, c)
	}
	c.Replica = "other"
	_, _ = o.Store.ClaimRun(ctx, c)
	return jobs.Claimed{}, errDown
}

// TestClaimOfAnotherReplicaIsNotRun when the answer to a claim was lost.
func TestClaimOfAnotherReplicaIsNotRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &outrun{Store: eachstore.SQLite(t, nil)}
		runner(t, s, newNotes(), "a", jobs.Job{Name: "j", Schedule: "@hourly", Run: func(context.Context) (string, error) { return "", nil }})
		time.Sleep(30 * time.Second)
		synctest.Wait()
		equal(t, "history", history(t, s, "j"), []string{"00:00:00 running"})
	})
}

// TestSkippedClaimWithLostAnswerIsNotRun: the previous run goes on, on another replica, or on this one by request.
func TestSkippedClaimWithLostAnswerIsNotRun(t *testing.T) {
	t.Parallel()
	for _, replica := range []string{"other", "a"} {
		synctest.Test(t, func(t *testing.T) {
			s := &losingAnswers{Store: eachstore.SQLite(t, nil)}
			previous := jobs.Claim{Job: "j", Scheduled: time.Now().Add(-time.Hour).UnixMilli(), Replica: replica, Lease: time.Minute}
			if claimed, err := s.ClaimRun(t.Context(), previous); err != nil || claimed.Outcome != jobs.Running {
				t.Fatal(claimed, err)
			}
			s.lose.Store(true)
			ran := false
			runner(t, s, newNotes(), "a", jobs.Job{Name: "j", Schedule: "@hourly", Run: func(context.Context) (string, error) { ran = true; return "", nil }})
			time.Sleep(30 * time.Second)
			synctest.Wait()
			equal(t, "history", history(t, s, "j"), []string{"23:00:00 running", "00:00:00 skipped"})
			if ran {
				t.Errorf("it was run besides the previous run on %s", replica)
			}
		})
	}
}

// unreadable is a store whose runs cannot be read while no is set. Runs are claimed all the same.
type unreadable struct {
	jobs.Store
	no atomic.Bool
}

func (u *unreadable) Runs(ctx context.Context, f jobs.Filter) ([]jobs.Run, error) {
	if u.no.Load() {
		return nil, errDown
	}
	return u.Store.Runs(ctx, f)
}

// TestStopBeforeTheLastRunIsKnownClaimsNothing: the job would be canceled at once, and no other replica would run it.
func TestStopBeforeTheLastRunIsKnownClaimsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &unreadable{Store: eachstore.SQLite(t, nil)}
		s.no.Store(true)
		r := runner(t, s, newNotes(), "a", jobs.Job{Name: "j", Schedule: "@hourly", Run: func(context.Context) (string, error) { return "", nil }})
		time.Sleep(5 * time.Second)
		closeRunner(t, r)
		s.no.Store(false)
		equal(t, "history", history(t, s, "j"), nil)
	})
}

// TestClaimWithLostAnswerIsRunThoughRunsCannotBeRead for a while: to claim it again would look as if another replica had it.
func TestClaimWithLostAnswerIsRunThoughRunsCannotBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := &unreadable{Store: eachstore.SQLite(t, nil)}
		s := &losingAnswers{Store: u}
		s.lose.Store(true)
		runner(t, s, newNotes(), "a", jobs.Job{Name: "j", Schedule: "@hourly", Run: func(context.Context) (string, error) { return "", nil }})
		synctest.Wait() // it is claimed
		u.no.Store(true)
		time.Sleep(15 * time.Second)
		u.no.Store(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		equal(t, "history", history(t, s, "j"), []string{"00:00:00 done"})
	})
}

// TestClaimWithLostAnswerIsFoundBehindSkippedRuns, which another replica has recorded since.
func TestClaimWithLostAnswerIsFoundBehindSkippedRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &losingAnswers{Store: eachstore.SQLite(t, nil)}
		s.lose.Store(true)
		runner(t, s, newNotes(), "a", jobs.Job{Name: "j", Schedule: "@hourly", Run: func(context.Context) (string, error) { return "", nil }})
		time.Sleep(5 * time.Second)
		for range 3 {
			time.Sleep(time.Second)
			later := jobs.Claim{Job: "j", Scheduled: time.Now().UnixMilli(), Replica: "other", Lease: time.Minute}
			if claimed, err := s.ClaimRun(t.Context(), later); err != nil || claimed.Outcome != jobs.Skipped {
				t.Fatal(claimed, err)
			}
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		equal(t, "history", history(t, s, "j")[:2], []string{"00:00:00 done", "00:00:06 skipped"})
	})
}

// slow is a store that takes a second for a claim. If its context ends meanwhile, the claim may have succeeded or not.
type slow struct{ jobs.Store }

func (s *slow) ClaimRun(ctx context.Context, c jobs.Claim) (jobs.Claimed, error) {
	claimed, err := s.Store.ClaimRun(context.WithoutCancel(ctx), c)
	select {
	case <-ctx.Done():
		return jobs.Claimed{}, ctx.Err()
	case <-time.After(time.Second):
		return claimed, err
	}
}

// TestClaimIsNotCanceled by a stop or by the end of a request: the run would count as running until its lease is over.
func TestClaimIsNotCanceled(t *testing.T) {
	t.Parallel()
	run := func(ctx context.Context) (string, error) { return "", ctx.Err() }
	t.Run("by a stop", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s, n := &slow{eachstore.SQLite(t, nil)}, newNotes()
			r := runner(t, s, n, "a", jobs.Job{Name: "j", Schedule: "@hourly", Run: run})
			synctest.Wait() // it claims
			closeRunner(t, r)
			equal(t, "history", history(t, s, "j"), []string{"00:00:00 canceled : context canceled"})
			if n.logged("job could not be claimed") {
				t.Errorf("log: %q", n.all())
			}
		})
	})
	t.Run("by the caller", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &slow{eachstore.SQLite(t, nil)}
			r := runner(t, s, newNotes(), "a", jobs.Job{Name: "j", Run: run})
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			begun := time.Now()
			if _, err := r.RunNow(ctx, "j"); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != 100*time.Millisecond {
				t.Errorf("%v after %s", err, time.Since(begun))
			}
			time.Sleep(time.Second)
			synctest.Wait()
			equal(t, "history", history(t, s, "j"), []string{"00:00:00 done"})
		})
	})
}

// forgetful is a store that fails to store the next ends of runs.
type forgetful struct {
	jobs.Store
	fails atomic.Int32
	// does says that it stores them all the same.
	does bool
}

func (f *forgetful) FinishRun(ctx context.Context, r jobs.Run) (bool, error) {
	if f.fails.Add(-1) < 0 {
		return f.Store.FinishRun(ctx, r)
	}
	if f.does {
		_, _ = f.Store.FinishRun(ctx, r)
	}
	return false, errDown
}

// TestStoringOutcomeIsRetried: otherwise the job would be skipped until the lease is over.
func TestStoringOutcomeIsRetried(t *testing.T) {
	t.Parallel()
	for _, does := range []bool{false, true} {
		t.Run(fmt.Sprint("stored despite the error: ", does), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, n := &forgetful{Store: eachstore.SQLite(t, nil), does: does}, newNotes()
				s.fails.Store(2)
				runner(t, s, n, "a", jobs.Job{Name: "j", Schedule: "@every 1m", Run: func(context.Context) (string, error) { return "", nil }})
				time.Sleep(time.Minute)
				synctest.Wait()
				equal(t, "history", history(t, s, "j"), []string{"00:00:00 done", "00:01:00 done"})
				equal(t, "observed", n.ended(), []string{"j done 0s", "j done 0s"})
				if n.logged("lost") {
					t.Errorf("log: %q", n.all())
				}
				s.fails.Store(1000) // for longer than there is time for
				time.Sleep(time.Minute + 30*time.Second)
				synctest.Wait()
				if !n.logged("job outcome could not be stored, so the run will count as lost") {
					t.Errorf("log: %q", n.all())
				}
				if tries := 1000 - s.fails.Load(); tries != 3 { // in 20 s; the lease has 30 s more than the run
					t.Errorf("%d tries", tries)
				}
			})
		})
	}
}

// TestLeaseOutlastsSlowestRun: one that returns just within its grace, and whose outcome is stored at the last attempt.
func TestLeaseOutlastsSlowestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, n := &forgetful{Store: eachstore.SQLite(t, nil)}, newNotes()
		s.fails.Store(2)
		runner(t, s, n, "a", jobs.Job{Name: "j", Schedule: "@hourly", Timeout: 5 * time.Second, Run: func(ctx context.Context) (string, error) {
			<-ctx.Done()
			time.Sleep(29 * time.Second)
			return "", nil
		}})
		time.Sleep(53 * time.Second) // the last attempt is after 54 s
		other := jobs.Claim{Job: "other", Scheduled: time.Now().UnixMilli(), Replica: "b", Lease: time.Minute}
		if claimed, err := s.ClaimRun(t.Context(), other); err != nil || len(claimed.Lost) != 0 {
			t.Errorf("%+v, %v", claimed, err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		equal(t, "history", history(t, s, "j"), []string{"00:00:00 done"})
	})
}

// late is a store that stores an end only after the lease is over and another replica runs the job.
type late struct{ jobs.Store }

func (l *late) FinishRun(ctx context.Context, r jobs.Run) (bool, error) {
	ctx = context.WithoutCancel(ctx)
	time.Sleep(3 * time.Minute)
	_, _ = l.Store.ClaimRun(ctx, jobs.Claim{Job: r.Job, Scheduled: time.Now().UnixMilli(), Replica: "other", Lease: time.Minute})
	return l.Store.FinishRun(ctx, r)
}

// TestOutcomeStoredTooLateIsLogged, as on a machine that slept: the run counts as lost, and stays so.
func TestOutcomeStoredTooLateIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, n := &late{eachstore.SQLite(t, nil)}, newNotes()
		runner(t, s, n, "a", jobs.Job{Name: "j", Schedule: "@hourly", Run: func(context.Context) (string, error) { return "", nil }})
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		equal(t, "history", history(t, s, "j")[:1], []string{"00:00:00 lost"})
		if !n.logged("job was marked as lost before it ended job=j outcome=done") {
			t.Errorf("log: %q", n.all())
		}
	})
}
