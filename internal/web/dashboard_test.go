package web

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv/browser"
)

// browse returns the text of the page: cells separated by one space, one line for each row.
func browse(t *testing.T, d *dashboard) string {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	d.ServeHTTP(w, r)
	if w.Code != 200 || w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("%d %s %s", w.Code, w.Header().Get("Content-Type"), w.Body)
	}
	policy := w.Header().Get("Content-Security-Policy")
	for _, element := range []string{"style", "script"} {
		content := regexp.MustCompile(`(?s)<` + element + `>(.*)</` + element + `>`).FindStringSubmatch(w.Body.String())
		sum := sha256.Sum256([]byte(content[1]))
		want := element + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'" // a browser ignores any other
		if !strings.HasPrefix(policy, "default-src 'none'") || !strings.Contains(policy, "; "+want) {
			t.Errorf("policy %q lacks %s", policy, want)
		}
	}
	if w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("Vary") != "Accept" {
		t.Errorf("headers %v", w.Header())
	}
	text := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(w.Body.String(), " ")
	return regexp.MustCompile(`[ \t]+`).ReplaceAllString(text, " ")
}

func newTestDashboard(t *testing.T, r readiness) (*dashboard, *Metrics) {
	t.Helper()
	reg := prometheus.NewRegistry()
	d, err := newDashboard(reg, func(context.Context) readiness { return r })
	if err != nil {
		t.Fatal(err)
	}
	return d, NewMetrics(reg)
}

func TestDashboardShowsAnswersAndLatency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, m := newTestDashboard(t, readiness{Ready: true, Checks: map[string]string{"nats": "ok"}})
		m.SetVersion("1.2.3")
		if page := browse(t, d); !strings.Contains(page, "Limits 1.2.3 ready") || !strings.Contains(page, "nats: ok") ||
			!strings.Contains(page, "None since this process began.") {
			t.Error(page)
		}
		time.Sleep(10 * time.Second)
		for range 2000 {
			m.Decided(engine.Consume, "allowed", "sliding_window", false, time.Millisecond)
		}
		m.Decided(engine.Consume, "denied", "token_bucket", true, 2*time.Second)
		m.Wrote(3, 2, 2*time.Millisecond)
		page := browse(t, d)
		for _, want := range []string{
			" consume 2,000 1 0 1 200 1ms 1ms ",
			" Time of one transaction. limits_store_seconds 1, mean 2ms, 99 % within 3.2ms 0.1/s ",
			" Answers given without the store. limits_degraded_total consume 1 0.1/s ",
			"of the last 10s",
		} {
			if !strings.Contains(page, want) {
				t.Errorf("no %q in %s", want, page)
			}
		}
		// Rates do not include what happened before the last minute.
		time.Sleep(2 * time.Minute)
		browse(t, d)
		time.Sleep(5 * time.Second)
		if page := browse(t, d); !strings.Contains(page, " consume 2,000 1 0 1 0 – – ") {
			t.Error(page)
		}
	})
}

func TestDashboardShowsWhyNotReady(t *testing.T) {
	t.Parallel()
	d, _ := newTestDashboard(t, readiness{Checks: map[string]string{"store": "dial <script>: refused"}})
	page := browse(t, d)
	if !strings.Contains(page, "Limits: not ready") || !strings.Contains(page, "store: dial &lt;script&gt;: refused") {
		t.Error(page)
	}
}

func TestDashboardHighlightsProblems(t *testing.T) {
	t.Parallel()
	d, m := newTestDashboard(t, readiness{Ready: true})
	fails := errors.New("refused")
	m.WatchStore(func(context.Context) error { return fails })
	a := m.WatchAlerts(func(context.Context) (map[string]int64, error) { return nil, nil }, noChannels)
	a.DeliveryTried("<b>hook", "sent", time.Millisecond)
	page := browse(t, d)
	if _, first, _ := strings.Cut(page, "Look at this first"); !strings.Contains(first, "limits_store_failing 1 ") ||
		strings.Contains(first[:strings.Index(first, "Answers")], "deliver") {
		t.Error(page)
	}
	if !strings.Contains(page, "&lt;b&gt;hook, sent 1 ") {
		t.Error(page)
	}
	fails = nil
	d.snapshots = nil
	if page := browse(t, d); strings.Contains(page, "Look at this first") {
		t.Error(page)
	}
	a.DeliveryTried("hook", "dead", time.Millisecond)
	d.snapshots = nil
	if _, first, _ := strings.Cut(browse(t, d), "Look at this first"); !strings.Contains(first, "hook, dead 1 ") {
		t.Error(first)
	}
}

// TestDashboardRatesCountFromTheStart until there is an earlier snapshot.
func TestDashboardRatesCountFromTheStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, m := newTestDashboard(t, readiness{Ready: true})
		time.Sleep(10 * time.Second)
		for range 30 {
			m.Decided(engine.Check, "denied", "", true, time.Hour)
		}
		m.Decided(engine.Consume, "error", "", false, time.Millisecond)
		page := browse(t, d)
		for _, want := range []string{" check 0 30 0 30 3 more more ", " consume 0 0 1 0 0.1 1ms 1ms ", "of the last 10s"} {
			if !strings.Contains(page, want) {
				t.Errorf("no %q in %s", want, page)
			}
		}
	})
}

// TestDashboardDoesNotChangeItsSnapshots: each page shows the same until there is a new snapshot.
func TestDashboardDoesNotChangeItsSnapshots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, m := newTestDashboard(t, readiness{Ready: true})
		pages := map[string]bool{}
		for range 2 {
			m.Decided(engine.Consume, "allowed", "", false, time.Millisecond)
			m.Wrote(3, 2, time.Millisecond)
			clear(pages)
			for range 3 {
				pages[browse(t, d)] = true
			}
			time.Sleep(10 * time.Second)
		}
		if len(pages) != 1 {
			t.Errorf("%d different pages", len(pages))
		}
	})
}

// TestDashboardShowsMetricsThatCount: what has labels and is 0 would only hide the others. A value that is always 1 says nothing.
func TestDashboardShowsMetricsThatCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, m := newTestDashboard(t, readiness{Ready: true})
		m.WatchQueue(func() int { return 0 })
		m.WatchPolicies(func() (string, float64, int64) { return "ab12", 86400, 0 })
		m.StoreFailed(engine.ErrConflict)
		m.Wrote(3, 2, time.Millisecond)
		page := browse(t, d)
		for want, shown := range map[string]bool{
			" limits_queue_depth 0 ": true, " limits_policies_info ab12 \n": true, " limits_policies_loaded_timestamp_seconds 1970-01-02 00:00:00 ": true,
			" limits_store_errors_total conflict 1 ": true, " commit_unknown ": false, " limits_batch_requests 1, mean 3, 99 % within 4 ": true,
			"not known": false, // at the very start no time has passed
		} {
			if strings.Contains(page, want) != shown {
				t.Errorf("%q is shown: %v\n%s", want, !shown, page)
			}
		}
	})
}

// TestDashboardSnapshotIsCachedForASecond, however many people load the page: a snapshot calls the
// store.
func TestDashboardSnapshotIsCachedForASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, m := newTestDashboard(t, readiness{Ready: true})
		asked := 0
		m.WatchStore(func(context.Context) error { asked++; return nil })
		for range 300 {
			browse(t, d)
			time.Sleep(500 * time.Millisecond)
		}
		if asked != 150 || len(d.snapshots) > 61 {
			t.Errorf("asked %d times in 150 s, keeps %d snapshots", asked, len(d.snapshots))
		}
	})
}

// TestDashboardRequestsShareSnapshotWhileStoreHangs: requests share one snapshot, and a client
// that has gone holds up none of the others.
func TestDashboardRequestsShareSnapshotWhileStoreHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, m := newTestDashboard(t, readiness{Ready: true})
		m.WatchStore(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		m.WatchBacklog(func(ctx context.Context) (int64, error) { <-ctx.Done(); return 0, ctx.Err() })
		gone, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, _, err := d.latest(gone)
			left <- err
		}()
		var all sync.WaitGroup
		began := time.Now()
		for range 10 {
			all.Go(func() { browse(t, d) })
		}
		time.Sleep(time.Millisecond)
		if leave(); !errors.Is(<-left, context.Canceled) || time.Since(began) > time.Millisecond {
			t.Error("one that has gone waits")
		}
		if all.Wait(); time.Since(began) > 2*time.Second || len(d.snapshots) != 1 {
			t.Errorf("it took %s and %d snapshots", time.Since(began), len(d.snapshots))
		}
	})
}

// TestTheDashboardHasEveryMetric, and highlights those on which docs/operations.md recommends to alert.
func TestTheDashboardHasEveryMetric(t *testing.T) {
	t.Parallel()
	for name := range registered().seen {
		if strings.HasPrefix(name, "limits_") && name != "limits_build_info" && sectionOf(name) < 0 {
			t.Errorf("%s is in no section", name)
		}
	}
	docs, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(limits_[a-z_]+).*\\*\\*alert on").FindAllSubmatch(docs, -1) {
		want = append(want, string(row[1]))
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(alarms)); !slices.Equal(got, want) {
		t.Errorf("points at %q, docs/operations.md at %q", got, want)
	}
}

func TestNumbersAreHumanReadable(t *testing.T) {
	t.Parallel()
	halves := series{value: 2, buckets: []bucket{{1, 1}, {5, 2}}}
	for _, c := range []struct{ got, want string }{
		{number(0), "0"}, {number(7), "7"}, {number(0.12345), "0.123"}, {number(123.4), "123"}, {number(1234567), "1,234,567"},
		{number(-1234), "-1,234"}, {number(-123), "-123"}, {number(99.5), "99.5"}, {number(999.6), "1,000"},
		{number(math.NaN()), "not known"}, {number(math.Inf(1)), "more"}, {number(halves.quantile(0.5)), "1"}, {number(halves.quantile(0.6)), "5"}, {value("x_bytes", 1<<20), "1 MiB"},
		{value("x_timestamp_seconds", 0), "never"}, {value("x_timestamp_seconds", 86400), "1970-01-02 00:00:00"},
		{seconds(0.00025), "250µs"}, {seconds(2.5), "2.5s"},
		{rate(30, time.Minute), "0.5"},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
}

// TestDashboardFitsEveryScreen: what is wider, such as a long name of a rule, scrolls inside its section, and the page does not. The
// checksum of a file is cut, because in full it would leave no room for the values beside it.
func TestDashboardFitsEveryScreen(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789abcdef", 4)
	d, m := newTestDashboard(t, readiness{Checks: map[string]string{"store": long + long}})
	m.Decided(engine.Consume, "allowed", "sliding_window", false, time.Millisecond)
	m.WatchPolicies(func() (string, float64, int64) { return long, 86400, 0 })
	m.WatchAlerts(func(context.Context) (map[string]int64, error) { return nil, nil }, noChannels).DeliveryTried(long, "sent", time.Millisecond)
	site := httptest.NewServer(d)
	t.Cleanup(site.Close)
	b := browser.Open(t, site.URL)
	for _, width := range []int64{360, 500, 800, 1280} {
		b.Do("change the width", chromedp.EmulateViewport(width, 800))
		if wide := browser.Get[int64](b, "document.documentElement.scrollWidth"); wide > width {
			t.Errorf("the page is %d wide on a screen of %d", wide, width)
		}
	}
	page := browse(t, d)
	if !strings.Contains(page, " limits_policies_info "+long[:12]+" ") || !strings.Contains(page, " "+long+", sent 1 ") {
		t.Errorf("want the checksum cut and the name of the channel in full: %s", page)
	}
	b.WantNoComplaint()
}

// TestDashboardComesBackAfterARestart of the limiter, to where it was scrolled. Meanwhile it says that there is no answer, and since
// when.
func TestDashboardComesBackAfterARestart(t *testing.T) {
	t.Parallel()
	serve := func(addr, version string) *httptest.Server {
		d, m := newTestDashboard(t, readiness{Ready: true})
		m.SetVersion(version)
		m.Decided(engine.Consume, "allowed", "sliding_window", false, time.Millisecond)
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		site := httptest.NewUnstartedServer(d)
		site.Listener.Close()
		site.Listener = listener
		site.Start()
		t.Cleanup(site.Close)
		return site
	}
	first := serve("127.0.0.1:0", "1.0.0")
	b := browser.Open(t, first.URL)
	b.Do("scroll", browser.Shows("h1", "Limits 1.0.0 ready"), chromedp.EmulateViewport(360, 200),
		browser.Until(`(scrollTo(0, 150), document.querySelector("#answers").scrollLeft = 40, scrollY === 150)`))
	b.WantNoComplaint()
	first.Close()
	b.Do("read that there is no answer",
		browser.Until(`/^No answer since \d\d:\d\d:\d\d UTC/.test(document.querySelector("#outage").textContent)`),
		browser.Shows("h1", "Limits 1.0.0"), browser.Until(`document.title === "Limits: no answer"`))
	serve(first.Listener.Addr().String(), "2.0.0")
	b.Do("see it come back", browser.Shows("h1", "Limits 2.0.0 ready"),
		browser.Until(`document.querySelector("#outage").textContent === ""`), browser.Until(`document.title === "Limits"`))
	down := browser.Get[float64](b, "scrollY")
	right := browser.Get[float64](b, `document.querySelector("#answers").scrollLeft`)
	if down != 150 || right != 40 {
		t.Errorf("scrolled %v down, and the table %v to the right; want 150 and 40, as before", down, right)
	}
}

// TestDashboardReportsUnreadableMetrics, instead of an empty page.
func TestDashboardReportsUnreadableMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	reg.MustRegister(broken{})
	d, err := newDashboard(reg, func(context.Context) readiness { return readiness{Ready: true} })
	if err != nil {
		t.Fatal(err)
	}
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Accept", "text/html")
	d.ServeHTTP(w, r)
	if w.Code != 500 || !strings.HasPrefix(w.Body.String(), "read the metrics: ") || !strings.Contains(w.Body.String(), "no number") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// broken is a metric that cannot be read.
type broken struct{}

func (broken) Describe(c chan<- *prometheus.Desc) { c <- prometheus.NewDesc("broken", "", nil, nil) }

func (broken) Collect(c chan<- prometheus.Metric) {
	c <- prometheus.NewInvalidMetric(prometheus.NewDesc("broken", "", nil, nil), errors.New("no number"))
}
