package web

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
)

const (
	// dashboardEvery is the least time between two looks at the metrics, however many people look at the page.
	dashboardEvery = time.Second
	// dashboardSpan is how long a look is kept: what happens a second is told over as much of it as there is.
	dashboardSpan = time.Minute
)

//go:embed dashboard.html
var dashboardHTML string

// dashboard is the page for people. It has nothing that /metrics and /readyz lack, and no key.
type dashboard struct {
	registry *prometheus.Registry
	ready    func(context.Context) readiness
	page     *template.Template
	policy   string
	began    time.Time

	looking singleflight.Group
	mu      sync.Mutex
	looks   []look // oldest first
}

func newDashboard(registry *prometheus.Registry, ready func(context.Context) readiness) (*dashboard, error) {
	page, err := template.New("dashboard").Parse(dashboardHTML)
	if err != nil {
		return nil, fmt.Errorf("read the dashboard: %w", err)
	}
	_, style, _ := strings.Cut(dashboardHTML, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	return &dashboard{registry: registry, ready: ready, page: page, began: time.Now(),
		policy: "default-src 'none'; frame-ancestors 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"}, nil
}

func (d *dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Vary", "Accept")
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		text(w, "limits: rate limiting over NATS\n\n/          in a browser: what goes on\n/livez     is the process alive\n"+
			"/readyz    can it answer, and if not, why\n/metrics   Prometheus metrics\n"+
			"/schemas/  JSON Schemas of requests, replies and events\n")
		return
	}
	v, err := d.view(r.Context())
	if err != nil {
		http.Error(w, "read the metrics: "+err.Error(), http.StatusInternalServerError)
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", d.policy)
	h.Set("Cache-Control", "no-store")
	_ = d.page.Execute(w, v)
}

// look is what all metrics said; at is when the last of them had.
type look struct {
	at       time.Time
	families []family
}

// family are the series of one metric.
type family struct {
	name, help string
	counts     bool // a counter or a histogram
	series     []series
}

// series is one value of a metric. That of a histogram is how many there were.
type series struct {
	labels  map[string]string
	text    string // the labels, as one reads them
	value   float64
	sum     float64
	buckets []bucket
}

// bucket is how many values were at most most.
type bucket struct {
	most  float64
	count uint64
}

// see gives the metrics of now, which are those of a second ago at most, and the oldest ones that are kept; an empty look
// when there are none. Whoever comes while the metrics are asked, which takes seconds where the store hangs, gets what they say.
func (d *dashboard) see(ctx context.Context) (now, before look, err error) {
	looked := d.looking.DoChan("", func() (any, error) {
		if now, _ := d.last(); time.Since(now.at) < dashboardEvery {
			return nil, nil
		}
		taken, err := d.look()
		if err == nil {
			d.keep(taken)
		}
		return nil, err
	})
	select {
	case l := <-looked:
		now, before = d.last()
		return now, before, l.Err
	case <-ctx.Done(): // the asker has gone
		return now, before, ctx.Err()
	}
}

func (d *dashboard) last() (now, before look) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.looks) == 0 {
		return now, before
	}
	now, before = d.looks[len(d.looks)-1], d.looks[0]
	if len(d.looks) == 1 {
		before = look{at: d.began}
	}
	return now, before
}

func (d *dashboard) keep(taken look) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.looks = slices.DeleteFunc(d.looks, func(l look) bool { return taken.at.Sub(l.at) > dashboardSpan })
	d.looks = append(d.looks, taken)
}

func (d *dashboard) look() (look, error) {
	gathered, err := d.registry.Gather()
	l := look{at: time.Now(), families: []family{}}
	if err != nil {
		return l, err
	}
	for _, g := range gathered {
		f := family{name: g.GetName(), help: g.GetHelp()}
		for _, m := range g.GetMetric() {
			s := series{labels: map[string]string{}}
			for _, p := range m.GetLabel() {
				s.labels[p.GetName()] = p.GetValue()
				s.text = strings.TrimPrefix(s.text+", "+p.GetValue(), ", ")
			}
			switch h := m.GetHistogram(); {
			case h != nil:
				f.counts, s.value, s.sum = true, float64(h.GetSampleCount()), h.GetSampleSum()
				for _, b := range h.GetBucket() {
					s.buckets = append(s.buckets, bucket{b.GetUpperBound(), b.GetCumulativeCount()})
				}
			case m.GetCounter() != nil:
				f.counts, s.value = true, m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				s.value = m.GetGauge().GetValue()
			default: // summaries of the Go runtime
				continue
			}
			f.series = append(f.series, s)
		}
		l.families = append(l.families, f)
	}
	return l, nil
}

func (l look) family(name string) family {
	i := slices.IndexFunc(l.families, func(f family) bool { return f.name == name })
	if i < 0 {
		return family{name: name}
	}
	return l.families[i]
}

// where gives the series whose label has the value.
func (f family) where(label, value string) family {
	f.series = slices.DeleteFunc(slices.Clone(f.series), func(s series) bool { return s.labels[label] != value })
	return f
}

// total adds up all series.
func (f family) total() (all series) {
	for _, s := range f.series {
		all.value += s.value
		all.sum += s.sum
		if all.buckets == nil {
			all.buckets = slices.Clone(s.buckets)
			continue
		}
		for i := range s.buckets {
			all.buckets[i].count += s.buckets[i].count
		}
	}
	return all
}

// since takes away what was there before.
func (s series) since(before series) series {
	s.value -= before.value
	s.sum -= before.sum
	if len(before.buckets) == len(s.buckets) {
		s.buckets = slices.Clone(s.buckets)
		for i := range s.buckets {
			s.buckets[i].count -= before.buckets[i].count
		}
	}
	return s
}

// quantile is what the part q of all values did not pass; infinite past the last bucket.
func (s series) quantile(q float64) float64 {
	for _, b := range s.buckets {
		if float64(b.count) >= q*s.value {
			return b.most
		}
	}
	return math.Inf(1)
}

// view is what the page shows.
type view struct {
	Version, At, Span string
	Ready             readiness
	Attention         []metric
	Verbs             []verb
	Sections          []section
}

type verb struct{ Name, Allowed, Denied, Errors, Degraded, Rate, Half, Most string }

type section struct {
	Title   string
	Metrics []metric
}

// metric is a family with what it has to show.
type metric struct {
	Help, Name string
	Rows       []row
}

type row struct{ Labels, Value, Rate string }

// sections says where a metric is shown: in the first section that names the beginning of its name. The first one is the
// table of verbs.
var sections = []struct {
	title    string
	prefixes []string
}{
	{"Answers", []string{"limits_decisions_", "limits_request_", "limits_degraded_"}},
	{"Store", []string{"limits_deciding", "limits_store_", "limits_batch_", "limits_queue_", "limits_leased", "limits_outbox_"}},
	{"Files", []string{"limits_policies_", "limits_alerts_file_"}},
	{"Alerts", []string{"limits_alert"}},
	{"Jobs", []string{"limits_job_"}},
	{"Usage", []string{"limits_usage_"}},
	{"Process", []string{"process_start_time_", "process_cpu_", "process_resident_", "process_open_fds", "go_goroutines"}},
}

// alarms are the metrics of which docs/operations.md says to alert on them, and the outcomes that it names.
var alarms = map[string][]string{
	"limits_degraded_total":                    nil,
	"limits_store_failing":                     nil,
	"limits_policies_reload_failures_total":    nil,
	"limits_alert_events_lost_total":           nil,
	"limits_alert_throttle_failures_total":     nil,
	"limits_alert_deliveries_total":            {"dead", "disabled", "removed"},
	"limits_alerts_file_reload_failures_total": nil,
}

func (d *dashboard) view(ctx context.Context) (view, error) {
	ready := make(chan readiness, 1)
	go func() { ready <- d.ready(ctx) }()
	now, before, err := d.see(ctx)
	if err != nil {
		return view{}, err
	}
	span := max(now.at.Sub(before.at), time.Millisecond)
	v := view{Ready: <-ready, At: now.at.UTC().Format(time.DateTime), Span: span.Round(time.Second).String()}
	if f := now.family("limits_build_info"); len(f.series) > 0 {
		v.Version = f.series[0].labels["version"]
	}
	v.Verbs = now.verbs(before, span)
	for _, s := range sections[1:] {
		v.Sections = append(v.Sections, section{Title: s.title})
	}
	for _, f := range now.families {
		was := before.family(f.name)
		if m := f.alarming().metric(was, span); len(m.Rows) > 0 {
			v.Attention = append(v.Attention, m)
		}
		if i := sectionOf(f.name); i > 0 {
			if m := f.metric(was, span); len(m.Rows) > 0 {
				v.Sections[i-1].Metrics = append(v.Sections[i-1].Metrics, m)
			}
		}
	}
	v.Sections = slices.DeleteFunc(v.Sections, func(s section) bool { return len(s.Metrics) == 0 })
	return v, nil
}

// sectionOf is below 0 for what is not shown.
func sectionOf(metric string) int {
	for i, s := range sections {
		if slices.ContainsFunc(s.prefixes, func(p string) bool { return strings.HasPrefix(metric, p) }) {
			return i
		}
	}
	return -1
}

// verbs is a row for each verb that was ever answered.
func (l look) verbs(before look, span time.Duration) (all []verb) {
	decisions, took, degraded := l.family("limits_decisions_total"), l.family("limits_request_seconds"), l.family("limits_degraded_total")
	for _, s := range took.series {
		name := s.labels["verb"]
		results := decisions.where("verb", name)
		if results.total().value == 0 {
			continue
		}
		of := func(result string) string { return number(results.where("result", result).total().value) }
		recent := s.since(before.family(took.name).where("verb", name).total())
		v := verb{Name: name, Allowed: of("allowed"), Denied: of("denied"), Errors: of("error"),
			Degraded: number(degraded.where("verb", name).total().value), Rate: rate(recent.value, span), Half: "–", Most: "–"}
		if recent.value > 0 {
			v.Half, v.Most = seconds(recent.quantile(0.5)), seconds(recent.quantile(0.99))
		}
		all = append(all, v)
	}
	return all
}

// alarming are the series that call for somebody.
func (f family) alarming() family {
	outcomes, ok := alarms[f.name]
	f.series = slices.DeleteFunc(slices.Clone(f.series), func(s series) bool {
		return !ok || s.value == 0 || outcomes != nil && !slices.Contains(outcomes, s.labels["outcome"])
	})
	return f
}

// metric shows the series; of those with labels the ones that have a value.
func (f family) metric(before family, span time.Duration) metric {
	m := metric{Help: f.help, Name: f.name}
	for _, s := range f.series {
		if s.value == 0 && s.text != "" {
			continue
		}
		r := row{Labels: s.text, Value: value(f.name, s.value)}
		if f.counts {
			recent := s
			if i := slices.IndexFunc(before.series, func(b series) bool { return b.text == s.text }); i >= 0 {
				recent = s.since(before.series[i])
			}
			r.Rate = rate(recent.value, span)
			if s.buckets != nil && recent.value > 0 {
				unit := number
				if strings.HasSuffix(f.name, "_seconds") {
					unit = seconds
				}
				r.Value += fmt.Sprintf(", mean %s, 99 %% within %s", unit(recent.sum/recent.value), unit(recent.quantile(0.99)))
			}
		}
		m.Rows = append(m.Rows, r)
	}
	return m
}

// value words a value by the unit that the name of its metric ends with.
func value(name string, v float64) string {
	switch {
	case strings.HasSuffix(name, "_info"): // its labels say it all
		return ""
	case strings.HasSuffix(name, "_timestamp_seconds"), name == "process_start_time_seconds":
		if v == 0 || math.IsNaN(v) {
			return "never"
		}
		return time.UnixMilli(int64(v * 1000)).UTC().Format(time.DateTime)
	case strings.HasSuffix(name, "_bytes"):
		return number(v/(1<<20)) + " MiB"
	case name == "process_cpu_seconds_total":
		return number(v) + " s"
	default:
		return number(v)
	}
}

func rate(n float64, span time.Duration) string { return number(n / span.Seconds()) }

// number has three digits at least, and commas.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "not known"
	case math.IsInf(v, 0):
		return "more"
	case v != math.Trunc(v) && math.Abs(v) < 100:
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	s := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func seconds(v float64) string {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return number(v)
	}
	return time.Duration(v * 1e9).Round(time.Microsecond).String()
}
