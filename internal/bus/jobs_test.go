package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// TestJobs uses real jobs in a real store.
func TestJobs(t *testing.T) {
	t.Parallel()
	store := eachstore.SQLite(t, nil)
	release, log := make(chan struct{}), new(logBuffer)
	r, err := jobs.New(jobs.Config{Store: store, Logger: slog.New(slog.DiscardHandler), Replica: "a", Jobs: []jobs.Job{
		{Name: "quick", Schedule: "0 0 29 2 *", Run: func(context.Context) (string, error) { return `did "it"`, nil }},
		{Name: "bad", Run: func(context.Context) (string, error) { return "", errors.New("no") }},
		{Name: "slow", Run: func(context.Context) (string, error) { <-release; return "", nil }},
	}})
	if err != nil {
		t.Fatal(err)
	}
	_, nc := serve(t, &fakeEngine{submit: allowing}, func(c *ServiceConfig) { c.Jobs, c.Logger = r, slog.New(slog.NewTextHandler(log, nil)) })
	bad := func(code, field string) string { return `{"error":{"code":"` + code + `","field":"` + field + `",` }
	for _, c := range []struct{ subject, body, want string }{
		{limits.SubjectJobsList, `{}`, `{"jobs":[{"name":"quick","schedule":"0 0 29 2 *","timeout":60000,"next":`},
		{limits.SubjectJobsList, `{"max":1}`, bad("unknown_field", "max")},
		{limits.SubjectJobsList, `[]`, `{"error":`},
		{limits.SubjectJobsHistory, ``, `{"runs":[]}`},
		{limits.SubjectJobsHistory, `{}`, `{"runs":[]}`},
		{limits.SubjectJobsRun, `{"job":"quick"}`, `{"run":{"job":"quick","scheduled":`},
		{limits.SubjectJobsRun, `{"job":"bad"}`, `{"run":{"job":"bad","scheduled":`},
		{limits.SubjectJobsRun, `{"job":"slow"}`, `{"run":{"job":"slow","scheduled":`},
		{limits.SubjectJobsRun, `{"job":"slow"}`, bad("job_running", "job")},
		{limits.SubjectJobsRun, `{"job":"other"}`, bad("unknown_job", "job")},
		{limits.SubjectJobsRun, `{}`, bad("invalid_job", "job")},
		{limits.SubjectJobsRun, `{"job":""}`, bad("invalid_job", "job")},
		{limits.SubjectJobsRun, `{"job":"a\u0000"}`, bad("invalid_job", "job")},
		{limits.SubjectJobsRun, `{"job":"quick","max":1}`, bad("unknown_field", "max")},
		{limits.SubjectJobsRun, `{"job":"quick","job":"bad"}`, `{"error":`},
		{limits.SubjectJobsHistory, `{"job":"other"}`, bad("unknown_job", "job") +
			`"message":"no job named \"other\" here; limits.admin.jobs.list (limiter jobs list) lists them"`},
		{limits.SubjectJobsHistory, `{"max":501}`, bad("invalid_max", "max")},
		{limits.SubjectJobsHistory, `{"max":0}`, bad("invalid_max", "max")},
		{limits.SubjectJobsHistory, `{"max":1,"job":"bad"}`, `{"runs":[{"job":"bad","scheduled":`},
		{limits.SubjectJobsHistory, `{"outcome":"failed"}`, `{"runs":[{"job":"bad","scheduled":`},
		{limits.SubjectJobsHistory, `{"outcome":"failed","job":"quick"}`, `{"runs":[]}`},
		{limits.SubjectJobsHistory, `{"outcome":"timeout"}`, `{"runs":[]}`},
		{limits.SubjectJobsHistory, `{"outcome":"faild"}`, bad("invalid_outcome", "outcome") +
			`"message":"unknown outcome \"faild\"; want running, done, failed, timeout, canceled, skipped, lost"`},
		{limits.SubjectJobsHistory, `{"outcome":""}`, bad("invalid_outcome", "outcome")},
	} {
		if m := ask(t, nc, c.subject, c.body); !strings.HasPrefix(string(m.Data), c.want) {
			t.Errorf("%s %s\n got %s\nwant %s", c.subject, c.body, m.Data, c.want)
		}
	}
	if said := log.String(); strings.Count(said, `msg="job run on request" job=`) != 3 || !strings.Contains(said, "job=bad outcome=failed") {
		t.Errorf("log: %s", said)
	}
	close(release)
	for job, want := range map[string]string{"quick": `"outcome":"done","note":"did \"it\""}]`, "bad": `"outcome":"failed","error":"no"}]`} {
		m := ask(t, nc, limits.SubjectJobsHistory, `{"max":1,"job":"`+job+`"}`)
		if !strings.Contains(string(m.Data), want) {
			t.Errorf("history of %s: %s, want %s", job, m.Data, want)
		}
	}
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// unconfirmed are jobs whose claims the store does not confirm.
type unconfirmed struct {
	*jobs.Runner
	err error
}

func (u *unconfirmed) RunNow(context.Context, string) (jobs.Run, error) { return jobs.Run{}, u.err }

// TestUnconfirmedRunSaysThatItMayRun, and where that is to be seen.
func TestUnconfirmedRunSaysThatItMayRun(t *testing.T) {
	t.Parallel()
	u := &unconfirmed{}
	_, nc := serve(t, &fakeEngine{submit: allowing}, func(c *ServiceConfig) { c.Jobs = u })
	const mayRun = "; job j may run all the same, which limits.admin.jobs.history (limiter jobs history) shows"
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("claim a run of j: %w", errors.New("unexpected EOF")), "try again soon" + mayRun},
		{fmt.Errorf("claim a run of j: %w", context.DeadlineExceeded), "did not answer in time; try again soon" + mayRun},
		{jobs.ErrStopped, "the worker is stopping; try again"},
	} {
		u.err = c.err
		if m := ask(t, nc, limits.SubjectJobsRun, `{"job":"j"}`); !strings.Contains(string(m.Data), `"unavailable"`) || !strings.HasSuffix(string(m.Data), c.want+`"}}`) {
			t.Errorf("%v: %s", c.err, m.Data)
		}
	}
}
