package jobs

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/seed503877ad/limits/internal/redact"
)

// runAt claims the run of a time and does it, if no other replica does; again says that it is for a last run that is not done.
func (r *Runner) runAt(j *job, at time.Time, again bool) error {
	if mine, err := r.claimedBefore(j); err != nil {
		return err
	} else if mine {
		r.run(j, j.unsure, func(Run) {})
		return nil
	}
	if again {
		if undone, err := r.undone(j, at); err != nil || !undone {
			return err
		}
	}
	asked := r.cfg.Now()
	claimed, err := r.claim(j, at, again)
	if err != nil {
		if at.UnixMilli() != j.unsure { // the first of several claims of one run may be the one that was made
			j.unsure, j.asked = at.UnixMilli(), asked
		}
		return err
	}
	switch claimed.Outcome {
	case Running:
		r.run(j, at.UnixMilli(), func(Run) {})
	case Skipped:
		r.cfg.Logger.Warn("job skipped: the run before has not ended", "job", j.Name, "scheduled", at)
	default:
		r.cfg.Logger.Debug("job is another replica's", "job", j.Name, "scheduled", at)
	}
	return nil
}

// claimedBefore tells whether a claim was made though its answer was lost. Nobody else does that run, nor any other of the job, until
// its lease is over, so it is done now, unless it could last longer than that.
func (r *Runner) claimedBefore(j *job) (mine bool, err error) {
	if j.unsure == 0 || r.cfg.Now().Sub(j.asked) > grace {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, storeTimeout)
	defer cancel()
	// Others may have skipped runs meanwhile.
	runs, err := r.cfg.Store.Runs(ctx, Filter{Job: j.Name, Max: 100})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(runs, func(run Run) bool {
		return run.Scheduled == j.unsure && run.Replica == r.cfg.Replica && run.Outcome == Running
	}), nil
}

// undone tells whether the last run before a time is not done. One that goes on is not either: its claim finds that out.
func (r *Runner) undone(j *job, at time.Time) (bool, error) {
	ctx, cancel := context.WithTimeout(r.ctx, storeTimeout)
	defer cancel()
	last, found, err := r.lastRun(ctx, j.Name)
	return found && last.Outcome != Done && last.Scheduled < at.UnixMilli(), err
}

// claim asks for a run. Neither a stop nor the end of who asks for it cuts it short: the run could be claimed all the same, with
// nobody to do it or to say that it has ended.
func (r *Runner) claim(j *job, at time.Time, ifIdle bool) (Claimed, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), storeTimeout)
	defer cancel()
	c, err := r.cfg.Store.ClaimRun(ctx, Claim{
		Job: j.Name, Scheduled: at.UnixMilli(), Replica: r.cfg.Replica, Lease: j.Timeout + 2*grace, IfIdle: ifIdle,
	})
	if err != nil {
		return c, err
	}
	for _, lost := range c.Lost {
		r.cfg.Logger.Error("job was lost: its replica died, or could not say how it ended", "job", lost)
		r.cfg.Observer.JobMissed(lost, string(Lost))
	}
	if c.Outcome == Skipped {
		r.cfg.Observer.JobMissed(j.Name, string(Skipped))
	}
	return c, nil
}

// result is what a job returned.
type result struct {
	note string
	err  error
}

// run does a claimed run and keeps how it ended; ended is told once that is known. It returns when the job has, though
// the run is kept as ended when the grace after its timeout is over: nobody can end a goroutine from outside.
func (r *Runner) run(j *job, scheduled int64, ended func(Run)) {
	ctx, cancel := context.WithTimeout(r.ctx, j.Timeout)
	defer cancel()
	began, returned := r.cfg.Now(), make(chan result, 1)
	go func() { returned <- r.call(ctx, j) }()
	got, ok := wait(ctx, returned)
	run := Run{Job: j.Name, Scheduled: scheduled, Replica: r.cfg.Replica, StartedAt: began.UnixMilli()}
	run.describe(r.outcome(ctx, got.err), got)
	r.finish(&run, began)
	ended(run)
	if !ok {
		<-returned
		r.cfg.Logger.Error("job returned long after its context ended", "job", j.Name, "took", r.cfg.Now().Sub(began))
	}
}

// wait gives what was returned; ok is false when that takes longer than the grace after the context's end.
func wait(ctx context.Context, returned <-chan result) (got result, ok bool) {
	select {
	case got = <-returned:
		return got, true
	case <-ctx.Done():
	}
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case got = <-returned:
		return got, true
	case <-t.C:
		return result{err: errors.New("it does not return, though its context ended")}, false
	}
}

// call runs the job's code; a panic is an error, with its stack in the log.
func (r *Runner) call(ctx context.Context, j *job) (got result) {
	defer func() {
		if p := recover(); p != nil {
			r.cfg.Logger.Error("job panicked", "job", j.Name, "panic", p, "stack", string(debug.Stack()))
			got = result{err: fmt.Errorf("panic: %v", p)}
		}
	}()
	note, err := j.Run(ctx)
	return result{note, err}
}

// outcome says how a run ended. An error behind the end of its context is taken to come of it: databases have words of
// their own for that. What was done by then counts as done.
func (r *Runner) outcome(ctx context.Context, err error) Outcome {
	switch {
	case err == nil:
		return Done
	case ctx.Err() == nil:
		return Failed
	case r.ctx.Err() != nil:
		return Canceled
	default:
		return TimedOut
	}
}

func (run *Run) describe(o Outcome, got result) {
	run.Outcome, run.Note = o, redact.Line(got.note, maxNoteBytes)
	if got.err != nil {
		run.Error = redact.Line(got.err.Error(), maxNoteBytes)
	}
}

// finish keeps the end of a run, also while the runner stops.
func (r *Runner) finish(run *Run, began time.Time) {
	now := r.cfg.Now()
	run.EndedAt = now.UnixMilli()
	r.report(run, now.Sub(began))
	found, err := r.keepEnd(run)
	for tries := 1; err != nil && tries < finishTries && r.sleep(retryStore); tries++ {
		if found, err = r.keepEnd(run); err == nil {
			found = true // the try that failed may have kept it
		}
	}
	switch {
	case err != nil:
		r.cfg.Logger.Warn("the end of a job could not be kept; it will count as lost", "job", run.Job, "outcome", run.Outcome, "error", err)
	case !found:
		r.cfg.Logger.Warn("the job was taken for lost before it ended", "job", run.Job, "outcome", run.Outcome)
	}
	r.cfg.Observer.JobEnded(run.Job, string(run.Outcome), run.Outcome == Done, now.Sub(began), now)
}

func (r *Runner) keepEnd(run *Run) (found bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), storeTimeout)
	defer cancel()
	return r.cfg.Store.FinishRun(ctx, *run)
}

func (r *Runner) report(run *Run, took time.Duration) {
	args := []any{"job", run.Job, "outcome", run.Outcome, "took", took.Round(time.Millisecond), "note", run.Note}
	switch run.Outcome {
	case Done, Canceled:
		r.cfg.Logger.Debug("job ended", args...)
	default:
		r.cfg.Logger.Error("job ended", append(args, "error", run.Error)...)
	}
}
