package web

import "github.com/prometheus/client_golang/prometheus"

// fileCollector reads the report once for each scrape, so that its values are consistent.
type fileCollector struct {
	report                   func() (hash string, loaded float64, failures int64)
	info, loadedAt, failures *prometheus.Desc
}

// WatchPolicies exports the state of the policy file: the SHA-256 of the current file, when it was read in Unix seconds, and
// how many files were refused. Call it once.
func (m *Metrics) WatchPolicies(report func() (hash string, loaded float64, failures int64)) {
	m.watchFile("policies", "policy", report)
}

// WatchAlertsFile exports the same for the alerts file. Call it once.
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

// Describe implements [prometheus.Collector].
func (c *fileCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.info
	ch <- c.loadedAt
	ch <- c.failures
}

// Collect implements [prometheus.Collector].
func (c *fileCollector) Collect(ch chan<- prometheus.Metric) {
	hash, loaded, failures := c.report()
	ch <- prometheus.MustNewConstMetric(c.info, prometheus.GaugeValue, 1, hash)
	ch <- prometheus.MustNewConstMetric(c.loadedAt, prometheus.GaugeValue, loaded)
	ch <- prometheus.MustNewConstMetric(c.failures, prometheus.CounterValue, float64(failures))
}
