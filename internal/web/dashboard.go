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
	// snapshotEvery is the least time between two snapshots of the metrics, however many people load the page.
	snapshotEvery = time.Second
	// rateSpan is how long snapshots are kept. Rates are computed since the oldest that is kept, or since the start of the
	// process if there is only one.
	rateSpan = time.Minute
	// shownOfHash is how much is shown of a SHA-256, the label of the metrics of files: enough to tell two files apart. In full
	// it is one word of 64 characters, which takes the room of the columns beside it.
	shownOfHash = 12
)

//go:embed dashboard.html
var dashboardHTML string

// dashboard is a page that shows the metrics and the readiness. It has no data that /metrics and /readyz lack, and no keys.
type dashboard struct {
	registry *prometheus.Registry
	ready    func(context.Context) readiness
	page     *template.Template
	csp      string // the Content-Security-Policy
	began    time.Time

	taking    singleflight.Group
	mu        sync.Mutex
	snapshots []snapshot // oldest first
}

func newDashboard(registry *prometheus.Registry, ready func(context.Context) readiness) (*dashboard, error) {
	page, err := template.New("dashboard").Parse(dashboardHTML)
	if err != nil {
		return nil, fmt.Errorf("read the dashboard: %w", err)
	}
	var written strings.Builder // not dashboardHTML: a template leaves out the comments of scripts
	if err := page.Execute(&written, view{}); err != nil {
		return nil, fmt.Errorf("write the dashboard: %w", err)
	}
	return &dashboard{registry: registry, ready: ready, page: page, began: time.Now(),
		csp: "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
			"style-src " + hashOf(written.String(), "style") + "; script-src " + hashOf(written.String(), "script")}, nil
}

// hashOf returns the source in a Content-Security-Policy that allows the one element of the page with the name.
func hashOf(page, element string) string {
	_, content, _ := strings.Cut(page, "<"+element+">")
	content, _, _ = strings.Cut(content, "</"+element+">")
	sum := sha256.Sum256([]byte(content))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
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
	h.Set("Content-Security-Policy", d.csp)
	h.Set("Cache-Control", "no-store")
	_ = d.page.Execute(w, v)
}

// snapshot is the values of all metrics; at is when they had been gathered.
type snapshot struct {
	at       time.Time
	families []family
}

// family is a metric with its series.
type family struct {
	name, help string
	counts     bool // a counter or a histogram
	series     []series
}

// series is a metric with one set of labels. The value of a histogram is the number of its observations.
type series struct {
	labels  map[string]string
	text    string // the labels as text
	value   float64
	sum     float64
	buckets []bucket
}

// bucket is the number of observations up to a bound.
type bucket struct {
	bound float64
	count uint64
}

// latest returns a snapshot that is at most snapshotEvery old, and the one since which rates are computed: the oldest that
// is kept, or an empty one of the start of the process if there is no other. Concurrent requests share one snapshot,
// because gathering takes seconds if the store hangs.
func (d *dashboard) latest(ctx context.Context) (now, before snapshot, err error) {
	taken := d.taking.DoChan("", func() (any, error) {
		if now, _ := d.ends(); time.Since(now.at) < snapshotEvery {
			return nil, nil
		}
		s, err := d.gather()
		if err == nil {
			d.keep(s)
		}
		return nil, err
	})
	select {
	case result := <-taken:
		now, before = d.ends()
		return now, before, result.Err
	case <-ctx.Done(): // the client has gone
		return now, before, ctx.Err()
	}
}

// ends returns the newest snapshot and the oldest. If there is only one, the oldest is an empty one of the start of the
// process.
func (d *dashboard) ends() (now, before snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.snapshots) == 0 {
		return now, before
	}
	now, before = d.snapshots[len(d.snapshots)-1], d.snapshots[0]
	if len(d.snapshots) == 1 {
		before = snapshot{at: d.began}
	}
	return now, before
}

func (d *dashboard) keep(added snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.snapshots = slices.DeleteFunc(d.snapshots, func(s snapshot) bool { return added.at.Sub(s.at) > rateSpan })
	d.snapshots = append(d.snapshots, added)
}

func (d *dashboard) gather() (snapshot, error) {
	gathered, err := d.registry.Gather()
	all := snapshot{at: time.Now(), families: []family{}}
	if err != nil {
		return all, err
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
			default: // summaries of the Go runtime are not shown
				continue
			}
			f.series = append(f.series, s)
		}
		all.families = append(all.families, f)
	}
	return all, nil
}

func (snap snapshot) family(name string) family {
	i := slices.IndexFunc(snap.families, func(f family) bool { return f.name == name })
	if i < 0 {
		return family{name: name}
	}
	return snap.families[i]
}

// where selects the series whose label has the value.
func (f family) where(label, value string) family {
	f.series = slices.DeleteFunc(slices.Clone(f.series), func(s series) bool { return s.labels[label] != value })
	return f
}

// total adds up the values of all series.
func (f family) total() (all float64) {
	for _, s := range f.series {
		all += s.value
	}
	return all
}

// like returns the series with the labels of s; an empty one if there is none.
func (f family) like(s series) series {
	i := slices.IndexFunc(f.series, func(other series) bool { return other.text == s.text })
	if i < 0 {
		return series{}
	}
	return f.series[i]
}

// since subtracts an earlier value.
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

// quantile returns the bound of the bucket in which the q-quantile lies; infinity after the last bucket.
func (s series) quantile(q float64) float64 {
	for _, b := range s.buckets {
		if float64(b.count) >= q*s.value {
			return b.bound
		}
	}
	return math.Inf(1)
}

// view is the data of the page.
type view struct {
	Version, At, Span string
	Ready             readiness
	Attention         []metric
	Verbs             []verb
	Sections          []section
}

type verb struct{ Name, Allowed, Denied, Errors, Degraded, Rate, Median, P99 string }

type section struct {
	Title   string
	Metrics []metric
}

// metric is a family with the rows that are shown.
type metric struct {
	Help, Name string
	Rows       []row
}

type row struct{ Labels, Value, Rate string }

// sections says where a metric is shown: in the first section that has a prefix of its name. The first section is the table
// of verbs.
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

// alarms are the metrics, but for times, on which docs/operations.md recommends to alert, with the outcomes that it names; nil for all.
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
	now, before, err := d.latest(ctx)
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
		earlier := before.family(f.name)
		if m := f.alarming().metric(earlier, span); len(m.Rows) > 0 {
			v.Attention = append(v.Attention, m)
		}
		if i := sectionOf(f.name); i > 0 {
			if m := f.metric(earlier, span); len(m.Rows) > 0 {
				v.Sections[i-1].Metrics = append(v.Sections[i-1].Metrics, m)
			}
		}
	}
	v.Sections = slices.DeleteFunc(v.Sections, func(s section) bool { return len(s.Metrics) == 0 })
	return v, nil
}

// sectionOf returns the index of a metric's section; -1 if it is not shown.
func sectionOf(metric string) int {
	for i, s := range sections {
		if slices.ContainsFunc(s.prefixes, func(p string) bool { return strings.HasPrefix(metric, p) }) {
			return i
		}
	}
	return -1
}

// verbs makes a row for each verb that was ever answered.
func (snap snapshot) verbs(before snapshot, span time.Duration) (all []verb) {
	decisions, took := snap.family("limits_decisions_total"), snap.family("limits_request_seconds")
	degraded := snap.family("limits_degraded_total")
	for _, s := range took.series {
		name := s.labels["verb"]
		results := decisions.where("verb", name)
		if results.total() == 0 {
			continue
		}
		of := func(result string) string { return number(results.where("result", result).total()) }
		recent := s.since(before.family(took.name).like(s))
		v := verb{Name: name, Allowed: of("allowed"), Denied: of("denied"), Errors: of("error"),
			Degraded: number(degraded.where("verb", name).total()), Rate: rate(recent.value, span), Median: "–", P99: "–"}
		if recent.value > 0 {
			v.Median, v.P99 = seconds(recent.quantile(0.5)), seconds(recent.quantile(0.99))
		}
		all = append(all, v)
	}
	return all
}

// alarming selects the series that need attention.
func (f family) alarming() family {
	outcomes, ok := alarms[f.name]
	f.series = slices.DeleteFunc(slices.Clone(f.series), func(s series) bool {
		return !ok || s.value == 0 || outcomes != nil && !slices.Contains(outcomes, s.labels["outcome"])
	})
	return f
}

// metric makes the rows of a family. It leaves out series that have labels and are 0.
func (f family) metric(before family, span time.Duration) metric {
	m := metric{Help: f.help, Name: f.name}
	for _, s := range f.series {
		if s.value == 0 && s.text != "" {
			continue
		}
		r := row{Labels: s.text, Value: value(f.name, s.value)}
		if strings.HasSuffix(f.name, "_info") {
			r.Labels = r.Labels[:min(len(r.Labels), shownOfHash)]
		}
		if f.counts {
			recent := s.since(before.like(s))
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

// value formats a value by the unit at the end of its metric's name.
func value(name string, v float64) string {
	switch {
	case strings.HasSuffix(name, "_info"): // the value is always 1
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

// number formats a number with three significant digits or more, and commas.
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
