package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func start(t *testing.T, change ...func(*Config)) *Server {
	t.Helper()
	cfg := Config{Addr: "127.0.0.1:0", Registry: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
		Schemas: fstest.MapFS{
			"events/a.v1.json": {Data: []byte(`{"title":"a"}`)},
			"asyncapi.yaml":    {Data: []byte("asyncapi: 3.0.0\n")},
			"embed.go":         {Data: []byte("package schemas")},
		}}
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func get(t *testing.T, s *Server, path string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+s.Addr()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func TestPages(t *testing.T) {
	s := start(t)
	for _, c := range []struct {
		path, kind, has string
		status          int
	}{
		{"/livez", "text/plain; charset=utf-8", "ok\n", 200},
		{"/readyz", "application/json", `{"ready":true,"checks":{}}`, 200},
		{"/", "text/plain; charset=utf-8", "/metrics", 200}, // curl; a browser gets the dashboard
		{"/schemas/", "text/plain; charset=utf-8", "/schemas/events/a.v1.json\n", 200},
		{"/schemas/events/a.v1.json", "application/schema+json", `{"title":"a"}`, 200},
		{"/schemas/asyncapi.yaml", "application/yaml", "asyncapi", 200},
		{"/schemas/embed.go", "text/plain; charset=utf-8", "not found", 404},
		{"/schemas/events", "text/plain; charset=utf-8", "not found", 404},
		{"/nothing", "text/plain; charset=utf-8", "not found", 404},
	} {
		resp, body := get(t, s, c.path)
		if resp.StatusCode != c.status || resp.Header.Get("Content-Type") != c.kind || !strings.Contains(body, c.has) {
			t.Errorf("%s: %d %s %s", c.path, resp.StatusCode, resp.Header.Get("Content-Type"), body)
		}
		if resp.Header.Get("X-Content-Type-Options") != "nosniff" || c.path == "/readyz" && resp.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", c.path, resp.Header)
		}
	}
}

func TestSchemasAreCached(t *testing.T) {
	s := start(t)
	resp, _ := get(t, s, "/schemas/events/a.v1.json")
	if resp.Header.Get("Cache-Control") != "public, max-age=3600" || resp.Header.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("headers %v", resp.Header) // tools in browsers use the schemas
	}
	again, body := get(t, s, "/schemas/events/a.v1.json", "If-None-Match", resp.Header.Get("ETag"))
	if again.StatusCode != http.StatusNotModified || body != "" {
		t.Errorf("%d %s", again.StatusCode, body)
	}
}

func TestReadyzGivesReasons(t *testing.T) {
	s := start(t, func(c *Config) {
		c.Ready = func(context.Context) map[string]error {
			return map[string]error{"nats": nil, "store": errors.New("dial tcp: refused")}
		}
	})
	resp, body := get(t, s, "/readyz")
	if resp.StatusCode != 503 || body != `{"ready":false,"checks":{"nats":"ok","store":"dial tcp: refused"}}`+"\n" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// TestReadinessIsCheckedOnceAtATime: concurrent requests share one check, because each check takes a connection to the store, and
// anyone who reaches the port may ask. A later request gets a check of its own.
func TestReadinessIsCheckedOnceAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var checks atomic.Int32
		goOn := make(chan struct{})
		s, err := New(Config{Registry: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
			Ready: func(context.Context) map[string]error {
				checks.Add(1)
				<-goOn
				return map[string]error{"store": nil}
			}})
		if err != nil {
			t.Fatal(err)
		}
		for round := range int32(2) {
			var all sync.WaitGroup
			for range 16 {
				all.Go(func() {
					w := httptest.NewRecorder()
					s.http.Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
					if body := w.Body.String(); w.Code != 200 || body != `{"ready":true,"checks":{"store":"ok"}}`+"\n" {
						t.Errorf("%d %s", w.Code, body)
					}
				})
			}
			synctest.Wait() // all of them wait, in the check or for it
			if n := checks.Load(); n != round+1 {
				t.Errorf("%d checks for %d times that 16 ask at once", n, round+1)
			}
			close(goOn)
			all.Wait()
			goOn = make(chan struct{})
		}
	})
}

// TestHangingCheckIsBounded: each check has 2 s, and a client that has gone waits no longer.
func TestHangingCheckIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{Registry: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
			Ready: func(ctx context.Context) map[string]error {
				<-ctx.Done()
				return map[string]error{"store": ctx.Err()}
			}})
		if err != nil {
			t.Fatal(err)
		}
		for patience, want := range map[time.Duration]string{
			time.Hour:   `{"ready":false,"checks":{"store":"context deadline exceeded"}}`,
			time.Second: `{"ready":false,"checks":{"worker":"context deadline exceeded"}}`,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			w, began := httptest.NewRecorder(), time.Now()
			s.http.Handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/readyz", nil))
			cancel()
			if took := time.Since(began); w.Code != 503 || strings.TrimSpace(w.Body.String()) != want || took != min(patience, 2*time.Second) {
				t.Errorf("%d %s after %s; want %s", w.Code, w.Body, took, want)
			}
			synctest.Wait()
			time.Sleep(2 * time.Second) // the check of the one that has gone ends
		}
	})
}

// pipes is a listener whose clients are pipes: what is written waits until it is read.
type pipes struct {
	net.Listener
	clients chan net.Conn
}

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p.clients
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p pipes) Close() error { close(p.clients); return nil }

// TestShutdownCutsOffClientsThatDoNotRead soon, and that is no error: nothing of the limiter's is lost.
func TestShutdownCutsOffClientsThatDoNotRead(t *testing.T) {
	t.Parallel()
	for patience, want := range map[time.Duration]time.Duration{10 * time.Second: 2 * time.Second, time.Second: time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			s, err := New(Config{Registry: prometheus.NewRegistry(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			l := pipes{clients: make(chan net.Conn)}
			s.serve(l)
			client, conn := net.Pipe()
			l.clients <- conn
			if _, err := client.Write([]byte("GET /livez HTTP/1.1\r\nHost: limiter\r\n\r\n")); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the server writes its answer
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			began := time.Now()
			if err := s.Shutdown(ctx); err != nil || time.Since(began) != want {
				t.Errorf("%v after %s, want %s", err, time.Since(began), want)
			}
			if !strings.Contains(log.String(), "level=WARN msg=\"HTTP connections were cut off") {
				t.Errorf("the log says %q", log.String())
			}
			if _, err := client.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("the client's read ended with %v", err)
			}
		})
	}
}

// TestShutdownFreesTheAddress, even if the server has not begun to serve.
func TestShutdownFreesTheAddress(t *testing.T) {
	t.Parallel()
	for range 20 {
		s, err := New(Config{Addr: "127.0.0.1:0", Registry: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			err = s.Listen()
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := s.listener.(*net.TCPListener).SetDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("it still listens: %v", err)
		}
	}
}

func TestDrainingIsNotReadyButAlive(t *testing.T) {
	s := start(t)
	s.SetDraining()
	if resp, body := get(t, s, "/readyz"); resp.StatusCode != 503 || !strings.Contains(body, "draining") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if resp, _ := get(t, s, "/livez"); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}

func TestListenErrorNamesBusyAddress(t *testing.T) {
	s := start(t)
	other, err := New(Config{Addr: s.Addr(), Registry: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Listen(); err == nil || !strings.Contains(err.Error(), s.Addr()) || !strings.Contains(err.Error(), "--http") {
		t.Error(err)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	m.SetVersion("1.2.3")
	m.WatchQueue(func() int { return 7 })
	m.WatchLeased(func() int64 { return 11 })
	m.WatchBacklog(func(context.Context) (int64, error) { return 9, nil })
	m.Decided(engine.Consume, "allowed", "sliding_window", false, time.Millisecond)
	m.Decided(engine.Check, "denied", "token_bucket", true, time.Millisecond)
	m.Decided(engine.Record, "allowed", "fixed_window", false, time.Millisecond)
	m.Decided(engine.Refund, "error", "", false, time.Millisecond)
	m.Decided(engine.Refund+1, "allowed", "", false, time.Millisecond)
	m.Wrote(3, 2, time.Millisecond)
	m.StoreFailed(fmt.Errorf("update: %w", engine.ErrConflict))
	m.StoreFailed(errors.New("no route to host"))
	m.StoreFailed(fmt.Errorf("commit: %w: %w", engine.ErrCommitUnknown, context.DeadlineExceeded))
	m.StoreFailed(fmt.Errorf("begin: %w", context.DeadlineExceeded))
	m.StoreFailed(fmt.Errorf("read: %w", engine.ErrCorrupt))
	m.WatchDeciding(func() bool { return true })

	s := start(t, func(c *Config) { c.Registry = reg })
	_, body := get(t, s, "/metrics")
	for _, want := range []string{
		`limits_decisions_total{algorithm="sliding_window",result="allowed",verb="consume"} 1`,
		`limits_decisions_total{algorithm="token_bucket",result="denied",verb="check"} 1`,
		`limits_decisions_total{algorithm="fixed_window",result="allowed",verb="record"} 1`,
		`limits_decisions_total{algorithm="none",result="error",verb="refund"} 1`,
		`limits_request_seconds_bucket{verb="consume",le="0.001"} 1`,
		`limits_degraded_total{verb="check"} 1`,
		`limits_batch_requests_sum 3`, `limits_batch_counters_sum 2`, `limits_store_seconds_count 1`,
		`limits_store_errors_total{kind="conflict"} 1`, `limits_store_errors_total{kind="other"} 1`,
		`limits_store_errors_total{kind="commit_unknown"} 1`, `limits_store_errors_total{kind="timeout"} 1`,
		`limits_store_errors_total{kind="corrupt"} 1`, "\nlimits_deciding 1\n",
		`limits_queue_depth 7`, `limits_leased 11`, `limits_outbox_backlog 9`, `limits_build_info{version="1.2.3"} 1`,
		`go_goroutines`, `process_cpu_seconds_total`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s", want)
		}
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "limits_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

func TestDecidedDoesNotAllocate(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	if n := testing.AllocsPerRun(100, func() {
		m.Decided(engine.Consume, "allowed", "sliding_window", false, time.Millisecond)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestSampleIsReadRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads, fail := 0, error(nil)
		s := &sample{every: 5 * time.Second, read: func(context.Context) (int64, error) { reads++; return int64(reads), fail }}
		for range 10 {
			if v := s.value(); v != 1 {
				t.Fatal(v)
			}
		}
		time.Sleep(5 * time.Second)
		if v := s.value(); v != 2 {
			t.Error(v)
		}
		fail = errors.New("down")
		time.Sleep(5 * time.Second)
		if v := s.value(); !math.IsNaN(v) {
			t.Error(v)
		}
	})
}

// TestHangingStoreCountsAsFailing: the metric says so, and the scrape is not held up.
func TestHangingStoreCountsAsFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg, hangs := prometheus.NewRegistry(), true
		(&Metrics{reg: reg}).WatchStore(func(ctx context.Context) error {
			if hangs {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		for _, want := range []string{"1", "0"} {
			begin := time.Now()
			text := "# HELP limits_store_failing 1 while the store fails or cannot be reached, else 0.\n" +
				"# TYPE limits_store_failing gauge\nlimits_store_failing " + want + "\n"
			if err := testutil.GatherAndCompare(reg, strings.NewReader(text)); err != nil {
				t.Error(err)
			}
			if took := time.Since(begin); took > time.Second {
				t.Errorf("%v", took)
			}
			hangs = false
		}
	})
}

func TestWatchUsage(t *testing.T) {
	reg := prometheus.NewRegistry()
	NewMetrics(reg).WatchUsage(func() Losses { return Losses{1, 2, 3, 4} })
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			if strings.HasPrefix(f.GetName(), "limits_usage") {
				name := f.GetName()
				for _, l := range m.Label {
					name += " " + l.GetValue()
				}
				got[name] = m.Counter.GetValue()
			}
		}
	}
	want := map[string]float64{"limits_usage_other_total": 1, "limits_usage_dropped_total decisions": 2,
		"limits_usage_dropped_total requests": 3, "limits_usage_dropped_total malformed": 4}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
