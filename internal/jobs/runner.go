package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
)

// Config configures a [Runner].
type Config struct {
	// Jobs are what is run.
	Jobs []Job
	// Store keeps the runs; required.
	Store Store
	// Logger is required.
	Logger *slog.Logger
	// Replica names this process in the history; required.
	Replica string
	// Observer is told of runs; nobody is unless set.
	Observer Observer
	// Now is the clock that ticks, time.Now unless set.
	Now func() time.Time
}

const (
	// defaultTimeout bounds a run whose job says nothing.
	defaultTimeout = time.Minute
	// grace is what a run has to return after its context ended, and to say how it ended.
	grace = 30 * time.Second
	// storeTimeout bounds one question to the store.
	storeTimeout = 5 * time.Second
	// retryStore is how long is waited after the store failed.
	retryStore = 10 * time.Second
	// finishTries is how often the end of a run is tried to be kept, within the grace: until it is, the job is skipped everywhere.
	finishTries = 3
	// longestSleep bounds one wait for a time to come: a timer goes on as it was when the clock is set, and stands still while the
	// machine sleeps.
	longestSleep = time.Minute
)

// Runner runs jobs. Its methods may be called at the same time.
type Runner struct {
	cfg    Config
	order  []*job
	byName map[string]*job

	ctx     context.Context
	cancel  context.CancelFunc
	mu      sync.Mutex // held to start what running counts, and to stop
	running sync.WaitGroup
}

// job is a Job with its schedules, which are nil for one that has none.
type job struct {
	Job
	schedule, repeat cron.Schedule
	// unsure is the run that a claim was for whose answer was lost last, 0 for none, and asked when it was claimed first. Only
	// tick uses them.
	unsure int64
	asked  time.Time
}

// next is when the job is to run next; undone says that its last run is not done.
func (j *job) next(now time.Time, undone bool) time.Time {
	at := j.schedule.Next(now.UTC())
	if undone && j.repeat != nil {
		if again := j.repeat.Next(now.UTC()); again.Before(at) {
			return again
		}
	}
	return at
}

// wait is how long to sleep until it is looked again whether the job is due.
func (j *job) wait(now time.Time) time.Duration {
	wait := j.next(now, true).Sub(now)
	if wait > longestSleep {
		return longestSleep
	}
	return wait + jitter(j.Jitter)
}

// New makes a runner, which does nothing until it is started.
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
		cfg.Observer = nobody{}
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

type nobody struct{}

func (nobody) JobMissed(string, string)                                {}
func (nobody) JobEnded(string, string, bool, time.Duration, time.Time) {}

func (r *Runner) add(j Job) error {
	switch {
	case j.Name == "":
		return errors.New("its Name is missing")
	case r.byName[j.Name] != nil:
		return errors.New("there are two of this name")
	case j.Run == nil:
		return errors.New("its Run is missing")
	case j.Timeout < 0 || j.Jitter < 0:
		return errors.New("its timeout or jitter is below 0")
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

// Start begins to tick; call it once.
func (r *Runner) Start() {
	for _, j := range r.order {
		if j.schedule != nil {
			_ = r.begin(func() { r.tick(j) })
		}
	}
}

// begin runs f beside, unless the runner was stopped.
func (r *Runner) begin(f func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return ErrStopped
	}
	r.running.Go(f)
	return nil
}

// Close cancels what runs and waits until it has ended and is kept. When ctx ends first, the runs that are left count as
// lost when their lease is over.
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

// tick runs a job at its times until the runner is stopped. A job's runs on this replica follow one another.
func (r *Runner) tick(j *job) {
	last, ok := r.lastTime(j)
	for waits := false; ok; {
		now := r.cfg.Now().Round(0) // what the clock shows, also after it was set
		if last.After(now) {        // the clock was ahead; a time that was run once is claimed, and not run again
			last = now
		}
		at, late := due(j.schedule, last, now)
		again := false
		if !late && j.repeat != nil {
			at, again = due(j.repeat, last, now)
		}
		if !late && !again {
			ok = r.sleep(j.wait(now))
			continue
		}
		if err := r.runAt(j, at, again); err != nil {
			if !waits && r.ctx.Err() == nil {
				r.cfg.Logger.Warn("job could not be claimed; it is tried again until it is", "job", j.Name, "scheduled", at, "error", err)
			}
			waits, ok = true, r.sleep(retryStore)
			continue
		}
		waits = false
		last = at
	}
}

// lastTime asks until the store says when a job was scheduled last; for one that never was, every time up to now was
// missed. ok is false when the runner was stopped before.
func (r *Runner) lastTime(j *job) (last time.Time, ok bool) {
	for waits := false; ; waits = true {
		ctx, cancel := context.WithTimeout(r.ctx, storeTimeout)
		run, found, err := r.lastRun(ctx, j.Name)
		cancel()
		if err == nil {
			if !found {
				return time.Unix(0, 0), r.sleep(jitter(j.Jitter))
			}
			return time.UnixMilli(run.Scheduled), true
		}
		if r.ctx.Err() == nil && !waits {
			r.cfg.Logger.Warn("job waits for the store", "job", j.Name, "error", err)
		}
		if !r.sleep(retryStore) {
			return last, false
		}
	}
}

// farAhead is by how much the time of a run may be after now: more is that of a clock that was ahead, and says nothing of what was run.
const farAhead = time.Hour

// lastRun gives the run of a job that was scheduled last, but for those of a clock that was ahead.
func (r *Runner) lastRun(ctx context.Context, job string) (run Run, found bool, err error) {
	until := r.cfg.Now().Add(farAhead).UnixMilli()
	run, found, err = r.cfg.Store.LastRun(ctx, job)
	if err != nil || !found || run.Scheduled <= until {
		return run, found, err
	}
	runs, err := r.cfg.Store.Runs(ctx, Filter{Job: job, Max: 1000})
	if err != nil {
		return run, false, err
	}
	for _, earlier := range runs { // the last first
		if earlier.Scheduled <= until {
			return earlier, true, nil
		}
	}
	return run, true, nil
}

func jitter(most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	return rand.N(most)
}

// sleep waits; ok is false when the runner was stopped.
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
