package web

import "github.com/prometheus/client_golang/prometheus"

// WatchUsage shows what of the usage was not recorded as it happened; call it once.
func (m *Metrics) WatchUsage(losses func() (other, counts, requests, malformed int64)) {
	counter := func(name, help string, labels prometheus.Labels, value func() int64) {
		m.reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value()) }))
	}
	counter("limits_usage_other_total", "Decisions counted without their key, because there were too many keys.", nil,
		func() int64 { n, _, _, _ := losses(); return n })
	const lost = "limits_usage_dropped_total"
	help := "Decisions and lines of the request log that were not recorded."
	counter(lost, help, prometheus.Labels{"what": "decisions"}, func() int64 { _, n, _, _ := losses(); return n })
	counter(lost, help, prometheus.Labels{"what": "requests"}, func() int64 { _, _, n, _ := losses(); return n })
	counter(lost, help, prometheus.Labels{"what": "malformed"}, func() int64 { _, _, _, n := losses(); return n })
}
