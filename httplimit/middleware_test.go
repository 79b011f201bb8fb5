package httplimit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/httplimit"
	"github.com/seed503877ad/limits/internal/app/apptest"
	"github.com/seed503877ad/limits/internal/testenv"
)

// patient is a deadline that is long enough for a busy machine.
const patient = 30 * time.Second

func TestRequestOverLimitIsRefused(t *testing.T) {
	t.Parallel()
	denied := 0
	h := httplimit.Middleware(dial(t, natsURL), httplimit.Config{
		Limits: inline(t, 2, "1h"), Deadline: patient,
		OnDenied: func(_ *http.Request, reply *limits.Reply) {
			if denied++; reply.Allowed {
				t.Error("OnDenied got an allowed reply")
			}
		},
	})(hello)
	for i, want := range []struct {
		status              int
		remaining, retry    string
		contentType, inBody string
	}{
		{200, "1", "no", "text/plain", "hello"},
		{200, "0", "no", "text/plain", "hello"},
		{429, "0", "yes", "application/problem+json", `"violated-policies":["1h"]`},
	} {
		w := get(h)
		got := w.Header()
		if w.Code != want.status || got.Get("X-RateLimit-Remaining") != want.remaining || got.Get("X-RateLimit-Limit") != "2" ||
			(got.Get("Retry-After") != "") != (want.retry == "yes") {
			t.Errorf("request %d: status %d, headers %v, want %+v", i, w.Code, got, want)
		}
		if got.Get("RateLimit") == "" || got.Get("RateLimit-Policy") != `"1h";q=2;w=3600` {
			t.Errorf("request %d: headers %v", i, got)
		}
		if !strings.HasPrefix(got.Get("Content-Type"), want.contentType) && w.Code == 429 || !strings.Contains(w.Body.String(), want.inBody) {
			t.Errorf("request %d: %s %s", i, got.Get("Content-Type"), w.Body)
		}
	}
	if denied != 1 {
		t.Errorf("OnDenied was called %d times, want 1", denied)
	}
}

// Of a hundred concurrent requests through a real HTTP server, exactly as many pass as the limit allows.
func TestConcurrentRequestsPassExactlyTheLimit(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	server := httptest.NewServer(httplimit.Middleware(dial(t, natsURL), httplimit.Config{
		Limits: inline(t, 20, "1h"), Deadline: patient, FailClosed: true,
	})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran.Add(1) })))
	defer server.Close()
	var passed, refused atomic.Int64
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			resp, err := http.Get(server.URL)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			switch resp.StatusCode {
			case 200:
				passed.Add(1)
			case 429:
				refused.Add(1)
			}
		})
	}
	wg.Wait()
	if passed.Load() != 20 || refused.Load() != 80 || ran.Load() != 20 {
		t.Errorf("%d passed, %d refused, the handler ran %d times; want 20, 80, 20", passed.Load(), refused.Load(), ran.Load())
	}
}

func TestUnlimitedRequestsPass(t *testing.T) {
	t.Parallel()
	c := dial(t, natsURL)
	none := func(*http.Request) []limits.LimitSpec { return nil }
	exempt := func(r *http.Request) bool { return httplimit.Credential("X-API-Key")(r) == httplimit.SessionCredential }
	session := header("Authorization", "Bearer eyJhbGciOiJIUzI1NiJ9.e30.c2ln")
	for name, h := range map[string]http.Handler{
		"no limits":           httplimit.Middleware(c, httplimit.Config{Limits: none, FailClosed: true})(hello),
		"exempt":              httplimit.Middleware(c, httplimit.Config{Limits: inline(t, 1, "1h"), Exempt: exempt, FailClosed: true})(hello),
		"no policy matches":   httplimit.Middleware(c, httplimit.Config{Attributes: map[string]httplimit.Attribute{"path": httplimit.Path()}, FailClosed: true, Deadline: patient})(hello),
		"no name of a policy": httplimit.Middleware(c, httplimit.Config{Policy: httplimit.Header("X-Policy"), FailClosed: true})(hello),
		"nothing to match by": httplimit.Middleware(c, httplimit.Config{Attributes: map[string]httplimit.Attribute{"user": httplimit.Header("X-User")}, FailClosed: true, Deadline: patient})(hello),
	} {
		for range 2 {
			if w := get(h, session); w.Code != 200 || w.Header().Get("RateLimit") != "" || w.Header().Get("X-RateLimit-Limit") != "" {
				t.Errorf("%s: status %d, headers %v", name, w.Code, w.Header())
			}
		}
	}
}

// The attributes that the limiter receives.
func TestPolicyRequestAttributes(t *testing.T) {
	t.Parallel()
	url, requests := silentService(t, limits.SubjectConsume, `{"allowed":true,"limits":[]}`)
	mux := http.NewServeMux()
	mux.Handle("GET /things/{id}", httplimit.Middleware(dial(t, url), httplimit.Config{
		Policy: httplimit.Text("api"),
		Attributes: map[string]httplimit.Attribute{
			"user": httplimit.Header("X-User"), "path": httplimit.Path(), "route": httplimit.Route(),
			"method": httplimit.Method(), "thing": httplimit.PathValue("id"), "ip": httplimit.ClientIP(),
			"sort": httplimit.Query("sort"), "absent": httplimit.Header("X-Absent"),
			"who": httplimit.Or(httplimit.Header("X-Absent"), httplimit.Text("anonymous")),
		},
		Tier: httplimit.Header("X-Tier"), ID: httplimit.Header("X-Request-ID"),
		Cost: func(*http.Request) int64 { return 5 }, Deadline: patient, FailClosed: true,
	})(hello))
	w := get(mux, header("X-User", "7"), header("X-Tier", "pro"), header("X-Request-ID", "r-1"),
		func(r *http.Request) { r.URL.RawQuery = "sort=up" })
	want := `{"policy":"api","attributes":{"ip":"192.0.2.1","method":"GET","path":"/things/7","route":"GET /things/{id}",` +
		`"sort":"up","thing":"7","user":"7","who":"anonymous"},"tier":"pro","cost":5,"id":"r-1"}`
	if got := <-requests; got != want || w.Code != 200 {
		t.Errorf("status %d, sent\n%s, want\n%s", w.Code, got, want)
	}
}

// A request line may name a host and no path.
func TestAnEmptyPathIsTheRoot(t *testing.T) {
	t.Parallel()
	paths := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { paths <- httplimit.Path()(r) }))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET http://example.com HTTP/1.1\r\nHost: example.com\r\n\r\n")
	if got := <-paths; got != "/" {
		t.Errorf("path %q, want /", got)
	}
}

// However the path of a file is written, its route is the same, but its path is not. A path with an encoded slash is not cleaned,
// since that would move /files/x%2F..%2F..%2Fa out of /files/, which serves it.
func TestFileRouteIsNormalized(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/files/", http.StripPrefix("/files/", http.FileServer(http.Dir(folder))))
	for spelt, path := range map[string]string{
		"/files/a": "/files/a", "/files/%61": "/files/a", "/files/x%2F..%2Fa": "/files/x/../a", "/files/x%2F..%2F..%2Fa": "/files/x/../../a",
	} {
		r, w := httptest.NewRequest("GET", spelt, nil), httptest.NewRecorder()
		if got := httplimit.Path()(r); got != path {
			t.Errorf("%s: path %q, want %q", spelt, got, path)
		}
		if got := httplimit.RouteIn(mux)(r); got != "/files/" {
			t.Errorf("%s: route %q, want /files/", spelt, got)
		}
		if mux.ServeHTTP(w, r); w.Code != 200 {
			t.Errorf("%s: status %d, want the file", spelt, w.Code)
		}
	}
}

// silentService answers every request on subject with body, or not at all if body is empty. It returns the requests.
func silentService(t *testing.T, subject, body string) (url string, requests <-chan string) {
	t.Helper()
	url = testenv.NATS(t).ClientURL()
	nc := testenv.Connect(t, url)
	got := make(chan string, 16)
	_, err := nc.Subscribe(subject, func(m *nats.Msg) {
		got <- string(m.Data)
		if body != "" {
			_ = m.Respond([]byte(body))
		}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return url, got
}

// A request that the limiter cannot read must not pass because the middleware fails open.
func TestInvalidValuesAreRefusedWhenFailingOpen(t *testing.T) {
	t.Parallel()
	c := dial(t, natsURL)
	byUser := httplimit.Middleware(c, httplimit.Config{
		Attributes: map[string]httplimit.Attribute{"user": func(r *http.Request) string { return r.Header.Get("X-User") }}, Deadline: patient,
		OnError: func(*http.Request, error) {},
	})(hello)
	byKey := httplimit.Middleware(c, httplimit.Config{
		Limits: func(r *http.Request) []limits.LimitSpec {
			return []limits.LimitSpec{limits.Per("hostile:"+r.Header.Get("X-User"), 1, "1h").LimitSpec}
		},
		Deadline: patient, OnError: func(*http.Request, error) {},
	})(hello)
	for name, value := range map[string]string{
		"257 bytes":       strings.Repeat("a", 257),
		"past 16 KiB":     strings.Repeat("a", 16<<10+1),
		"past NATS's own": strings.Repeat("\x01", 2<<20),
		"CR and LF":       "7\r\nX-Admin: yes",
		"NUL":             "7\x00",
		"Latin-1":         "M\xfcller",
	} {
		for form, h := range map[string]http.Handler{"attribute": byUser, "key": byKey} {
			w := get(h, header("X-User", value))
			if w.Code != 400 || w.Header().Get("X-Admin") != "" || strings.Contains(w.Body.String(), value) {
				t.Errorf("%s as %s: status %d, headers %v, body %s", name, form, w.Code, w.Header(), w.Body)
			}
		}
	}
	if w := get(byUser, header("X-User", "Zoë <b>")); w.Code != 200 {
		t.Errorf("odd but printable: status %d: %s", w.Code, w.Body)
	}
}

// A client that goes away at once is charged like any other.
func TestDisconnectedClientIsStillCharged(t *testing.T) {
	t.Parallel()
	c := dial(t, natsURL)
	h := httplimit.Middleware(c, httplimit.Config{Limits: inline(t, 1, "1h"), Deadline: patient})(hello)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	leave := func(r *http.Request) { *r = *r.WithContext(gone) }
	if got := statuses(3, h, leave); got != "200 429 429" {
		t.Errorf("statuses %s, want 200 429 429", got)
	}
	if left := remaining(t, c, 1, "1h"); left != 0 {
		t.Errorf("remaining %d, want 0", left)
	}
}

// TestAnyCostIsBounded: what Cost returns comes from the request, such as the ContentLength -1 of an upload in chunks, and is no
// reason to refuse it.
func TestAnyCostIsBounded(t *testing.T) {
	t.Parallel()
	url, requests := silentService(t, limits.SubjectConsume, `{"allowed":true,"limits":[]}`)
	h := httplimit.Middleware(dial(t, url), httplimit.Config{Policy: httplimit.Text("api"), Deadline: patient, FailClosed: true,
		Cost: func(r *http.Request) int64 { return r.ContentLength }})(hello)
	for length, want := range map[int64]string{
		-1: `{"policy":"api"}`, 0: `{"policy":"api"}`, 7: `{"policy":"api","cost":7}`, limits.MaxAmount + 1: `{"policy":"api","cost":1000000000}`,
	} {
		w := get(h, func(r *http.Request) { r.ContentLength = length })
		if got := <-requests; got != want || w.Code != 200 {
			t.Errorf("%d bytes: status %d, asked %s, want %s", length, w.Code, got, want)
		}
	}
}

func TestIDChargesOnceAndConflictsOnReuse(t *testing.T) {
	t.Parallel()
	c := dial(t, natsURL)
	h := httplimit.Middleware(c, httplimit.Config{
		Limits: inline(t, 10, "1h"), ID: httplimit.Header("Idempotency-Key"), Deadline: patient,
		Cost:    func(r *http.Request) int64 { return int64(len(r.Header.Get("X-Cost"))) },
		OnError: func(*http.Request, error) {},
	})(hello)
	id := header("Idempotency-Key", key(t))
	if got := statuses(2, h, id, header("X-Cost", "11")); got != "200 200" {
		t.Errorf("statuses %s", got)
	}
	if w := get(h, id, header("X-Cost", "111")); w.Code != 409 {
		t.Errorf("another request with the id: status %d, want 409", w.Code)
	}
	if left := remaining(t, c, 10, "1h"); left != 8 {
		t.Errorf("remaining %d, want 8", left)
	}
}

func TestLimiterUnavailable(t *testing.T) {
	t.Parallel()
	url, stop, err := apptest.Start(apptest.Options(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, url)
	var failed error
	open := httplimit.Middleware(c, httplimit.Config{Limits: inline(t, 1, "1h"),
		OnError: func(_ *http.Request, err error) { failed = err }})(hello)
	closed := httplimit.Middleware(c, httplimit.Config{Limits: inline(t, 1, "1h"), FailClosed: true, FailStatus: 500,
		Body: httplimit.JSONError, OnError: func(*http.Request, error) {}})(hello)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	w := get(open)
	// The deadline is 50 ms; without one, the client waits DefaultTimeout.
	if took := time.Since(began); w.Code != 200 || w.Body.String() != "hello" || took >= limits.DefaultTimeout {
		t.Errorf("failing open: status %d after %v", w.Code, took)
	}
	// The connection may or may not have noticed already.
	if w.Header().Get("RateLimit") != "" || errors.Is(failed, httplimit.ErrNotCharged) || !errors.Is(failed, context.DeadlineExceeded) && !errors.Is(failed, nats.ErrDisconnected) {
		t.Errorf("failing open: headers %v, error %v", w.Header(), failed)
	}
	began = time.Now()
	w = get(closed)
	if got, want := w.Body.String(), `{"ok":false,"error":"Rate limit check failed"}`+"\n"; w.Code != 500 || got != want {
		t.Errorf("failing closed: status %d, body %s", w.Code, got)
	}
	if took := time.Since(began); took >= limits.DefaultTimeout || w.Header().Get("Retry-After") != "" {
		t.Errorf("failing closed: after %v, headers %v", took, w.Header())
	}
}

func TestLimiterNeverAnswers(t *testing.T) {
	t.Parallel()
	url, _ := silentService(t, limits.SubjectConsume, "")
	h := httplimit.Middleware(dial(t, url), httplimit.Config{Limits: inline(t, 1, "1h"), FailClosed: true,
		OnError: func(*http.Request, error) {}})(hello)
	if w := get(h); w.Code != 503 || !strings.Contains(w.Body.String(), `"type":"about:blank"`) {
		t.Errorf("status %d, body %s", w.Code, w.Body)
	}
}

func TestUnknownPolicyIsAFailure(t *testing.T) {
	t.Parallel()
	for closed, want := range map[bool]int{false: 200, true: 503} {
		h := httplimit.Middleware(dial(t, natsURL), httplimit.Config{Policy: httplimit.Text("no-such-policy"),
			FailClosed: closed, Deadline: patient, OnError: func(*http.Request, error) {}})(hello)
		if w := get(h); w.Code != want {
			t.Errorf("fail closed %v: status %d, want %d", closed, w.Code, want)
		}
	}
}

func TestAShadowDenialPasses(t *testing.T) {
	t.Parallel()
	url, _ := silentService(t, limits.SubjectConsume,
		`{"allowed":false,"shadow":true,"key":"k","name":"1m","limit":5,"remaining":0,"reset":1704307200000,"retryAfter":23000}`)
	h := httplimit.Middleware(dial(t, url), httplimit.Config{Limits: inline(t, 5, "1m"), Deadline: patient})(hello)
	if w := get(h); w.Code != 200 || w.Header().Get("Retry-After") != "" {
		t.Errorf("status %d, headers %v", w.Code, w.Header())
	}
}

// A denial because the store failed is a failure of the check, even if the middleware fails open.
func TestADegradedDenialIsAFailure(t *testing.T) {
	t.Parallel()
	url, _ := silentService(t, limits.SubjectConsume,
		`{"allowed":false,"degraded":true,"key":"k","name":"1m","limit":5,"remaining":0,"reset":1704307200000,"retryAfter":1000}`)
	h := httplimit.Middleware(dial(t, url), httplimit.Config{Limits: inline(t, 5, "1m"), Deadline: patient, FailStatus: 500,
		Body: httplimit.JSONError})(hello)
	w := get(h)
	if want := `{"ok":false,"error":"Rate limit check failed"}` + "\n"; w.Code != 500 || w.Body.String() != want {
		t.Errorf("status %d, body %s", w.Code, w.Body)
	}
	if h := w.Header(); h.Get("Retry-After") != "1" || h.Get("RateLimit") != "" || h.Get("X-RateLimit-Remaining") != "" {
		t.Errorf("headers of a limit that nobody looked at: %v", h)
	}
}

// A denial by the limiter's local stand-in means that a limit is exceeded, whatever its store does.
func TestLocalFallbackDenialIsADenial(t *testing.T) {
	t.Parallel()
	url, _ := silentService(t, limits.SubjectConsume, `{"allowed":false,"degraded":true,"key":"k","name":"1m","limit":5,"remaining":0,`+
		`"reset":1704307200000,"retryAfter":37000,"blockedBy":"1m","message":"5 of 5 used in 1m; try again in 37s"}`)
	h := httplimit.Middleware(dial(t, url), httplimit.Config{Limits: inline(t, 5, "1m"), Deadline: patient, FailClosed: true})(hello)
	if w := get(h); w.Code != 429 || w.Header().Get("Retry-After") != "37" {
		t.Errorf("status %d, headers %v", w.Code, w.Header())
	}
}

// Without OnError there is one warning of each kind, without any value that the client sent.
func TestWarningHidesClientValues(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	h := httplimit.Middleware(dial(t, natsURL), httplimit.Config{Deadline: patient, Policy: httplimit.Header("X-Policy"),
		Attributes: map[string]httplimit.Attribute{"user": httplimit.Header("X-User")}})(hello)
	for range 3 {
		get(h, header("X-Policy", "api"), header("X-User", strings.Repeat("secret", 50)))
	}
	got := log.String()
	if strings.Count(got, "\n") != 1 || strings.Contains(got, "secret") || !strings.Contains(got, "rate limit: no decision;") ||
		!strings.Contains(got, "error.field=attributes.user") {
		t.Errorf("log:\n%s", got)
	}
	log.Reset()
	get(h, header("X-Policy", "there is none"))
	if got := log.String(); !strings.Contains(got, "rate limit: no decision;") || !strings.Contains(got, "error.status=404") {
		t.Errorf("log of a failure that no client caused, after one that a client did:\n%s", got)
	}
	log.Reset()
	url, _ := silentService(t, limits.SubjectCheck, `{"allowed":true}`) // and nobody answers record
	get(httplimit.Middleware(dial(t, url), httplimit.Config{
		Limits: inline(t, 10, "1h"), Mode: httplimit.CheckThenRecord, Deadline: patient,
	})(hello))
	if got := log.String(); !strings.Contains(got, "rate limit: charge not confirmed;") {
		t.Errorf("log of a lost charge:\n%s", got)
	}
	log.Reset()
	get(httplimit.Middleware(dial(t, natsURL), httplimit.Config{
		Policy: httplimit.Text("there is none"), Mode: httplimit.CheckThenRecord, Deadline: patient,
	})(hello))
	if got := log.String(); !strings.Contains(got, "rate limit: no decision;") || !strings.Contains(got, "rate limit: charge not confirmed;") {
		t.Errorf("log of a request without a decision, whose charge was lost as well:\n%s", got)
	}
}

// The headers are sent even if the handler writes at once and streams.
func TestHeadersAreSentWithStreamingHandler(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(httplimit.Middleware(dial(t, natsURL), httplimit.Config{Limits: inline(t, 5, "1h"), Deadline: patient,
		Mode: httplimit.CheckThenRecord})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "first")
		w.(http.Flusher).Flush()
		<-release
	})))
	defer server.Close()
	resp, err := http.Get(server.URL)
	close(release)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.Header.Get("X-RateLimit-Remaining") != "5" || resp.Header.Get("RateLimit") == "" {
		t.Errorf("headers %v", resp.Header)
	}
}

// TestADenialThatNeverEndsNamesNoTime: clients take the latest time in any header for the time to come back, also that of a limit
// beside it, or of a middleware around it. A cost that never fits is then denied again and again.
func TestADenialThatNeverEndsNamesNoTime(t *testing.T) {
	t.Parallel()
	client := dial(t, natsURL)
	both := func(*http.Request) []limits.LimitSpec {
		return []limits.LimitSpec{{Key: key(t), Name: "small", Limit: 10, Window: "1m"}, {Key: key(t), Name: "large", Limit: 100, Window: "1h"}}
	}
	headers := []httplimit.Headers{httplimit.RateLimitFields, httplimit.XRateLimitUnix, httplimit.XRateLimitISO}
	large := httplimit.Middleware(client, httplimit.Config{Limits: both, Headers: headers, Deadline: time.Minute,
		Cost: func(*http.Request) int64 { return 11 }})
	outer := httplimit.Middleware(client, httplimit.Config{Limits: inline(t, 5, "1m"), Headers: headers, Deadline: patient})
	for name, h := range map[string]http.Handler{"alone": large(hello), "inside of another": outer(large(hello))} {
		resp := get(h).Result()
		if at, ok := httplimit.RetryAt(resp); ok || resp.StatusCode != http.StatusTooManyRequests {
			t.Errorf("%s: status %d, to retry at %v: %v", name, resp.StatusCode, at, resp.Header)
		}
		if got := resp.Header.Get("RateLimit"); !strings.Contains(got, `"small";r=10`) || !strings.Contains(got, `"large";r=100`) {
			t.Errorf("%s: RateLimit %q lacks what remains", name, got)
		}
		if got := resp.Header.Get("X-RateLimit-Remaining"); got != "10" {
			t.Errorf("%s: X-RateLimit-Remaining %q, want 10", name, got)
		}
	}
}
