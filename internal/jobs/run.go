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

// runAt claims the run of a scheduled time, and runs the job unless another replica has claimed it. repeated says that the
// time is one of Repeat, at which only a job whose last run is not done runs.
func (r *Runner) runAt(j *job, at time.Time, repeated bool) error {
	mine, err := r.holdsUnconfirmed(j)
	if err != nil {
		return err
	}
	if mine {
		r.run(j, j.unconfirmed, func(Run) {})
		return nil
	}
	if repeated {
		if notDone, err := r.lastNotDone(j, at); err != nil || !notDone {
			return err
		}
	}
	began := r.cfg.Now()
	claimed, err := r.claim(j, at, repeated)
	if err != nil {
		if at.UnixMilli() != j.unconfirmed { // of several claims of one run, the first may have succeeded
			j.unconfirmed, j.unconfirmedAt = at.UnixMilli(), began
		}
		return err
	}
	switch claimed.Outcome {
	case Running:
		r.run(j, at.UnixMilli(), func(Run) {})
	case Skipped:
		r.cfg.Logger.Warn("job skipped: the previous run has not ended", "job", j.Name, "scheduled", at)
	default:
		r.cfg.Logger.Debug("job was claimed by another replica", "job", j.Name, "scheduled", at)
	}
	return nil
}

// holdsUnconfirmed reports whether the unconfirmed claim succeeded after all. No replica runs the job until its lease is
// over, so the run must be done now, unless so much of the lease has passed that the run could outlast it.
func (r *Runner) holdsUnconfirmed(j *job) (mine bool, err error) {
	if j.unconfirmed == 0 || r.cfg.Now().Sub(j.unconfirmedAt) > grace {
		return false, nil
	}
	return r.holds(j, j.unconfirmed)
}

// holds reports whether this replica has claimed the run of a time, which has not ended.
func (r *Runner) holds(j *job, scheduled int64) (mine bool, err error) {
	ctx, cancel := context.WithTimeout(r.ctx, storeTimeout)
	defer cancel()
	// It need not be the last run: other replicas may have recorded skipped runs since.
	runs, err := r.cfg.Store.Runs(ctx, Filter{Job: j.Name, Max: 100})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(runs, func(run Run) bool {
		return run.Scheduled == scheduled && run.Replica == r.cfg.Replica && run.Outcome == Running
	}), nil
}

// lastNotDone reports whether the last run before a time is not done. That includes a run that goes on, which the claim then
// finds.
func (r *Runner) lastNotDone(j *job, at time.Time) (bool, error) {
	ctx, cancel := context.WithTimeout(r.ctx, storeTimeout)
	defer cancel()
	last, found, err := r.lastRun(ctx, j.Name)
	return found && last.Outcome != Done && last.Scheduled < at.UnixMilli(), err
}

// claim claims a run. Neither a stop nor the end of the request cancels it: the claim could succeed all the same, and then no
// replica would do the run or end it.
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
		r.cfg.Logger.Error("job lost: its replica died, or could not store the outcome", "job", lost)
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

// run runs a claimed job and stores how it ended; then it calls ended. It returns when the job has returned. If the job does
// not return within the grace after its timeout, the run is stored as ended before that, because a goroutine cannot be
// killed.
func (r *Runner) run(j *job, scheduled int64, ended func(Run)) {
	ctx, cancel := context.WithTimeout(r.ctx, j.Timeout)
	defer cancel()
	began, returned := r.cfg.Now(), make(chan result, 1)
	go func() { returned <- r.call(ctx, j) }()
	got, ok := wait(ctx, returned)
	run := Run{Job: j.Name, Scheduled: scheduled, Replica: r.cfg.Replica, StartedAt: began.UnixMilli()}
	run.setOutcome(r.outcome(ctx, got.err), got)
	r.finish(&run, began)
	ended(run)
	if !ok {
		<-returned
		r.cfg.Logger.Error("job returned long after its context ended", "job", j.Name, "took", r.cfg.Now().Sub(began))
	}
}

// wait waits for the result; ok is false if it does not come within the grace after the end of ctx.
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
		return result{err: errors.New("the job did not return after its context ended")}, false
	}
}

// call calls the job's Run. A panic becomes an error, and its stack is logged.
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

// outcome returns the outcome of a run. An error after the end of ctx is taken as caused by it, whatever it is: databases
// have errors of their own for that. A run without an error is done, even if ctx has ended.
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

func (run *Run) setOutcome(o Outcome, got result) {
	run.Outcome, run.Note = o, redact.Line(got.note, maxNoteBytes)
	if got.err != nil {
		run.Error = redact.Line(got.err.Error(), maxNoteBytes)
	}
}

// finish stores the end of a run, also while the runner stops.
func (r *Runner) finish(run *Run, began time.Time) {
	now := r.cfg.Now()
	run.EndedAt = now.UnixMilli()
	r.report(run, now.Sub(began))
	found, err := r.storeEnd(run)
	for attempts := 1; err != nil && attempts < finishAttempts && r.sleep(storeRetryDelay); attempts++ {
		if found, err = r.storeEnd(run); err == nil {
			found = true // an attempt whose answer was lost may have stored it
		}
	}
	switch {
	case err != nil:
		r.cfg.Logger.Warn("job outcome could not be stored, so the run will count as lost", "job", run.Job, "outcome", run.Outcome, "error", err)
	case !found:
		r.cfg.Logger.Warn("job was marked as lost before it ended", "job", run.Job, "outcome", run.Outcome)
	}
	r.cfg.Observer.JobEnded(run.Job, string(run.Outcome), now.Sub(began), now)
}

func (r *Runner) storeEnd(run *Run) (found bool, err error) {
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
