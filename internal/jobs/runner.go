package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
)

// Config configures a [Runner].
type Config struct {
	// Jobs are the jobs to run.
	Jobs []Job
	// Store is required.
	Store Store
	// Logger is required.
	Logger *slog.Logger
	// Replica names this process in the history; required.
	Replica string
	// Observer is optional.
	Observer Observer
	// Now is the clock of the schedules; default time.Now.
	Now func() time.Time
}

const (
	// defaultTimeout is the default of Job.Timeout.
	defaultTimeout = time.Minute
	// grace is how long a run may take to return after its context has ended, and again to store how it ended.
	grace = 30 * time.Second
	// storeTimeout bounds one call of the store.
	storeTimeout = 5 * time.Second
	// storeRetryDelay is the wait after the store failed.
	storeRetryDelay = 10 * time.Second
	// finishAttempts is how often storing the end of a run is tried, within the grace. Until it is stored, all replicas skip
	// the job.
	finishAttempts = 3
	// maxSleep bounds one wait for a scheduled time: a timer does not follow when the clock is set, and stops while the
	// machine sleeps.
	maxSleep = time.Minute
)

// Runner runs jobs. Its methods may be called concurrently.
type Runner struct {
	cfg    Config
	order  []*job
	byName map[string]*job

	ctx     context.Context
	cancel  context.CancelFunc
	mu      sync.Mutex // orders running.Go before Close waits
	running sync.WaitGroup
}

// job is a Job with its parsed schedules, which are nil for none.
type job struct {
	Job
	schedule, repeat cron.Schedule
	// unconfirmed is the scheduled time of the last claim whose answer was lost, in Unix milliseconds; 0 for none.
	// unconfirmedAt is when that run was first claimed. Only follow uses them.
	unconfirmed   int64
	unconfirmedAt time.Time
}

// next returns when the job runs next. notDone says that its last run is not done, so that Repeat applies too.
func (j *job) next(now time.Time, notDone bool) time.Time {
	at := j.schedule.Next(now.UTC())
	if notDone && j.repeat != nil {
		if repeat := j.repeat.Next(now.UTC()); repeat.Before(at) {
			return repeat
		}
	}
	return at
}

// wait returns how long to sleep before checking again whether the job is due.
func (j *job) wait(now time.Time) time.Duration {
	wait := j.next(now, true).Sub(now)
	if wait > maxSleep {
		return maxSleep
	}
	return wait + jitter(j.Jitter)
}

// New returns a runner. It does nothing until Start.
func New(cfg Config) (*Runner, error) {
	switch {
	case cfg.Store == nil:
		return nil, errors.New("jobs: Store is missing")
	case cfg.Logger == nil:
		return nil, errors.New("jobs: Logger is missing")
	case cfg.Replica == "":
		return nil, errors.New("jobs: Replica is missing")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Observer == nil {
		cfg.Observer = noObserver{}
	}
	r := &Runner{cfg: cfg, byName: map[string]*job{}}
	for _, j := range cfg.Jobs {
		if err := r.add(j); err != nil {
			return nil, fmt.Errorf("job %q: %w", j.Name, err)
		}
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

type noObserver struct{}

func (noObserver) JobMissed(string, string)                          {}
func (noObserver) JobEnded(string, string, time.Duration, time.Time) {}

func (r *Runner) add(j Job) error {
	switch {
	case j.Name == "":
		return errors.New("its Name is missing")
	case r.byName[j.Name] != nil:
		return errors.New("duplicate name")
	case j.Run == nil:
		return errors.New("its Run is missing")
	case j.Timeout < 0 || j.Jitter < 0:
		return errors.New("timeout and jitter must not be negative")
	case j.Timeout == 0:
		j.Timeout = defaultTimeout
	}
	schedule, err := parse(j.Schedule)
	if err != nil {
		return err
	}
	repeat, err := parse(j.Repeat)
	if err != nil {
		return err
	}
	added := &job{Job: j, schedule: schedule, repeat: repeat}
	r.order = append(r.order, added)
	r.byName[j.Name] = added
	return nil
}

// Start begins to follow the schedules; call it once.
func (r *Runner) Start() {
	for _, j := range r.order {
		if j.schedule != nil {
			_ = r.background(func() { r.follow(j) })
		}
	}
}

// background runs f in a goroutine, unless the runner was stopped.
func (r *Runner) background(f func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return ErrStopped
	}
	r.running.Go(f)
	return nil
}

// Close cancels the current runs and waits until they have ended and their ends are stored. If ctx ends first, the runs
// that are left count as lost when their lease is over.
func (r *Runner) Close(ctx context.Context) error {
	r.mu.Lock()
	r.cancel()
	r.mu.Unlock()
	ended := make(chan struct{})
	go func() { r.running.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for jobs: %w", ctx.Err())
	}
}

// follow runs a job at its scheduled times until the runner is stopped, one run after another.
func (r *Runner) follow(j *job) {
	last, ok := r.lastTime(j)
	for failing := false; ok; {
		now := r.cfg.Now().Round(0) // without the monotonic clock, which ignores that the clock was set
		if last.After(now) {        // the clock was ahead and is set back; a time that ran already is claimed and does not run again
			last = now
		}
		at, scheduled := due(j.schedule, last, now)
		repeated := false
		if !scheduled && j.repeat != nil {
			at, repeated = due(j.repeat, last, now)
		}
		if !scheduled && !repeated {
			ok = r.sleep(j.wait(now))
			continue
		}
		if err := r.runAt(j, at, repeated); err != nil {
			if !failing && r.ctx.Err() == nil {
				r.cfg.Logger.Warn("job could not be claimed, will retry", "job", j.Name, "scheduled", at, "error", err)
			}
			failing, ok = true, r.sleep(storeRetryDelay)
			continue
		}
		failing = false
		last = at
	}
}

// lastTime reads when a job was last scheduled, with retries. If it never was, all times up to now were missed, and it
// returns the epoch. ok is false if the runner was stopped.
func (r *Runner) lastTime(j *job) (last time.Time, ok bool) {
	for failing := false; ; failing = true {
		ctx, cancel := context.WithTimeout(r.ctx, storeTimeout)
		run, found, err := r.lastRun(ctx, j.Name)
		cancel()
		if err == nil {
			if !found {
				return time.Unix(0, 0), r.sleep(jitter(j.Jitter))
			}
			return time.UnixMilli(run.Scheduled), true
		}
		if r.ctx.Err() == nil && !failing {
			r.cfg.Logger.Warn("job is waiting for the store", "job", j.Name, "error", err)
		}
		if !r.sleep(storeRetryDelay) {
			return last, false
		}
	}
}

// maxAhead is how far in the future a run may be scheduled. If it is more, the run was made while a clock was ahead, and does
// not say which times were run.
const maxAhead = time.Hour

// lastRun returns the last scheduled run of a job, ignoring those that were made while a clock was ahead, unless all were.
func (r *Runner) lastRun(ctx context.Context, job string) (run Run, found bool, err error) {
	until := r.cfg.Now().Add(maxAhead).UnixMilli()
	for _, most := range []int{1, 1000} { // mostly the last one will do
		runs, err := r.cfg.Store.Runs(ctx, Filter{Job: job, Max: most})
		if err != nil || len(runs) == 0 {
			return Run{}, false, err
		}
		if i := slices.IndexFunc(runs, func(run Run) bool { return run.Scheduled <= until }); i >= 0 {
			return runs[i], true, nil
		}
		run = runs[0]
	}
	return run, true, nil
}

func jitter(max time.Duration) time.Duration {
	if max <= 0 {
		return 0
	}
	return rand.N(max)
}

// sleep waits; ok is false if the runner was stopped.
func (r *Runner) sleep(d time.Duration) (ok bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return r.ctx.Err() == nil
	case <-r.ctx.Done():
		return false
	}
}
