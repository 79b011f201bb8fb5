package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed503877ad/limits"
)

// jobsCmd administers the jobs of the service.
type jobsCmd struct {
	List    jobsListCmd    `cmd:"" help:"List the jobs, their times and their last runs."`
	Run     jobsRunCmd     `cmd:"" help:"Run a job now."`
	History jobsHistoryCmd `cmd:"" help:"Show what ran, when, where, and how it ended."`
}

func (*jobsCmd) Help() string {
	return `Examples:

  limiter jobs list
  limiter jobs run expire`
}

type jobsListCmd struct{ clientFlags }

func (*jobsListCmd) Help() string {
	return `Each run is done by one process, the first to claim it: an alerter, or a limiter with an alerter or SQLite inside.
Schedules are in UTC, times in the zone of this machine.

Examples:

  limiter jobs list
  limiter jobs list --json | jq '.jobs[] | select(.last and .last.outcome != "done")'`
}

func (c *jobsListCmd) Run(s *session) error {
	var reply limits.JobList
	if err := c.ask(s, limits.SubjectJobsList, limits.ListJobsRequest{}, &reply); err != nil || c.JSON {
		return err
	}
	t := newTable(s.out, "JOB", "SCHEDULE", "NEXT", "LAST", "OUTCOME", "NOTE")
	for _, j := range reply.Jobs {
		last := cmp.Or(j.Last, &limits.JobRun{})
		t.row(j.Name, dash(j.Schedule), moment(s, j.Next, "-"), moment(s, last.StartedAt, "never"), dash(last.Outcome), dash(note(last)))
	}
	t.flush()
	return nil
}

// note returns the note of a run, its error, or both.
func note(r *limits.JobRun) string {
	if r.Note != "" && r.Error != "" {
		return r.Note + ": " + r.Error
	}
	return r.Note + r.Error
}

type jobsRunCmd struct {
	clientFlags
	Name string `arg:"" help:"The job, such as expire; see: limiter jobs list."`
}

func (*jobsRunCmd) Help() string {
	return `The process that answers runs it. A run that takes longer than a second goes on after the answer. The exit status is 1
unless the run is done or still running.

Examples:

  limiter jobs run expire
  limiter jobs run usage-rollup --json`
}

func (c *jobsRunCmd) Run(s *session) error {
	var reply limits.RunJobReply
	if err := c.ask(s, limits.SubjectJobsRun, limits.RunJobRequest{Job: c.Name}, &reply); err != nil {
		return err
	}
	r := &reply.Run
	switch {
	case r.Outcome != "done" && r.Outcome != "running":
		return fmt.Errorf("run job %s on %s: %s: %s", r.Job, r.Replica, r.Outcome, note(r))
	case c.JSON:
	case r.Outcome == "running":
		fmt.Fprintf(s.out, "%s is running on %s; see: limiter jobs history %s\n", r.Job, r.Replica, r.Job)
	default:
		fmt.Fprintf(s.out, "%s: done in %s on %s: %s\n", r.Job, took(r), r.Replica, dash(note(r)))
	}
	return nil
}

type jobsHistoryCmd struct {
	clientFlags
	Name    string `arg:"" optional:"" help:"Only runs of one job."`
	Outcome string `placeholder:"WORD" help:"Only runs with this outcome, such as failed."`
	Max     int    `default:"50" placeholder:"N" help:"At most N runs, the last first (${default})."`
}

func (*jobsHistoryCmd) Help() string {
	return `Outcomes: done, failed, timeout, canceled (the worker was stopped), skipped (the previous run had not ended), lost (the
worker died), running.

Examples:

  limiter jobs history
  limiter jobs history expire --max 5
  limiter jobs history --outcome failed
  limiter jobs history expire --outcome lost --json | jq '.runs[].replica'`
}

// outcomes are the values of --outcome.
var outcomes = []string{"done", "failed", "timeout", "canceled", "skipped", "lost", "running"}

func (c *jobsHistoryCmd) Validate() error {
	if c.Outcome != "" && !slices.Contains(outcomes, c.Outcome) {
		return fmt.Errorf("--outcome: %q is not one of %s", c.Outcome, strings.Join(outcomes, ", "))
	}
	return c.validateMax(c.Max, limits.MaxJobRuns)
}

func (c *jobsHistoryCmd) Run(s *session) error {
	var reply limits.JobHistory
	if err := c.ask(s, limits.SubjectJobsHistory, limits.JobHistoryRequest{Job: c.Name, Outcome: c.Outcome, Max: c.Max}, &reply); err != nil || c.JSON {
		return err
	}
	if len(reply.Runs) == 0 {
		fmt.Fprintln(s.out, "no runs")
		return nil
	}
	t := newTable(s.out, "SCHEDULED", "JOB", "OUTCOME", "TOOK", "REPLICA", "NOTE")
	for i := range reply.Runs {
		r := &reply.Runs[i]
		t.row(moment(s, r.Scheduled, "-"), r.Job, r.Outcome, took(r), r.Replica, dash(note(r)))
	}
	t.flush()
	return nil
}

func took(r *limits.JobRun) string {
	if r.EndedAt == 0 {
		return "-"
	}
	return (time.Duration(r.EndedAt-r.StartedAt) * time.Millisecond).String()
}
