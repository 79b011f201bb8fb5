package jobs_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// TestJobStatus before, during and after its first run.
func TestJobStatus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		r, err := jobs.New(jobs.Config{Store: eachstore.SQLite(t, nil), Logger: slog.New(slog.DiscardHandler), Replica: "a", Jobs: []jobs.Job{
			{Name: "j", Schedule: "@hourly", Repeat: "@every 1m", Run: func(context.Context) (string, error) { <-release; return "", errDown }}}})
		if err != nil {
			t.Fatal(err)
		}
		said := func(last jobs.Outcome, next string) {
			t.Helper()
			synctest.Wait()
			all, err := r.Jobs(t.Context())
			if err != nil || len(all) != 1 || (all[0].Last == nil) != (last == "") || last != "" && all[0].Last.Outcome != last ||
				all[0].Next.Format("15:04") != next {
				t.Errorf("%+v, %v; want the last run %q and the next at %s", all, err, last, next)
			}
		}
		said("", "01:00")
		r.Start()
		defer closeRunner(t, r)
		said(jobs.Running, "01:00")
		close(release)
		said(jobs.Failed, "00:01") // it is repeated
		if all, err := r.History(t.Context(), jobs.Filter{Max: 10}); err != nil || len(all) != 1 {
			t.Errorf("the history of all jobs: %+v, %v", all, err)
		}
	})
}

func TestRunNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, n, release := eachstore.SQLite(t, nil), newNotes(), make(chan struct{})
		r := runner(t, s, n, "a",
			jobs.Job{Name: "quick", Run: func(context.Context) (string, error) { return "ok", nil }},
			jobs.Job{Name: "slow", Run: func(context.Context) (string, error) { <-release; return "ok", nil }})
		if got, err := r.RunNow(t.Context(), "quick"); err != nil || got.Outcome != jobs.Done || got.Note != "ok" ||
			got.StartedAt != time.Now().UnixMilli() || got.EndedAt != time.Now().UnixMilli() {
			t.Errorf("quick: %+v, %v", got, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got, err := r.RunNow(ctx, "slow"); err != nil || got.Outcome != jobs.Running {
			t.Errorf("slow: %+v, %v", got, err)
		}
		if _, err := r.RunNow(t.Context(), "slow"); !errors.Is(err, jobs.ErrBusy) {
			t.Errorf("slow again: %v", err)
		}
		close(release)
		synctest.Wait()
		equal(t, "history", history(t, s, "slow"), []string{"00:00:00 done ok"})
		equal(t, "observed", n.ended(), []string{"quick done 0s", "slow done 1s"})
		if _, err := r.RunNow(t.Context(), "other"); !errors.Is(err, jobs.ErrUnknown) {
			t.Errorf("unknown: %v", err)
		}
		if _, err := r.History(t.Context(), jobs.Filter{Job: "other", Max: 1}); !errors.Is(err, jobs.ErrUnknown) {
			t.Errorf("history of unknown: %v", err)
		}
		all, err := r.Jobs(t.Context())
		if err != nil || len(all) != 2 || all[0].Last == nil || all[0].Last.Outcome != jobs.Done || !all[0].Next.IsZero() {
			t.Errorf("jobs: %+v, %v", all, err)
		}
	})
}

// TestRunNowWithLostAnswers: it runs, and the caller hears what is true.
func TestRunNowWithLostAnswers(t *testing.T) {
	t.Parallel()
	job := jobs.Job{Name: "j", Run: func(context.Context) (string, error) { return "ok", nil }}
	t.Run("to the claim", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &losingAnswers{Store: eachstore.SQLite(t, nil)}
			s.lose.Store(true)
			r := runner(t, s, newNotes(), "a", job)
			if run, err := r.RunNow(t.Context(), "j"); err != nil || run.Outcome != jobs.Done {
				t.Errorf("%+v, %v", run, err)
			}
			equal(t, "history", history(t, s, "j"), []string{"00:00:00 done ok"})
		})
	})
	t.Run("to a claim that failed", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &losingAnswers{Store: eachstore.SQLite(t, nil)}
			other := jobs.Claim{Job: "j", Scheduled: time.Now().UnixMilli() - 1, Replica: "other", Lease: time.Minute}
			if _, err := s.ClaimRun(t.Context(), other); err != nil {
				t.Fatal(err)
			}
			s.lose.Store(true)
			if _, err := runner(t, s, newNotes(), "a", job).RunNow(t.Context(), "j"); !errors.Is(err, jobs.ErrBusy) {
				t.Error(err)
			}
			equal(t, "history", history(t, s, "j"), []string{"23:59:59 running"})
		})
	})
	for _, c := range []struct {
		away time.Duration
		want string
	}{{15 * time.Second, "done ok"}, {45 * time.Second, "running"}} { // so late it could outlast its lease
		t.Run("while the store is away for "+c.away.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &brittle{Store: eachstore.SQLite(t, nil)}
				s := &goesAway{brittle: b}
				r := runner(t, s, newNotes(), "a", job)
				if _, err := r.RunNow(t.Context(), "j"); !errors.Is(err, errDown) {
					t.Error(err)
				}
				time.Sleep(c.away)
				b.down.Store(false)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				equal(t, "history", history(t, s, "j"), []string{"00:00:00 " + c.want})
			})
		})
	}
}

// goesAway is a store that is away as soon as it has claimed a run.
type goesAway struct{ *brittle }

func (g *goesAway) ClaimRun(ctx context.Context, c jobs.Claim) (jobs.Claimed, error) {
	claimed, err := g.brittle.ClaimRun(ctx, c)
	if err == nil {
		g.down.Store(true)
		return jobs.Claimed{}, errDown
	}
	return claimed, err
}
