package web

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// AlertMetrics measures events, alerts and deliveries in this process. It is the observer of the consumer, of the alert
// service and of the sender. Its labels are the names of rules and channels, of which a file has few, and fixed words.
type AlertMetrics struct {
	events, alerts, attempts *prometheus.CounterVec
	seconds                  *prometheus.HistogramVec
	throttleFailures         prometheus.Counter
	lost                     prometheus.Counter
	// pending has no labels. It is a GaugeVec because it has no value while it is not known: 0 would mean that nothing waits.
	pending *prometheus.GaugeVec
}

// WatchAlerts registers the metrics of alerts; call it once. waiting counts the waiting deliveries by channel.
func (m *Metrics) WatchAlerts(waiting func(ctx context.Context) (map[string]int64, error)) *AlertMetrics {
	a := &AlertMetrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "limits_alert_events_total",
			Help: "Events of the stream: taken (matched a rule), repeated, unmatched, returned to come again, poison."}, []string{"outcome"}),
		alerts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "limits_alerts_total",
			Help: "Alerts that were raised, sent, held (for the digest), silenced or resolved, and warnings withheld."}, []string{"what", "rule"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "limits_alert_deliveries_total",
			Help: "Tries to deliver, by how they ended."}, []string{"channel", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "limits_alert_delivery_seconds",
			Help: "How long tries to deliver took.", Buckets: []float64{0.005, 0.02, 0.1, 0.5, 2, 5, 15}}, []string{"channel"}),
		throttleFailures: prometheus.NewCounter(prometheus.CounterOpts{Name: "limits_alert_throttle_failures_total",
			Help: "Alerts that wait because no limiter decided about the throttle."}),
		pending: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "limits_alert_events_pending",
			Help: "Events of the stream that no alerter was given yet, when this one last looked; missing while it cannot."}, nil),
		lost: prometheus.NewCounter(prometheus.CounterOpts{Name: "limits_alert_events_lost_total",
			Help: "Events that the stream removed before any alerter took them, as this one saw it."}),
	}
	m.reg.MustRegister(a.events, a.alerts, a.attempts, a.seconds, a.throttleFailures, a.pending, a.lost, &waitingCollector{
		waiting: waiting,
		desc: prometheus.NewDesc("limits_alert_deliveries_waiting",
			"Deliveries of alerts that wait to be sent, by channel.", []string{"channel"}, nil),
	})
	return a
}

// EventsMatched counts the events of a stored batch.
func (a *AlertMetrics) EventsMatched(fresh, repeated, unmatched int) {
	a.events.WithLabelValues("taken").Add(float64(fresh))
	a.events.WithLabelValues("repeated").Add(float64(repeated))
	a.events.WithLabelValues("unmatched").Add(float64(unmatched))
}

// EventsReturned counts messages that were returned to the stream, to be redelivered.
func (a *AlertMetrics) EventsReturned(n int) { a.events.WithLabelValues("returned").Add(float64(n)) }

// EventPoisoned counts a message that is no valid event.
func (a *AlertMetrics) EventPoisoned() { a.events.WithLabelValues("poison").Inc() }

// EventsPending sets how many messages wait in the stream.
func (a *AlertMetrics) EventsPending(n uint64) { a.pending.WithLabelValues().Set(float64(n)) }

// EventsPendingUnknown removes the number of waiting messages, because it is not known.
func (a *AlertMetrics) EventsPendingUnknown() { a.pending.Reset() }

// EventsLost counts events that the stream removed before they were taken.
func (a *AlertMetrics) EventsLost(n uint64) { a.lost.Add(float64(n)) }

// AlertChanged counts a change of an alert.
func (a *AlertMetrics) AlertChanged(what, rule string) { a.alerts.WithLabelValues(what, rule).Inc() }

// ThrottleFailed counts an alert that waits for a limiter.
func (a *AlertMetrics) ThrottleFailed() { a.throttleFailures.Inc() }

// DeliveryTried counts an attempt. If nothing was sent, took is 0 and not observed.
func (a *AlertMetrics) DeliveryTried(channel, outcome string, took time.Duration) {
	a.attempts.WithLabelValues(channel, outcome).Inc()
	if took > 0 {
		a.seconds.WithLabelValues(channel).Observe(took.Seconds())
	}
}

// waitingCollector reads the store at each scrape.
type waitingCollector struct {
	waiting func(ctx context.Context) (map[string]int64, error)
	desc    *prometheus.Desc
}

// Describe implements [prometheus.Collector].
func (c *waitingCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements [prometheus.Collector]. It has no values if the store does not answer, which readiness reports.
func (c *waitingCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	waiting, err := c.waiting(ctx)
	if err != nil {
		return
	}
	for channel, n := range waiting {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n), channel)
	}
}
