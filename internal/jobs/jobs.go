package jobs

import (
	"context"
	"errors"
	"time"
)

// Job is a scheduled job.
type Job struct {
	// Name is unique, and the same on all replicas. Required.
	Name string
	// Schedule is a cron line of five fields in UTC, a descriptor such as @daily, or @every with a duration of a second
	// or more. @every counts from the epoch, so that all replicas have the same times. If it is empty the job runs only on
	// request.
	Schedule string
	// Repeat is another schedule for a job that has a Schedule. At its times the job runs again, unless its last run is
	// done or still goes on. If it is empty, a failed run is not repeated before the next time of Schedule.
	Repeat string
	// Timeout bounds one run; default 1 minute.
	Timeout time.Duration
	// Jitter is the maximum of a random delay of each run, so that the replicas, and the jobs of one hour, do not all use
	// the store at once. Default 0.
	Jitter time.Duration
	// Run runs the job, and returns a short note about what it did. It should return soon after ctx ends. Required.
	Run func(ctx context.Context) (note string, err error)
}

// Outcome is the outcome of a run.
type Outcome string

// The outcomes.
const (
	Running  Outcome = "running"
	Done     Outcome = "done"
	Failed   Outcome = "failed"   // with an error, or a panic
	TimedOut Outcome = "timeout"  // it ran into Timeout
	Canceled Outcome = "canceled" // the replica was stopped
	Skipped  Outcome = "skipped"  // the previous run had not ended
	Lost     Outcome = "lost"     // the replica died, or could not store how it ended
)

// Run is one run of a job. Times are Unix milliseconds. StartedAt and EndedAt are of the store's clock in what a store
// returns, and of the replica's clock in what [Runner.RunNow] returns.
type Run struct {
	Job string
	// Scheduled is the time for which the run was scheduled. Job and Scheduled identify the run.
	Scheduled int64
	Replica   string
	StartedAt int64
	// EndedAt is 0 while it runs.
	EndedAt     int64
	Outcome     Outcome
	Note, Error string
}

// maxNoteBytes is where Note and Error of a [Run] are cut.
const maxNoteBytes = 256

// Claim is a request to run a job at a time.
type Claim struct {
	Job       string
	Scheduled int64
	Replica   string
	// Lease is how long the run may take before it counts as lost.
	Lease time.Duration
	// IfIdle makes the claim insert nothing, instead of a skipped run, if a previous run has not ended.
	IfIdle bool
}

// Claimed is the result of a [Claim].
type Claimed struct {
	// Outcome is Running if the caller is to run the job, Skipped if a previous run has not ended, and empty if another
	// replica was first, or nothing was inserted because of IfIdle.
	Outcome Outcome
	// Lost names the jobs of which this claim marked a run as lost.
	Lost []string
}

// Filter selects runs.
type Filter struct {
	// Job selects the runs of one job; empty for all.
	Job string
	// Outcome selects the runs with one outcome; empty for all.
	Outcome Outcome
	// Max bounds how many runs are returned.
	Max int
}

// MaxAhead is by how much the clock of a worker may be ahead of the store's. Runs that were made by one that was ahead by more
// keep no other from running.
const MaxAhead = time.Minute

// Store stores the runs. Every implementation must pass one conformance suite (package storetest).
type Store interface {
	// ClaimRun marks the runs of all jobs whose lease is over as lost, then inserts the run. Of all claims for one job and
	// time at most one inserts it, and of all runs of one job at most one has not ended. If a run was claimed while the
	// clock was ahead, its lease begins with the first claim after the clock was set right. Runs of the job that have ended
	// and are for a time after the claim's, more than MaxAhead from now, are forgotten: the job is to run when that time comes.
	ClaimRun(ctx context.Context, c Claim) (Claimed, error)
	// FinishRun ends the run with r's Job and Scheduled, and stores Outcome, Note and Error. found is false if there is no
	// such run that has not ended.
	FinishRun(ctx context.Context, r Run) (found bool, err error)
	// Runs returns runs, the last scheduled first.
	Runs(ctx context.Context, f Filter) ([]Run, error)
	// PruneRuns removes up to max of the oldest runs that were scheduled before a time and have ended, and returns how
	// many. It keeps the last run of each job.
	PruneRuns(ctx context.Context, before time.Time, max int) (int, error)
}

// Observer observes the runs on this replica. Its methods must not block.
type Observer interface {
	// JobMissed is called for each run that this replica found to be [Skipped] or [Lost].
	JobMissed(job, outcome string)
	// JobEnded is called at the end of each run on this replica.
	JobEnded(job, outcome string, took time.Duration, at time.Time)
}

// The errors of [Runner.RunNow] that callers distinguish.
var (
	ErrUnknown = errors.New("unknown job")
	ErrBusy    = errors.New("the job is already running")
	ErrStopped = errors.New("this replica is stopping")
)
