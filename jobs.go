package limits

import "context"

// The subjects of jobs.
const (
	SubjectJobsList    = "limits.admin.jobs.list"
	SubjectJobsRun     = "limits.admin.jobs.run"
	SubjectJobsHistory = "limits.admin.jobs.history"
)

// The codes of errors about jobs: 404 if no job has the name, 409 if a run of the job has not ended.
const (
	CodeUnknownJob = "unknown_job"
	CodeJobRunning = "job_running"
)

// MaxJobRuns is the most runs in one reply of admin.jobs.history.
const MaxJobRuns = 500

// ListJobsRequest is the body of admin.jobs.list: an empty object.
type ListJobsRequest struct{}

// JobList is the reply of admin.jobs.list: the jobs of the worker that answers.
type JobList struct {
	Jobs []Job `json:"jobs"`
}

// Job is a periodic task of the service, which runs on one worker at a time.
type Job struct {
	Name string `json:"name"`
	// Schedule is a cron expression in UTC, or @every with a duration. It is left out for a job that runs only on request.
	Schedule string `json:"schedule,omitempty"`
	// Timeout is how long a run may take, in milliseconds.
	Timeout int64 `json:"timeout"`
	// Next is when the job is due next, in Unix milliseconds.
	Next int64 `json:"next,omitzero"`
	// Last is its last run on any worker; left out if it never ran.
	Last *JobRun `json:"last,omitempty"`
}

// JobRun is one run of a job. Times are Unix milliseconds.
type JobRun struct {
	Job string `json:"job"`
	// Scheduled is when the run was due.
	Scheduled int64 `json:"scheduled"`
	// Replica names the worker that ran it.
	Replica   string `json:"replica"`
	StartedAt int64  `json:"startedAt"`
	// EndedAt is left out while the job runs.
	EndedAt int64 `json:"endedAt,omitzero"`
	// Outcome is running, done, failed, timeout, canceled (its worker stopped), skipped (the previous run had not ended)
	// or lost (its worker died, or could not store how it ended).
	Outcome string `json:"outcome"`
	// Note says what the run did, Error what went wrong.
	Note  string `json:"note,omitempty"`
	Error string `json:"error,omitempty"`
}

// RunJobRequest is the body of admin.jobs.run.
type RunJobRequest struct {
	// Job is the name of the job.
	Job string `json:"job"`
}

// RunJobReply is the run that was started. If it took less than a second it has ended, otherwise its outcome is
// "running".
type RunJobReply struct {
	Run JobRun `json:"run"`
}

// JobHistoryRequest is the body of admin.jobs.history.
type JobHistoryRequest struct {
	// Job selects the runs of one job; all jobs by default.
	Job string `json:"job,omitempty"`
	// Outcome selects the runs with one outcome of [JobRun], such as failed; all by default.
	Outcome string `json:"outcome,omitempty"`
	// Max is how many runs to return: 50 by default, up to [MaxJobRuns].
	Max int `json:"max,omitzero"`
}

// JobHistory is the reply of admin.jobs.history: runs on all workers, the latest scheduled first.
type JobHistory struct {
	Runs []JobRun `json:"runs"`
}

// ListJobs returns the jobs of the service and their state.
func (c *Client) ListJobs(ctx context.Context) (*JobList, error) {
	return call[JobList](ctx, c, SubjectJobsList, ListJobsRequest{})
}

// RunJob starts a job now, and waits up to a second for its end.
func (c *Client) RunJob(ctx context.Context, job string) (*RunJobReply, error) {
	return call[RunJobReply](ctx, c, SubjectJobsRun, RunJobRequest{Job: job})
}

// JobHistory returns the runs of one job, or of all, with one outcome, or with any.
func (c *Client) JobHistory(ctx context.Context, r JobHistoryRequest) (*JobHistory, error) {
	return call[JobHistory](ctx, c, SubjectJobsHistory, r)
}
