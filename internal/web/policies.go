package web

import "github.com/prometheus/client_golang/prometheus"

// fileCollector asks for the report with each scrape, so that its parts belong together.
type fileCollector struct {
	report                   func() (hash string, loaded float64, failures int64)
	info, loadedAt, failures *prometheus.Desc
}

// WatchPolicies shows the state of the policy file: the SHA-256 of the file in force, when it was read in Unix
// seconds, and how many files were refused. Call it once.
func (m *Metrics) WatchPolicies(report func() (hash string, loaded float64, failures int64)) {
	m.watchFile("policies", "policy", report)
}

// WatchAlertsFile shows the same of the alerts file. Call it once.
func (m *Metrics) WatchAlertsFile(report func() (hash string, loaded float64, failures int64)) {
	m.watchFile("alerts_file", "alerts", report)
}

func (m *Metrics) watchFile(name, what string, report func() (hash string, loaded float64, failures int64)) {
	m.reg.MustRegister(&fileCollector{
		report: report,
		info: prometheus.NewDesc("limits_"+name+"_info",
			"1, with the SHA-256 of the "+what+" file in force as label.", []string{"hash"}, nil),
		loadedAt: prometheus.NewDesc("limits_"+name+"_loaded_timestamp_seconds",
			"When the "+what+" file in force was read.", nil, nil),
		failures: prometheus.NewDesc("limits_"+name+"_reload_failures_total",
			"Files of "+what+" that were refused; the one from before stays in force.", nil, nil),
	})
}

// Describe gives the metrics.
func (c *fileCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.info
	ch <- c.loadedAt
	ch <- c.failures
}

// Collect gives their values.
func (c *fileCollector) Collect(ch chan<- prometheus.Metric) {
	hash, loaded, failures := c.report()
	ch <- prometheus.MustNewConstMetric(c.info, prometheus.GaugeValue, 1, hash)
	ch <- prometheus.MustNewConstMetric(c.loadedAt, prometheus.GaugeValue, loaded)
	ch <- prometheus.MustNewConstMetric(c.failures, prometheus.CounterValue, float64(failures))
}
