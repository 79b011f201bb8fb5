package storetest

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/jobs"
)

var jobTests = []test{
	{"a run keeps all its fields", runFields},
	{"of all claims for one time, one succeeds", claimsAtOnce},
	{"of claims for many times at once, one runs", overlapsAtOnce},
	{"an overlapping run is skipped", runsDoNotOverlap},
	{"a claim for an idle job inserts nothing while the job runs", runIfIdle},
	{"a run past its lease is lost and cannot end", runIsLost},
	{"a run past its lease is lost with the next claim of any job", runsOfOthersAreLost},
	{"workers that are ahead alike run once, and keep no other from running", runsAhead},
	{"history by job", runHistory},
	{"history by outcome", runsByOutcome},
	{"old runs are removed, the oldest first, except running ones and the last of a job", pruneRuns},
}

const longLease = time.Hour

func claim(t *testing.T, s jobs.Store, job string, scheduled int64, lease time.Duration) jobs.Claimed {
	t.Helper()
	c, err := s.ClaimRun(within(t), jobs.Claim{Job: job, Scheduled: scheduled, Replica: "a", Lease: lease})
	if err != nil {
		t.Fatalf("claim %s %d: %v", job, scheduled, err)
	}
	return c
}

func finish(t *testing.T, s jobs.Store, r jobs.Run) bool {
	t.Helper()
	found, err := s.FinishRun(within(t), r)
	if err != nil {
		t.Fatalf("finish %s %d: %v", r.Job, r.Scheduled, err)
	}
	return found
}

func runs(t *testing.T, s jobs.Store, f jobs.Filter) []jobs.Run {
	t.Helper()
	all, err := s.Runs(within(t), f)
	if err != nil {
		t.Fatalf("runs: %v", err)
	}
	return all
}

// outcomes returns the outcomes of a job's runs, the last first.
func outcomes(t *testing.T, s jobs.Store, job string) (all []string) {
	t.Helper()
	for _, r := range runs(t, s, jobs.Filter{Job: job, Max: 100}) {
		all = append(all, fmt.Sprint(r.Scheduled, " ", r.Outcome))
	}
	return all
}

var (
	mine    = jobs.Claimed{Outcome: jobs.Running}
	theirs  = jobs.Claimed{}
	skipped = jobs.Claimed{Outcome: jobs.Skipped}
)

func runFields(t *testing.T, s Store) {
	equal(t, "claim", claim(t, s, "j'", 7, longLease), mine)
	if !finish(t, s, jobs.Run{Job: "j'", Scheduled: 7, Outcome: jobs.Failed, Note: "n\"ö😀", Error: "e%"}) {
		t.Error("the run was not found")
	}
	all := runs(t, s, jobs.Filter{Job: "j'", Max: 9})
	if len(all) != 1 {
		t.Fatalf("runs: %+v", all)
	}
	got := all[0]
	if got.StartedAt <= 0 || got.EndedAt < got.StartedAt {
		t.Errorf("started at %d, ended at %d", got.StartedAt, got.EndedAt)
	}
	got.StartedAt, got.EndedAt = 0, 0
	equal(t, "run", got, jobs.Run{Job: "j'", Scheduled: 7, Replica: "a", Outcome: jobs.Failed, Note: "n\"ö😀", Error: "e%"})
	if finish(t, s, jobs.Run{Job: "j'", Scheduled: 7, Outcome: jobs.Done}) {
		t.Error("a run ended twice")
	}
}

func claimsAtOnce(t *testing.T, s Store) {
	const times, replicas = 30, 6
	for at := int64(1); at <= times; at++ {
		var given atomic.Int64
		concurrently(t, replicas, func(i int) error {
			c, err := s.ClaimRun(within(t), jobs.Claim{Job: "j", Scheduled: at, Replica: fmt.Sprint(i), Lease: longLease})
			if c.Outcome == jobs.Running {
				given.Add(1)
			}
			return err
		})
		if n := given.Load(); n != 1 {
			t.Fatalf("the run was given to %d", n)
		}
		finish(t, s, jobs.Run{Job: "j", Scheduled: at, Outcome: jobs.Done})
	}
	equal(t, "runs", len(outcomes(t, s, "j")), times)
}

func overlapsAtOnce(t *testing.T, s Store) {
	for round := range 20 {
		job := fmt.Sprint("j", round)
		var given atomic.Int64
		concurrently(t, 6, func(i int) error {
			c, err := s.ClaimRun(within(t), jobs.Claim{Job: job, Scheduled: int64(i), Replica: "a", Lease: longLease})
			if c.Outcome == jobs.Running {
				given.Add(1)
			}
			return err
		})
		if n := given.Load(); n != 1 {
			t.Fatalf("%d run at the same time", n)
		}
	}
}

func runsDoNotOverlap(t *testing.T, s Store) {
	equal(t, "the first", claim(t, s, "j", 1, longLease), mine)
	equal(t, "the same", claim(t, s, "j", 1, longLease), theirs)
	equal(t, "the next", claim(t, s, "j", 2, longLease), skipped)
	equal(t, "the next again", claim(t, s, "j", 2, longLease), theirs)
	equal(t, "another job", claim(t, s, "k", 2, longLease), mine)
	finish(t, s, jobs.Run{Job: "j", Scheduled: 1, Outcome: jobs.Done})
	equal(t, "after its end", claim(t, s, "j", 3, longLease), mine)
	equal(t, "runs", outcomes(t, s, "j"), []string{"3 running", "2 skipped", "1 done"})
}

func runIfIdle(t *testing.T, s Store) {
	ask := func(at int64) jobs.Claimed {
		t.Helper()
		c, err := s.ClaimRun(within(t), jobs.Claim{Job: "j", Scheduled: at, Replica: "a", Lease: longLease, IfIdle: true})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	equal(t, "the first", ask(1), mine)
	equal(t, "while it runs", ask(2), theirs)
	finish(t, s, jobs.Run{Job: "j", Scheduled: 1, Outcome: jobs.Done})
	equal(t, "the same", ask(1), theirs)
	equal(t, "after its end", ask(2), mine)
	equal(t, "runs", outcomes(t, s, "j"), []string{"2 running", "1 done"})
}

func runIsLost(t *testing.T, s Store) {
	equal(t, "the first", claim(t, s, "j", 1, -time.Second), mine)
	equal(t, "the next", claim(t, s, "j", 2, longLease), jobs.Claimed{Outcome: jobs.Running, Lost: []string{"j"}})
	if finish(t, s, jobs.Run{Job: "j", Scheduled: 1, Outcome: jobs.Done}) {
		t.Error("a lost run ended")
	}
	equal(t, "runs", outcomes(t, s, "j"), []string{"2 running", "1 lost"})
}

// runsOfOthersAreLost has a job that runs once a day, and one that runs often.
func runsOfOthersAreLost(t *testing.T, s Store) {
	equal(t, "one that goes on", claim(t, s, "slow", 1, longLease), mine)
	equal(t, "daily", claim(t, s, "daily", 1, -time.Second), mine)
	equal(t, "often", claim(t, s, "often", 2, longLease), jobs.Claimed{Outcome: jobs.Running, Lost: []string{"daily"}})
	equal(t, "often again", claim(t, s, "often", 3, longLease), skipped)
	equal(t, "runs of daily", outcomes(t, s, "daily"), []string{"1 lost"})
	equal(t, "runs of slow", outcomes(t, s, "slow"), []string{"1 running"})
}

func runHistory(t *testing.T, s Store) {
	equal(t, "of none", runs(t, s, jobs.Filter{Job: "j", Max: 1}), nil)
	for at := int64(1); at <= 6; at++ {
		job := []string{"j", "k"}[at%2]
		claim(t, s, job, at, longLease)
		finish(t, s, jobs.Run{Job: job, Scheduled: at, Outcome: jobs.Done})
	}
	times := func(f jobs.Filter) (at []int64) {
		for _, r := range runs(t, s, f) {
			at = append(at, r.Scheduled)
		}
		return at
	}
	equal(t, "all", times(jobs.Filter{Max: 9}), []int64{6, 5, 4, 3, 2, 1})
	equal(t, "some", times(jobs.Filter{Max: 2}), []int64{6, 5})
	equal(t, "of one job", times(jobs.Filter{Job: "k", Max: 2}), []int64{5, 3})
	equal(t, "the last of one job", times(jobs.Filter{Job: "j", Max: 1}), []int64{6})
}

func runsByOutcome(t *testing.T, s Store) {
	for at := int64(1); at <= 9; at++ {
		job := []string{"j", "k"}[at%2]
		claim(t, s, job, at, longLease)
		finish(t, s, jobs.Run{Job: job, Scheduled: at, Outcome: []jobs.Outcome{jobs.Done, jobs.Done, jobs.Failed}[at%3]})
	}
	claim(t, s, "j", 10, longLease)
	claim(t, s, "j", 11, longLease) // is skipped
	for _, c := range []struct {
		f    jobs.Filter
		want []int64
	}{
		{jobs.Filter{Outcome: jobs.Failed, Max: 9}, []int64{8, 5, 2}},
		{jobs.Filter{Outcome: jobs.Failed, Max: 2}, []int64{8, 5}},
		{jobs.Filter{Job: "j", Outcome: jobs.Failed, Max: 9}, []int64{8, 2}},
		{jobs.Filter{Job: "k", Outcome: jobs.Done, Max: 2}, []int64{9, 7}},
		{jobs.Filter{Outcome: jobs.Running, Max: 9}, []int64{10}},
		{jobs.Filter{Outcome: jobs.Skipped, Max: 9}, []int64{11}},
		{jobs.Filter{Outcome: jobs.Lost, Max: 9}, nil},
	} {
		var at []int64
		for _, r := range runs(t, s, c.f) {
			at = append(at, r.Scheduled)
		}
		equal(t, fmt.Sprintf("%+v", c.f), at, c.want)
	}
}

func pruneRuns(t *testing.T, s Store) {
	for at := int64(1); at <= 5; at++ {
		claim(t, s, "j", at, longLease)
		finish(t, s, jobs.Run{Job: "j", Scheduled: at, Outcome: jobs.Done})
	}
	claim(t, s, "k", 1, longLease)
	claim(t, s, "k", 2, longLease) // is skipped
	for i, c := range []struct {
		before    int64
		max, want int
		left      []string
	}{
		{1, 9, 0, []string{"5 done", "4 done", "3 done", "2 done", "1 done"}},
		{4, 2, 2, []string{"5 done", "4 done", "3 done"}},
		{4, 9, 1, []string{"5 done", "4 done"}},
		{99, 9, 1, []string{"5 done"}},
		{99, 9, 0, []string{"5 done"}},
	} {
		n, err := s.PruneRuns(within(t), time.UnixMilli(c.before), c.max)
		if n != c.want || err != nil {
			t.Errorf("prune %d: %d, %v; want %d", i, n, err, c.want)
		}
		equal(t, "left", outcomes(t, s, "j"), c.left)
	}
	equal(t, "of one that runs", outcomes(t, s, "k"), []string{"2 skipped", "1 running"})
}

// runsAhead: of workers whose clocks are ahead of the store's, one runs the job at each of their times. When a claim for now
// says that a clock is right again, the job may run at those times, too.
func runsAhead(t *testing.T, s Store) {
	now := time.Now().UnixMilli()
	times := []int64{now + 3_600_000, now + 3_630_000, now + 3_660_000}
	ahead := func(at int64) jobs.Outcome {
		c := claim(t, s, "j", at, longLease)
		if c.Outcome == jobs.Running {
			finish(t, s, jobs.Run{Job: "j", Scheduled: at, Outcome: jobs.Done})
		}
		return c.Outcome
	}
	for _, at := range times {
		equal(t, "the first", ahead(at), jobs.Running)
		equal(t, "another one", ahead(at), "")
	}
	equal(t, "the clock is right", ahead(now), jobs.Running)
	equal(t, "and another one", ahead(now), "")
	for _, at := range times {
		equal(t, "when its time has come", ahead(at), jobs.Running)
	}
}
