package web

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/seed503877ad/limits/internal/engine"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

const (
	verbCount = int(engine.Settle) + 1
	// algorithmCount is that of the engine's algorithms and, last, none.
	algorithmCount = int(engine.TokenBucket) + 2
)

// results are the results of [engine.Observer].
var results = [...]string{"allowed", "denied", "error"}

// Metrics measures the engine. It implements [engine.Observer].
//
// No label has a key as its value, so the number of series is fixed. Each series is looked up once, by NewMetrics, so that
// the hot path is only a switch and an addition.
type Metrics struct {
	reg       prometheus.Registerer
	decisions [verbCount][len(results)][algorithmCount]prometheus.Counter
	seconds   [verbCount]prometheus.Observer
	degraded  [verbCount]prometheus.Counter

	batchRequests, batchCounters, storeSeconds prometheus.Histogram
	storeErrors                                [errorKinds]prometheus.Counter
}

var _ engine.Observer = (*Metrics)(nil)

// NewMetrics registers the metrics of a worker, with those of Go and of the process.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{reg: reg}
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.registerDecisions()
	m.registerStore()
	return m
}

func (m *Metrics) registerDecisions() {
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "limits_decisions_total",
		Help: "Requests answered."}, []string{"verb", "result", "algorithm"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "limits_request_seconds",
		Help:    "Time from a request's arrival in the engine to its answer.",
		Buckets: []float64{1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5}}, []string{"verb"})
	degraded := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "limits_degraded_total",
		Help: "Answers given without the store."}, []string{"verb"})
	m.reg.MustRegister(decisions, seconds, degraded)
	for v := range verbCount {
		verb := engine.Verb(v).String()
		m.seconds[v] = seconds.WithLabelValues(verb)
		m.degraded[v] = degraded.WithLabelValues(verb)
		for r, result := range results {
			for a := range algorithmCount {
				m.decisions[v][r][a] = decisions.WithLabelValues(verb, result, algorithmLabel(a))
			}
		}
	}
}

func (m *Metrics) registerStore() {
	m.batchRequests = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "limits_batch_requests",
		Help: "Requests written in one transaction.", Buckets: prometheus.ExponentialBuckets(1, 2, 11)})
	m.batchCounters = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "limits_batch_counters",
		Help: "Counters read in one transaction.", Buckets: prometheus.ExponentialBuckets(1, 2, 11)})
	m.storeSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "limits_store_seconds",
		Help: "Time of one transaction.", Buckets: prometheus.ExponentialBuckets(1e-4, 2, 15)})
	errs := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "limits_store_errors_total",
		Help: "Transactions that failed, and requests whose counter cannot be read (corrupt)."}, []string{"kind"})
	m.reg.MustRegister(m.batchRequests, m.batchCounters, m.storeSeconds, errs)
	for kind, name := range errorKindNames {
		m.storeErrors[kind] = errs.WithLabelValues(name)
	}
}

// Decided counts an answer.
func (m *Metrics) Decided(v engine.Verb, result, algorithm string, degraded bool, took time.Duration) {
	if int(v) >= verbCount {
		return
	}
	m.decisions[v][resultIndex(result)][algorithmIndex(algorithm)].Inc()
	m.seconds[v].Observe(took.Seconds())
	if degraded {
		m.degraded[v].Inc()
	}
}

// Wrote measures a transaction.
func (m *Metrics) Wrote(requests, counters int, took time.Duration) {
	m.batchRequests.Observe(float64(requests))
	m.batchCounters.Observe(float64(counters))
	m.storeSeconds.Observe(took.Seconds())
}

// StoreFailed counts a failed transaction, or a request whose counter cannot be read.
func (m *Metrics) StoreFailed(err error) { m.storeErrors[errorKind(err)].Inc() }

func resultIndex(result string) int {
	switch result {
	case "allowed":
		return 0
	case "denied":
		return 1
	default:
		return 2
	}
}

func algorithmIndex(algorithm string) int {
	switch algorithm {
	case "sliding_window":
		return int(engine.SlidingWindow)
	case "fixed_window":
		return int(engine.FixedWindow)
	case "token_bucket":
		return int(engine.TokenBucket)
	default:
		return algorithmCount - 1
	}
}

func algorithmLabel(a int) string {
	if a == algorithmCount-1 {
		return "none"
	}
	return engine.Algorithm(a).String()
}

// The kinds of errors of a store.
const (
	errorConflict = iota
	errorCommitUnknown
	errorTimeout
	errorCorrupt
	errorOther
	errorKinds
)

var errorKindNames = [errorKinds]string{"conflict", "commit_unknown", "timeout", "corrupt", "other"}

func errorKind(err error) int {
	switch {
	case errors.Is(err, engine.ErrConflict):
		return errorConflict
	case errors.Is(err, engine.ErrCommitUnknown):
		return errorCommitUnknown
	case errors.Is(err, context.DeadlineExceeded):
		return errorTimeout
	case errors.Is(err, engine.ErrCorrupt):
		return errorCorrupt
	default:
		return errorOther
	}
}

// gauge registers a metric whose value is read at each scrape.
func (m *Metrics) gauge(name, help string, value func() float64) {
	m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
}

// boolValue returns 1 for true and 0 for false.
func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// WatchQueue exports how many requests wait; call it once.
func (m *Metrics) WatchQueue(queued func() int) {
	m.gauge("limits_queue_depth", "Requests that wait to be written.", func() float64 { return float64(queued()) })
}

// WatchStore exports whether the store fails; call it once. healthy is called at each scrape, for a second at most: while no
// requests come, nothing else notices that the store is unreachable.
func (m *Metrics) WatchStore(healthy func(ctx context.Context) error) {
	m.gauge("limits_store_failing", "1 while the store fails or cannot be reached, else 0.", func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return boolValue(healthy(ctx) != nil)
	})
}

// WatchDeciding exports whether this worker decides or stands by; call it once.
func (m *Metrics) WatchDeciding(deciding func() bool) {
	m.gauge("limits_deciding", "1 while this worker takes requests to decide, 0 while it stands by for another one.",
		func() float64 { return boolValue(deciding()) })
}

// WatchLeased exports how much is charged ahead; call it once.
func (m *Metrics) WatchLeased(leased func() int64) {
	m.gauge("limits_leased", "Cost that was charged ahead and not served yet.", func() float64 { return float64(leased()) })
}

// WatchBacklog exports how many events wait in the outbox; call it once. The outbox is read every 5 s at most, however
// often the metrics are scraped. The value is NaN if it cannot be read.
func (m *Metrics) WatchBacklog(backlog func(ctx context.Context) (int64, error)) {
	s := &sample{read: backlog, every: 5 * time.Second}
	m.gauge("limits_outbox_backlog", "Events that wait to be published, as of 5 seconds ago at most.", s.value)
}

// SetVersion exports the program's version; call it once.
func (m *Metrics) SetVersion(version string) {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "limits_build_info",
		Help: "1, with the version as label.", ConstLabels: prometheus.Labels{"version": version}})
	g.Set(1)
	m.reg.MustRegister(g)
}

// sample caches a value that is expensive to read.
type sample struct {
	read  func(ctx context.Context) (int64, error)
	every time.Duration

	mu    sync.Mutex
	taken time.Time
	last  float64
}

func (s *sample) value() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.taken.IsZero() && time.Since(s.taken) < s.every {
		return s.last
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	n, err := s.read(ctx)
	s.taken, s.last = time.Now(), float64(n)
	if err != nil {
		s.last = math.NaN()
	}
	return s.last
}
