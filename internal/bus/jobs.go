package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/jobs"
)

// Jobs answers the endpoints admin.jobs. *[jobs.Runner] is one.
type Jobs interface {
	Jobs(ctx context.Context) ([]jobs.Status, error)
	RunNow(ctx context.Context, name string) (jobs.Run, error)
	History(ctx context.Context, f jobs.Filter) ([]jobs.Run, error)
}

const (
	// defaultJobRuns is how many runs a history has by default.
	defaultJobRuns = 50
	// awaitJob is how long an answer waits for the run to end. It is less than a client waits for
	// the answer.
	awaitJob = time.Second
)

func (s *Service) listJobs(ctx context.Context, data []byte) (any, error) {
	if err := readFields(data); err != nil {
		return nil, err
	}
	all, err := s.cfg.Jobs.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	return limits.JobList{Jobs: wireAll(all, wireJob)}, nil
}

func (s *Service) runJob(ctx context.Context, data []byte) (any, error) {
	name, err := decodeRunJob(data)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, awaitJob)
	defer cancel()
	run, err := s.cfg.Jobs.RunNow(ctx, name)
	if err != nil {
		return nil, s.mayRun(name, err)
	}
	s.cfg.Logger.Info("job run on request", "job", name, "outcome", run.Outcome)
	return limits.RunJobReply{Run: wireRun(&run)}, nil
}

func (s *Service) jobHistory(ctx context.Context, data []byte) (any, error) {
	filter, err := decodeJobHistory(data)
	if err != nil {
		return nil, err
	}
	runs, err := s.cfg.Jobs.History(ctx, filter)
	if err != nil {
		return nil, jobError(filter.Job, err)
	}
	return limits.JobHistory{Runs: wireAll(runs, wireRun)}, nil
}

func decodeRunJob(data []byte) (job string, err error) {
	err = readFields(data, text("job", &job, 1, limits.MaxNameBytes))
	if err == nil && job == "" {
		err = invalid("job", "job is missing; "+limits.SubjectJobsList+" (limiter jobs list) lists jobs")
	}
	return job, err
}

func decodeJobHistory(data []byte) (jobs.Filter, error) {
	f := jobs.Filter{Max: defaultJobRuns}
	err := readFields(data,
		text("job", &f.Job, 1, limits.MaxNameBytes),
		oneOf("outcome", (*string)(&f.Outcome), "running", "done", "failed", "timeout", "canceled", "skipped", "lost"),
		number("max", &f.Max, 1, limits.MaxJobRuns))
	return f, err
}

func jobError(name string, err error) error {
	switch {
	case errors.Is(err, jobs.ErrUnknown):
		return &limits.Error{Status: 404, Code: limits.CodeUnknownJob, Field: "job",
			Message: fmt.Sprintf("no job named %q here; "+limits.SubjectJobsList+" (limiter jobs list) lists them", name)}
	case errors.Is(err, jobs.ErrBusy):
		return &limits.Error{Status: 409, Code: limits.CodeJobRunning, Field: "job",
			Message: fmt.Sprintf("job %s is already running; "+limits.SubjectJobsHistory+" (limiter jobs history) shows where", name)}
	case errors.Is(err, jobs.ErrStopped):
		return &limits.Error{Status: 503, Code: limits.CodeUnavailable, Message: "the worker is stopping; try again"}
	}
	return err
}

// mayRun adds the answer to the error of a run whose claim the store did not confirm.
func (s *Service) mayRun(name string, err error) error {
	we := *wireError(jobError(name, err), s.cfg.Advice)
	if we.Status != 503 || errors.Is(err, jobs.ErrStopped) {
		return &we
	}
	we.Message += "; job " + name + " may run all the same, which " + limits.SubjectJobsHistory + " (limiter jobs history) shows"
	return fmt.Errorf("%w: %w", err, &we)
}

func wireJob(j *jobs.Status) limits.Job {
	out := limits.Job{Name: j.Name, Schedule: j.Schedule, Timeout: j.Timeout.Milliseconds()}
	if !j.Next.IsZero() {
		out.Next = j.Next.UnixMilli()
	}
	if j.Last != nil {
		last := wireRun(j.Last)
		out.Last = &last
	}
	return out
}

func wireRun(r *jobs.Run) limits.JobRun {
	return limits.JobRun{Job: r.Job, Scheduled: r.Scheduled, Replica: r.Replica, StartedAt: r.StartedAt, EndedAt: r.EndedAt,
		Outcome: string(r.Outcome), Note: r.Note, Error: r.Error}
}
