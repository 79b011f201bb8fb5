package web

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// JobMetrics measures the jobs that ran on this worker.
type JobMetrics struct {
	runs        *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	lastSuccess *prometheus.GaugeVec
}

// WatchJobs registers the metrics of jobs; call it once. Its labels are the names of jobs and of outcomes, which are few. Each
// outcome is there from the start, with 0, because Prometheus sees no increase in a series that begins with 1.
func (m *Metrics) WatchJobs(names []string) *JobMetrics {
	j := &JobMetrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "limits_job_runs_total",
			Help: "Runs of jobs that ended on this worker, or that it found skipped or lost."}, []string{"job", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "limits_job_seconds",
			Help: "How long runs of jobs took.", Buckets: []float64{0.01, 0.1, 1, 10, 60, 600}}, []string{"job"}),
		lastSuccess: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "limits_job_last_success_timestamp_seconds",
			Help: "When a run of the job was last done on this worker."}, []string{"job"}),
	}
	m.reg.MustRegister(j.runs, j.seconds, j.lastSuccess)
	for _, name := range names {
		for _, outcome := range [...]string{"done", "failed", "timeout", "canceled", "skipped", "lost"} {
			j.runs.WithLabelValues(name, outcome)
		}
	}
	return j
}

// JobMissed counts a run that was skipped or lost.
func (j *JobMetrics) JobMissed(job, outcome string) { j.runs.WithLabelValues(job, outcome).Inc() }

// JobEnded counts and measures a run.
func (j *JobMetrics) JobEnded(job, outcome string, took time.Duration, at time.Time) {
	j.runs.WithLabelValues(job, outcome).Inc()
	if outcome == "done" {
		j.lastSuccess.WithLabelValues(job).Set(float64(at.UnixMilli()) / 1000)
	}
	j.seconds.WithLabelValues(job).Observe(took.Seconds())
}
