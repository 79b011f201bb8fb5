package web

import "github.com/prometheus/client_golang/prometheus"

// Losses counts usage that was not fully recorded: decisions counted without their key (Other), decisions (Counts) and lines
// of the request log (Requests) that were dropped, and lines that could not be read (Malformed).
type Losses struct{ Other, Counts, Requests, Malformed int64 }

// WatchUsage exports the losses; call it once.
func (m *Metrics) WatchUsage(losses func() Losses) {
	counter := func(name, help string, labels prometheus.Labels, of func(Losses) int64) {
		m.reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(of(losses())) }))
	}
	counter("limits_usage_other_total", "Decisions counted without their key, because there were too many keys.", nil,
		func(l Losses) int64 { return l.Other })
	const lost, help = "limits_usage_dropped_total", "Decisions and lines of the request log that were not recorded."
	counter(lost, help, prometheus.Labels{"what": "decisions"}, func(l Losses) int64 { return l.Counts })
	counter(lost, help, prometheus.Labels{"what": "requests"}, func(l Losses) int64 { return l.Requests })
	counter(lost, help, prometheus.Labels{"what": "malformed"}, func(l Losses) int64 { return l.Malformed })
}
