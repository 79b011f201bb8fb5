package web

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// AlertMetrics measures events, alerts and deliveries in this process. It is the observer of the consumer, of the alert
// service and of the sender. Its labels are the names of rules and channels, of which a file has few, and fixed words.
type AlertMetrics struct {
	events, alerts   *prometheus.CounterVec
	deliveries       *deliveryCounter
	seconds          *prometheus.HistogramVec
	throttleFailures prometheus.Counter
	lost             prometheus.Counter
	// pending has no labels. It is a GaugeVec because it has no value while it is not known: 0 would mean that nothing waits.
	pending *prometheus.GaugeVec
}

// WatchAlerts registers the metrics of alerts; call it once. waiting counts the waiting deliveries by channel. channels names
// those of the file in force; it must not block.
func (m *Metrics) WatchAlerts(waiting func(ctx context.Context) (map[string]int64, error), channels func() []string) *AlertMetrics {
	a := &AlertMetrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "limits_alert_events_total",
			Help: "Events of the stream: taken (matched a rule), repeated, unmatched, returned to come again, poison."}, []string{"outcome"}),
		alerts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "limits_alerts_total",
			Help: "Alerts that were raised, sent, held (for the digest), silenced or resolved, and warnings withheld."}, []string{"what", "rule"}),
		deliveries: &deliveryCounter{channels: channels, tries: map[try]float64{},
			desc: prometheus.NewDesc("limits_alert_deliveries_total", "Tries to deliver, by how they ended.", []string{"channel", "outcome"}, nil)},
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "limits_alert_delivery_seconds",
			Help: "How long tries to deliver took.", Buckets: []float64{0.005, 0.02, 0.1, 0.5, 2, 5, 15}}, []string{"channel"}),
		throttleFailures: prometheus.NewCounter(prometheus.CounterOpts{Name: "limits_alert_throttle_failures_total",
			Help: "Alerts that wait because no limiter decided about the throttle."}),
		pending: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "limits_alert_events_pending",
			Help: "Events of the stream that no alerter was given yet, when this one last looked; missing while it cannot."}, nil),
		lost: prometheus.NewCounter(prometheus.CounterOpts{Name: "limits_alert_events_lost_total",
			Help: "Events that the stream removed before any alerter took them, as this one saw it."}),
	}
	m.reg.MustRegister(a.events, a.alerts, a.deliveries, a.seconds, a.throttleFailures, a.pending, a.lost, &waitingCollector{
		waiting: waiting,
		desc: prometheus.NewDesc("limits_alert_deliveries_waiting",
			"Deliveries of alerts that wait to be sent, by channel.", []string{"channel"}, nil),
	})
	for _, outcome := range [...]string{"taken", "repeated", "unmatched", "returned", "poison"} {
		a.events.WithLabelValues(outcome)
	}
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
	a.deliveries.add(try{channel, outcome})
	if took > 0 {
		a.seconds.WithLabelValues(channel).Observe(took.Seconds())
	}
}

// deliveryCounter counts tries to deliver. It has 0 for each that a channel of the file in force may have and has not had,
// because Prometheus sees no increase in a series that begins with 1. It is no CounterVec, which would keep the zeros of all
// channels that were ever in the file.
type deliveryCounter struct {
	channels func() []string
	desc     *prometheus.Desc

	mu    sync.Mutex
	tries map[try]float64
}

type try struct{ channel, outcome string }

func (c *deliveryCounter) add(t try) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tries[t]++
}

// Describe implements [prometheus.Collector].
func (c *deliveryCounter) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements [prometheus.Collector].
func (c *deliveryCounter) Collect(ch chan<- prometheus.Metric) {
	all := map[try]float64{{"", "dead"}: 0, {"", "removed"}: 0} // of channels that are in the file no more
	for _, channel := range c.channels() {
		for _, outcome := range [...]string{"sent", "retry", "put_off", "dead", "disabled"} {
			all[try{channel, outcome}] = 0
		}
	}
	c.mu.Lock()
	maps.Copy(all, c.tries)
	c.mu.Unlock()
	for t, n := range all {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, n, t.channel, t.outcome)
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
