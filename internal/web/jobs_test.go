package web

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestJobMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	j := NewMetrics(reg).WatchJobs([]string{"expire", "report"})
	j.JobEnded("expire", "done", 50*time.Millisecond, time.UnixMilli(1_500))
	j.JobEnded("expire", "failed", time.Second, time.UnixMilli(9_000))
	j.JobMissed("expire", "lost")
	want := `
# HELP limits_job_last_success_timestamp_seconds When a run of the job was last done on this worker.
# TYPE limits_job_last_success_timestamp_seconds gauge
limits_job_last_success_timestamp_seconds{job="expire"} 1.5
# HELP limits_job_runs_total Runs of jobs that ended on this worker, or that it found skipped or lost.
# TYPE limits_job_runs_total counter
limits_job_runs_total{job="expire",outcome="canceled"} 0
limits_job_runs_total{job="expire",outcome="done"} 1
limits_job_runs_total{job="expire",outcome="failed"} 1
limits_job_runs_total{job="expire",outcome="lost"} 1
limits_job_runs_total{job="expire",outcome="skipped"} 0
limits_job_runs_total{job="expire",outcome="timeout"} 0
limits_job_runs_total{job="report",outcome="canceled"} 0
limits_job_runs_total{job="report",outcome="done"} 0
limits_job_runs_total{job="report",outcome="failed"} 0
limits_job_runs_total{job="report",outcome="lost"} 0
limits_job_runs_total{job="report",outcome="skipped"} 0
limits_job_runs_total{job="report",outcome="timeout"} 0
# HELP limits_job_seconds How long runs of jobs took.
# TYPE limits_job_seconds histogram
limits_job_seconds_bucket{job="expire",le="0.01"} 0
limits_job_seconds_bucket{job="expire",le="0.1"} 1
limits_job_seconds_bucket{job="expire",le="1"} 2
limits_job_seconds_bucket{job="expire",le="10"} 2
limits_job_seconds_bucket{job="expire",le="60"} 2
limits_job_seconds_bucket{job="expire",le="600"} 2
limits_job_seconds_bucket{job="expire",le="+Inf"} 2
limits_job_seconds_sum{job="expire"} 1.05
limits_job_seconds_count{job="expire"} 2
`
	err := testutil.GatherAndCompare(reg, strings.NewReader(want),
		"limits_job_runs_total", "limits_job_seconds", "limits_job_last_success_timestamp_seconds")
	if err != nil {
		t.Error(err)
	}
}
