package jobs

import (
	"context"
	"errors"
	"time"
)

// Job is something to do from time to time.
type Job struct {
	// Name is unique, and the same on all replicas. Required.
	Name string
	// Schedule is a cron line of five fields in UTC, a descriptor such as @daily, or @every with a duration of a second
	// or more. @every counts from the epoch, so that all replicas mean the same moments. Empty: the job runs only when
	// somebody asks for it.
	Schedule string
	// Repeat is another schedule, for a job that has one: at its times the job runs again, unless its last run is done or
	// goes on. Unless set, the next run goes on with what one that failed has left.
	Repeat string
	// Timeout bounds one run; 1 minute unless set.
	Timeout time.Duration
	// Jitter is the most by which a run begins later than scheduled, by chance, so that the replicas, and the jobs of
	// one hour, do not all ask the store at once. Run at once unless set.
	Jitter time.Duration
	// Run does it, and says in a few words what it did. It is to return soon when ctx ends. Required.
	Run func(ctx context.Context) (note string, err error)
}

// Outcome says how a run ended.
type Outcome string

// The outcomes.
const (
	Running  Outcome = "running"
	Done     Outcome = "done"
	Failed   Outcome = "failed"   // with an error, or a panic
	TimedOut Outcome = "timeout"  // it was cancelled when its time was over
	Canceled Outcome = "canceled" // the replica was stopped
	Skipped  Outcome = "skipped"  // the run before had not ended
	Lost     Outcome = "lost"     // the replica died, or could not say how it ended
)

// Run is one run of a job. Its times are Unix milliseconds; those that a store gives come from its clock, apart from Scheduled, and
// what [Runner.RunNow] gives back has the replica's.
type Run struct {
	Job string
	// Scheduled is the time that the run is for, and with the job its name.
	Scheduled int64
	Replica   string
	StartedAt int64
	// EndedAt is 0 while it runs.
	EndedAt     int64
	Outcome     Outcome
	Note, Error string
}

// maxNoteBytes bounds Note and Error of a [Run]; the rest is cut off.
const maxNoteBytes = 256

// Claim asks for a run.
type Claim struct {
	Job       string
	Scheduled int64
	Replica   string
	// Lease is how long the run may take before it counts as lost.
	Lease time.Duration
	// IfIdle puts nothing into the store when a run before has not ended; the answer is empty then.
	IfIdle bool
}

// Claimed is the answer to a [Claim].
type Claimed struct {
	// Outcome is Running for who is to run it, Skipped when a run before has not ended, and empty when another replica
	// was first, or nothing was to be put into the store.
	Outcome Outcome
	// Lost names the jobs of which this claim marked a run as lost.
	Lost []string
}

// Filter selects runs.
type Filter struct {
	// Job selects those of one job; all unless set.
	Job string
	// Max is how many.
	Max int
}

// Store keeps the runs. One conformance suite (package storetest) holds every implementation to it.
type Store interface {
	// ClaimRun marks as lost the runs of all jobs whose lease is over, then puts the run into the store. Of all claims
	// for one job and time, one at most puts it there; of all runs of one job, one at most has not ended. The lease of a run
	// that was claimed while the clock was ahead begins with the first claim after that.
	ClaimRun(ctx context.Context, c Claim) (Claimed, error)
	// FinishRun ends a run: Job and Scheduled say which, Outcome, Note and Error how. found is false when there is none
	// that has not ended.
	FinishRun(ctx context.Context, r Run) (found bool, err error)
	// LastRun gives the run of a job that was scheduled last; found is false when it never ran.
	LastRun(ctx context.Context, job string) (r Run, found bool, err error)
	// Runs gives runs, those that were scheduled last first.
	Runs(ctx context.Context, f Filter) ([]Run, error)
	// PruneRuns removes up to max of the oldest runs that were scheduled before a moment and have ended, and gives how
	// many. The last run of each job stays.
	PruneRuns(ctx context.Context, before time.Time, max int) (int, error)
}

// Observer is told what runs do on this replica. Its methods do not block.
type Observer interface {
	// JobMissed is called for each run that this replica found to be [Skipped] or [Lost].
	JobMissed(job, outcome string)
	// JobEnded is called with the end of each run on this replica; done is whether the outcome is [Done].
	JobEnded(job, outcome string, done bool, took time.Duration, at time.Time)
}

// The errors of [Runner.RunNow] that mean something to who asks.
var (
	ErrUnknown = errors.New("there is no such job")
	ErrBusy    = errors.New("a run of the job has not ended")
	ErrStopped = errors.New("this replica is stopping")
)
