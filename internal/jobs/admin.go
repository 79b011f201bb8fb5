package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Status is a job and its state.
type Status struct {
	Name, Schedule string
	Timeout        time.Duration
	// Next is when it runs next, including repeats; zero for a job without a schedule.
	Next time.Time
	// Last is its last run; nil if it never ran.
	Last *Run
}

// Jobs returns the status of all jobs, in the order of Config.Jobs.
func (r *Runner) Jobs(ctx context.Context) ([]Status, error) {
	all := make([]Status, 0, len(r.order))
	for _, j := range r.order {
		s := Status{Name: j.Name, Schedule: j.Schedule, Timeout: j.Timeout}
		last, found, err := r.lastRun(ctx, j.Name)
		if err != nil {
			return nil, fmt.Errorf("read the last run of %s: %w", j.Name, err)
		}
		if found {
			s.Last = &last
		}
		if j.schedule != nil {
			s.Next = j.next(r.cfg.Now(), found && last.Outcome != Done && last.Outcome != Running)
		}
		all = append(all, s)
	}
	return all, nil
}

// History returns runs, the last scheduled first. The error is [ErrUnknown] for an unknown job.
func (r *Runner) History(ctx context.Context, f Filter) ([]Run, error) {
	if f.Job != "" && r.byName[f.Job] == nil {
		return nil, ErrUnknown
	}
	runs, err := r.cfg.Store.Runs(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("read job history: %w", err)
	}
	return runs, nil
}

// RunNow runs a job now, on this replica. It returns the run when it has ended, or, with Outcome Running, when ctx has. The
// run goes on after ctx ends, and so does its claim: if the error is that of ctx, or one of the store, the job may run all the
// same, which History tells. Other errors are [ErrUnknown], [ErrBusy] or [ErrStopped].
func (r *Runner) RunNow(ctx context.Context, name string) (Run, error) {
	j := r.byName[name]
	if j == nil {
		return Run{}, ErrUnknown
	}
	at := r.cfg.Now()
	begun := Run{Job: name, Scheduled: at.UnixMilli(), Replica: r.cfg.Replica, StartedAt: at.UnixMilli(), Outcome: Running}
	claimed, ended := make(chan error, 1), make(chan Run, 1)
	err := r.background(func() {
		err := r.claimNow(j, at)
		if claimed <- err; err == nil || !errors.Is(err, ErrBusy) && r.turnsOutClaimed(j, at) {
			r.run(j, begun.Scheduled, func(run Run) { ended <- run })
		}
	})
	if err != nil {
		return Run{}, err
	}
	select {
	case err = <-claimed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	switch {
	case errors.Is(err, ErrBusy):
		return Run{}, err
	case err != nil:
		return Run{}, fmt.Errorf("claim a run of %s: %w", name, err)
	}
	select {
	case run := <-ended:
		return run, nil
	case <-ctx.Done():
		return begun, nil
	}
}

// claimNow claims a run on request. If there is no answer it claims the same run again, which tells whether the first claim
// succeeded.
func (r *Runner) claimNow(j *job, at time.Time) error {
	c, err := r.claim(j, at, true)
	mine := c.Outcome == Running
	if err != nil {
		c, err = r.claim(j, at, true)
		if mine = c.Outcome == Running; err == nil && !mine {
			mine, err = r.holds(j, at.UnixMilli())
		}
	}
	if err == nil && !mine {
		return ErrBusy
	}
	return err
}

// turnsOutClaimed reports whether a claim without an answer succeeded after all, as [Runner.holdsUnconfirmed] does: it asks until
// the store answers, or so much of the lease has passed that the run could outlast it.
func (r *Runner) turnsOutClaimed(j *job, at time.Time) bool {
	for r.sleep(storeRetryDelay) && r.cfg.Now().Sub(at) <= grace {
		if mine, err := r.holds(j, at.UnixMilli()); err == nil {
			return mine
		}
	}
	return false
}
