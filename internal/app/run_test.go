package app

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds every wait. It is long, because a slow machine must not fail these tests.
const patience = 60 * time.Second

// options returns options of a limiter that needs no servers, on free ports.
func options(t *testing.T) Options {
	return Options{
		NATSListen: "127.0.0.1:0", DataDir: filepath.Join(t.TempDir(), "data"), HTTPAddr: "127.0.0.1:0",
		Source: "urn:limits:test", WarningThreshold: 0.1, UsageKeys: 1000,
	}
}

// watcher is a log handler that sends the ready line, and whose lines can be waited for.
type watcher struct {
	ready chan map[string]string
	// at has the attributes of the ready line, once a test has waited for it.
	at    map[string]string
	mu    sync.Mutex
	lines strings.Builder
	more  chan struct{} // closed with the next line
}

func newWatcher() *watcher {
	return &watcher{ready: make(chan map[string]string, 1), more: make(chan struct{})}
}

// await waits until a text is in the log.
func (w *watcher) await(t *testing.T, text string) {
	t.Helper()
	for end := time.After(patience); ; {
		w.mu.Lock()
		more, found := w.more, strings.Contains(w.lines.String(), text)
		w.mu.Unlock()
		if found {
			return
		}
		select {
		case <-more:
		case <-end:
			t.Fatalf("no %q after %s\n%s", text, patience, w)
		}
	}
}

func (w *watcher) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (w *watcher) WithAttrs([]slog.Attr) slog.Handler               { return w }
func (w *watcher) WithGroup(string) slog.Handler                    { return w }

func (w *watcher) Handle(_ context.Context, r slog.Record) error {
	attrs := map[string]string{}
	r.Attrs(func(a slog.Attr) bool {
		attrs[a.Key] = a.Value.String()
		return true
	})
	w.mu.Lock()
	fmt.Fprintln(&w.lines, r.Level, r.Message, attrs)
	close(w.more)
	w.more = make(chan struct{})
	w.mu.Unlock()
	if r.Message == "ready" {
		w.ready <- attrs
	}
	return nil
}

func (w *watcher) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lines.String()
}

// TestRunLeavesNothingBehind: a limiter that was used and stopped leaves no goroutine, because a program that embeds the package
// may start another.
func TestRunLeavesNothingBehind(t *testing.T) {
	for name, set := range map[string]func(t *testing.T, o *Options){
		"everything inside": func(*testing.T, *Options) {},
		"a worker": func(t *testing.T, o *Options) {
			// A server in this process would start goroutines of its own for the stream that the worker makes.
			o.DatabaseURL, o.NATSURL = testenv.Postgres(t), testenv.NATSServer(t).URL
			o.Alerter = "on" // and all that an alerter does
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			set(t, &o)
			before := goleak.IgnoreCurrent()
			for range 2 { // the second finds the first one's files and stream
				runOnce(t, o)
			}
			goleak.VerifyNone(t, before)
		})
	}
}

// runOnce starts a limiter, uses all of its parts, and stops it.
func runOnce(t *testing.T, o Options) {
	t.Helper()
	s := startOne(t, o, Run)
	s.use(t)
	if err := s.stopOne(t); err != nil {
		t.Errorf("run: %v\n%s", err, s.log)
	}
	if !strings.HasSuffix(s.log.String(), "INFO stopped map[]\n") { // a log that ends anywhere else is that of a crash
		t.Errorf("the log does not end with the stop:\n%s", s.log)
	}
}

// use sends requests of all kinds, until one is denied, so that there are events.
func (s *started) use(t *testing.T) {
	t.Helper()
	nc, err := nats.Connect(s.log.at["nats"])
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for _, r := range []struct{ subject, body string }{
		{limits.SubjectConsume, `{"key":"k","limit":2,"window":"1h","id":"a"}`},
		{limits.SubjectConsume, `{"key":"k","limit":2,"window":"1h","cost":2}`},
		{limits.SubjectRecord, `{"key":"k","limit":2,"window":"1h","cost":2}`},
		{limits.SubjectCheck, `{"key":"k","limit":2,"window":"1h"}`},
		{limits.SubjectRefund, `{"key":"k","limit":2,"window":"1h"}`},
		{limits.SubjectStatus, `{"key":"k"}`},
		{limits.SubjectList, `{}`},
		{limits.SubjectReset, `{"key":"k"}`},
		{limits.SubjectJobsRun, `{"job":"expire"}`},
	} {
		msg, err := nc.Request(r.subject, []byte(r.body), patience)
		if err != nil || msg.Header.Get("Nats-Service-Error-Code") != "" {
			t.Errorf("%s %s: %+v %v", r.subject, r.body, msg, err)
		}
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	for _, path := range []string{"/readyz", "/metrics"} {
		// Keep the connection open, so that the limiter must close it.
		resp, err := (&http.Client{Transport: transport, Timeout: patience}).Get("http://" + s.log.at["http"] + path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}

func TestFailedStartLeavesNothingBehind(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, set := range map[string]func(o *Options){
		"the HTTP port is taken":  func(o *Options) { o.HTTPAddr = taken.Addr().String() },
		"the NATS port is taken":  func(o *Options) { o.NATSListen = taken.Addr().String() },
		"the source is not a URI": func(o *Options) { o.Source = "%" },
		"on-error is unknown":     func(o *Options) { o.OnError = "perhaps" },
		"the threshold is NaN":    func(o *Options) { o.WarningThreshold = math.NaN() },
		"the threshold is wrong":  func(o *Options) { o.WarningThreshold = 2 },
		"too few keys":            func(o *Options) { o.UsageKeys = -1 },
		"too many keys":           func(o *Options) { o.UsageKeys = maxUsageKeys + 1 },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			set(&o)
			before := goleak.IgnoreCurrent()
			log := newWatcher()
			// The timeout ends it if it starts after all.
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := Run(ctx, o, slog.New(log)); err == nil {
				t.Errorf("no error\n%s", log)
			}
			goleak.VerifyNone(t, before)
		})
	}
}

// TestWaitingStartEndsWithItsContext: a limiter that waits for its server ends when its context does, and leaves nothing behind.
func TestWaitingStartEndsWithItsContext(t *testing.T) {
	nobody := freeAddr(t)
	for name, set := range map[string]func(o *Options){
		"nats":     func(o *Options) { o.NATSURL = "nats://" + nobody },
		"postgres": func(o *Options) { o.DatabaseURL = "postgres://u:p@" + nobody + "/limits" },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			set(&o)
			before := goleak.IgnoreCurrent()
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			log, begin := newWatcher(), time.Now()
			if err := Run(ctx, o, slog.New(log)); err == nil || ctx.Err() == nil {
				t.Errorf("%v before it was told to stop\n%s", err, log)
			}
			if took := time.Since(begin); took > startTimeout/2 {
				t.Errorf("ended after %s", took)
			}
			goleak.VerifyNone(t, before)
		})
	}
}

// TestStartTimeoutNamesServerAndSetting: if the server hangs, the last attempt ends with the start's deadline, whose error alone
// names neither the address nor the setting.
func TestStartTimeoutNamesServerAndSetting(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the system accepts, and nobody says anything
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	address := silent.Addr().String()
	l := &limiter{log: slog.New(newWatcher()), Options: Options{DatabaseURL: "postgres://u:secret@" + address + "/limits?sslmode=disable&connect_timeout=1"}}
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	_, err = l.openPostgres(ctx)
	if err == nil || !strings.Contains(err.Error(), address) || !strings.Contains(err.Error(), "DATABASE_URL") || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

func TestNATSTokenIsNotLogged(t *testing.T) {
	o := options(t)
	addr := testenv.NATSConfig(t, "authorization { token: s3cret }\njetstream {}").Addr().String()
	o.NATSURL = "nats://s3cret@" + addr
	if log := running(t, Run, o).log; log.at["nats"] != "nats://***@"+addr || strings.Contains(log.String(), "s3cret") {
		t.Error(log)
	}
}

// TestNATSURLOverridesNATSListen: if NATS_URL and NATS_LISTEN are both set, the log says which counts. NATS_URL may have
// been meant for the client verbs.
func TestNATSURLOverridesNATSListen(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.NATSURL = testenv.NATS(t).ClientURL()
	for listen, warnings := range map[string]int{"127.0.0.1:0": 1, bus.DefaultListen: 0} {
		t.Run(listen, func(t *testing.T) {
			o.NATSListen = listen
			log := running(t, Run, o).log.String()
			if n := strings.Count(log, "--nats-listen (NATS_LISTEN) is ignored"); n != warnings {
				t.Errorf("%d warnings; want %d\n%s", n, warnings, log)
			}
		})
	}
}

// TestEmbeddedServerIgnoresNATSCredentials: settings for other NATS servers in the environment do not fail a start.
func TestEmbeddedServerIgnoresNATSCredentials(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	o := options(t)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	o.NATSTLSCA, o.NATSCreds = writeFile(t, string(ca)), "nobody.creds"
	log := running(t, Run, o).log.String()
	if n := strings.Count(log, "settings for --nats-url are ignored"); n != 1 ||
		!strings.Contains(log, "[settings:--nats-creds (NATS_CREDS), --nats-tls-ca (NATS_TLS_CA)]") {
		t.Errorf("%d warnings\n%s", n, log)
	}
}
