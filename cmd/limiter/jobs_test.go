package main

import (
	"strings"
	"testing"
)

func TestServiceJobs(t *testing.T) {
	s := serve(t, "--cleanup-every", "0", "--usage-days", "0")
	list := s.limiter(t, "jobs list")
	list.want(t, exitDone, "expire              -           -                    never", "")
	list.want(t, exitDone, "usage-rollup        7 * * * *   2", "")
	if strings.Contains(list.out.String(), "usage-prune") {
		t.Errorf("usage is kept for ever, and a job removes it: %s", list.out.String())
	}
	s.limiter(t, "jobs history expire").want(t, exitDone, "no runs\n", "")
	s.limiter(t, "jobs run expire").want(t, exitDone, "expire: done in ", "")
	s.limiter(t, "jobs history expire").want(t, exitDone, "removed 0\n", "")
	s.limiter(t, "jobs history --max 1 --json").want(t, exitDone, `{"runs":[{"job":"`, "")
	s.limiter(t, "jobs history expire --outcome done").want(t, exitDone, "removed 0\n", "")
	s.limiter(t, "jobs history --outcome failed").want(t, exitDone, "no runs\n", "")
	s.limiter(t, "jobs run requests-prune --json").want(t, exitDone, `"outcome":"done","note":"removed 0"`, "")
	s.limiter(t, "jobs list --json").want(t, exitDone, `{"jobs":[{"name":"expire","timeout":180000,"last":{"job":"expire"`, "")
	s.limiter(t, "jobs run report").want(t, exitDone, "nothing was decided on ", "")
	s.limiter(t, "jobs run quota-check").want(t, exitDone, "checked 0 counters, 0 past their window", "")
	s.limiter(t, "jobs run usage-prune").want(t, exitError, "", "404 unknown_job")
	s.limiter(t, "jobs history nobody").want(t, exitError, "", `no job named "nobody" here`)
}

func TestWrongUsageOfJobs(t *testing.T) {
	for args, message := range map[string]string{
		"jobs run":                     "<name>",
		"jobs history --max 501":       "--max: 501 is not between 1 and 500",
		"jobs history --outcome faild": `--outcome: "faild" is not one of done, failed, timeout`,
		"serve --cleanup-every 500ms":  "--cleanup-every: 500ms is neither 0 nor between 1s and 24h",
		"serve --cleanup-every 1500ms": "not a whole number of seconds",
		"serve --cleanup-every=-1s":    "neither 0 nor",
		"serve --usage-days=-1":        "--usage-days: -1 is not between 0 and 36500",
		"serve --job-days 36501":       "--job-days: 36501 is not",
	} {
		limiter(t, strings.Fields(args)...).want(t, exitUsage, "", message)
	}
}
