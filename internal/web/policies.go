package web

import "github.com/prometheus/client_golang/prometheus"

// policyCollector asks for the report with each scrape, so that its parts belong together.
type policyCollector struct {
	report                   func() (hash string, loaded float64, failures int64)
	info, loadedAt, failures *prometheus.Desc
}

// WatchPolicies shows how it stands with the policy file: the SHA-256 of the file in force, when it was read in Unix
// seconds, and how many files were refused. Call it once.
func (m *Metrics) WatchPolicies(report func() (hash string, loaded float64, failures int64)) {
	m.reg.MustRegister(&policyCollector{
		report: report,
		info: prometheus.NewDesc("limits_policies_info",
			"1, with the SHA-256 of the policy file in force as label.", []string{"hash"}, nil),
		loadedAt: prometheus.NewDesc("limits_policies_loaded_timestamp_seconds",
			"When the policies in force were read.", nil, nil),
		failures: prometheus.NewDesc("limits_policies_reload_failures_total",
			"Policy files that were refused; those from before stay in force.", nil, nil),
	})
}

// Describe gives the metrics.
func (c *policyCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.info
	ch <- c.loadedAt
	ch <- c.failures
}

// Collect gives their values.
func (c *policyCollector) Collect(ch chan<- prometheus.Metric) {
	hash, loaded, failures := c.report()
	ch <- prometheus.MustNewConstMetric(c.info, prometheus.GaugeValue, 1, hash)
	ch <- prometheus.MustNewConstMetric(c.loadedAt, prometheus.GaugeValue, loaded)
	ch <- prometheus.MustNewConstMetric(c.failures, prometheus.CounterValue, float64(failures))
}
