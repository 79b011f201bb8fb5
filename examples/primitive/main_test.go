package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/examples/internal/exampletest"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// start runs a limiter with the policies of this folder.
func start(t *testing.T, store string) (c *limits.Client, natsURL string) {
	t.Helper()
	natsURL = exampletest.Start(t, store, "policies.yaml")
	return limits.NewClient(testenv.Connect(t, natsURL), limits.Timeout(exampletest.Patience)), natsURL
}

// onEachStore runs test against a limiter on SQLite and on PostgreSQL.
func onEachStore(t *testing.T, test func(t *testing.T, c *limits.Client)) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		c, _ := start(t, store)
		test(t, c)
	})
}

// must returns the reply of a call that must succeed.
func must[T any](t *testing.T) func(reply T, err error) T {
	return func(reply T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
}

// TestPrimitive runs check, consume, status and reset in each window that does not end first on a slow machine. The next test is
// for 1s.
func TestPrimitive(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *limits.Client) {
		for window, length := range map[string]time.Duration{
			"30s": 30 * time.Second, "1m": time.Minute, "5m": 5 * time.Minute, "1h": time.Hour, "1d": 24 * time.Hour,
		} {
			reply := must[*limits.Reply](t)
			request := limits.Per("job:queue:"+window, 10, window)
			if r := reply(c.Check(t.Context(), request)); !r.Allowed || r.Remaining != 10 {
				t.Errorf("%s: check of a new key: %+v", window, r)
			}
			if r := reply(c.Consume(t.Context(), request)); !r.Allowed || r.Remaining != 9 || r.Reset <= time.Now().UnixMilli() {
				t.Errorf("%s: after the check, which charges nothing, and a consume: %+v", window, r)
			}
			request.Cost = 10
			r := reply(c.Consume(t.Context(), request))
			if most := length + length/60; r.Allowed || r.Remaining != 9 || r.RetryIn() <= 0 || r.RetryIn() > most {
				t.Errorf("%s: a cost of 10 with 9 left: %+v, want a denial with a retryAfter up to %s", window, r, most)
			}
			status := must[*limits.Status](t)(c.Status(t.Context(), request.Key))
			if len(status.Counters) != 1 || status.Counters[0].Used != 1 || status.Counters[0].Window != window {
				t.Errorf("%s: status %+v", window, status)
			}
			if n := must[*limits.ResetReply](t)(c.Reset(t.Context(), limits.ResetRequest{Key: request.Key})); n.Reset != 1 {
				t.Errorf("%s: reset %d counters, want 1", window, n.Reset)
			}
			if r := reply(c.Consume(t.Context(), request)); !r.Allowed || r.Remaining != 0 {
				t.Errorf("%s: a cost of 10 after the reset: %+v", window, r)
			}
		}
	})
}

// TestRetryPassesAfterRetryAfter waits for the end of a window of a second.
func TestRetryPassesAfterRetryAfter(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *limits.Client) {
		request := limits.Per("api:ip:203.0.113.9", 2, "1s")
		request.Cost = 2
		denied := must[*limits.Reply](t)(c.Consume(t.Context(), request))
		for end := time.Now().Add(exampletest.Patience); denied.Allowed; { // on a slow machine the window may end
			if time.Now().After(end) {
				t.Fatal("2 per second: never denied")
			}
			denied = must[*limits.Reply](t)(c.Consume(t.Context(), request))
		}
		began := time.Now()
		must[*limits.Reply](t)(c.Wait(t.Context(), request))
		if waited := time.Since(began); waited < denied.RetryIn()-50*time.Millisecond {
			t.Errorf("passed after %s, and the denial said %s", waited, denied.RetryIn())
		}
	})
}

// TestSimultaneousRequests sends 100 concurrent requests for a limit of each kind. Exactly as many pass as it allows.
func TestSimultaneousRequests(t *testing.T) {
	policy := limits.Request{Policy: "notify", Attributes: map[string]string{"user": "9"}}
	onEachStore(t, func(t *testing.T, c *limits.Client) {
		for name, tt := range map[string]struct {
			request limits.Request
			want    int64
		}{
			"sliding_window": {limits.Per("at-once:sliding", 20, "1h"), 20},
			"fixed_window":   {fixed("at-once:fixed", 20, "1d"), 20},
			"token_bucket":   {limits.Request{LimitSpec: limits.LimitSpec{Key: "at-once:bucket", Limit: 20, Window: "366d", Algorithm: limits.TokenBucket, Burst: 7}}, 27},
			"policy":         {policy, 10},
		} {
			if passed := exampletest.AllowedAtOnce(t, 100, c, tt.request); passed != tt.want {
				t.Errorf("%s: %d of 100 passed, want %d", name, passed, tt.want)
			}
		}
	})
}

// fixed is a window that starts at its first charge, so that it does not end during a test.
func fixed(key string, limit int64, window string) limits.Request {
	r := limits.Per(key, limit, window)
	r.Algorithm, r.Anchor = limits.FixedWindow, "first_use"
	return r
}

// TestEvents reads a warning at 10 % left, and the denial.
func TestEvents(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *limits.Client) {
		ctx, cancel := context.WithTimeout(t.Context(), exampletest.Patience)
		defer cancel()
		events := must[iter.Seq2[limits.Event, error]](t)(c.Watch(ctx))
		request := limits.Per("api:user:7", 20, "1h")
		for _, cost := range []int64{17, 1, 3} { // 3 left, 2 left, denied
			request.Cost = cost
			must[*limits.Reply](t)(c.Consume(t.Context(), request))
		}
		var warned, exceeded bool
		for event, err := range events {
			if err != nil {
				t.Fatal(err)
			}
			switch d := event.Data.(type) {
			case *limits.Warning:
				if warned = true; d.Key != request.Key || d.Remaining != 2 || d.Threshold != 2 || d.Limit != 20 {
					t.Errorf("warning %s", event.Raw)
				}
			case *limits.Exceeded:
				if exceeded = true; d.Key != request.Key || d.Limit != 20 || d.Window != "1h" || d.Reset <= time.Now().UnixMilli() {
					t.Errorf("exceeded %s", event.Raw)
				}
			}
			if warned && exceeded {
				return
			}
		}
		t.Errorf("the events ended; a warning came: %t, the denial: %t", warned, exceeded) // with ctx, which is no error
	})
}

// TestHandlerAndBurst runs patterns 1 and 2: 120 requests pass at once, and then 100 per minute.
func TestHandlerAndBurst(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *limits.Client) {
		h := handler(c, "http://127.0.0.1:1")
		took := limits.Request{LimitSpec: burst("api:7"), Cost: 119} // the same counter as the handler's
		if r := must[*limits.Reply](t)(c.Consume(t.Context(), took)); !r.Allowed {
			t.Fatalf("119 of 120 at once: %+v", r)
		}
		if w := get(h, "/hello"); w.Code != http.StatusOK || w.Body.String() != "hello\n" {
			t.Errorf("the 120th: %d %s", w.Code, w.Body)
		}
		w := get(h, "/hello")
		for end := time.Now().Add(exampletest.Patience); w.Code == http.StatusOK && time.Now().Before(end); {
			w = get(h, "/hello") // on a slow machine a token may come back, one every 0.6 s
		}
		if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
			t.Errorf("more than the burst: %d, %v", w.Code, w.Header())
		}
	})
}

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
	r.Header.Set("X-User", "7")
	h.ServeHTTP(w, r)
	return w
}

// TestOutboundCallsWait runs pattern 3 with 4 calls per 500 ms: of 8 concurrent calls each is sent once.
func TestOutboundCallsWait(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *limits.Client) {
		var calls atomic.Int64
		upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
		t.Cleanup(upstream.Close)
		api := outbound(c, limits.Per("outbound:weather", 4, "500ms"), exampletest.Patience)
		began := time.Now()
		exampletest.AtOnce(8, func(int) bool {
			response, err := api.Get(upstream.URL)
			if err != nil {
				t.Error(err)
				return false
			}
			return response.Body.Close() == nil
		})
		if took := time.Since(began); took < 400*time.Millisecond || calls.Load() != 8 {
			t.Errorf("8 calls at 4 per 500ms: %d reached the API, in %s", calls.Load(), took)
		}

		hourly := limits.Per("outbound:slow", 1, "1h")
		must[*limits.Reply](t)(c.Consume(t.Context(), hourly))
		_, err := outbound(c, hourly, 10*time.Second).Get(upstream.URL)
		if !errors.Is(err, context.DeadlineExceeded) || calls.Load() != 8 {
			t.Errorf("a turn in an hour: %v, want the deadline, told at once", err)
		}
	})
}

// TestForward asks for the weather over HTTP.
func TestForward(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *limits.Client) {
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "fair") }))
		t.Cleanup(upstream.Close)
		if w := get(handler(c, upstream.URL), "/weather"); w.Code != http.StatusOK || w.Body.String() != "fair" {
			t.Errorf("weather: %d %s", w.Code, w.Body)
		}
		upstream.Close()
		if w := get(handler(c, upstream.URL), "/weather"); w.Code != http.StatusServiceUnavailable {
			t.Errorf("no weather: %d %s", w.Code, w.Body)
		}
	})
}

// TestNotificationIsSentAfterHalfClose: it was charged, and a client that has merely closed its half of the connection waits
// for the answer.
func TestNotificationIsSentAfterHalfClose(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *limits.Client) {
		gone, end := context.WithCancel(t.Context())
		end()
		w := httptest.NewRecorder()
		handler(c, "").ServeHTTP(w, httptest.NewRequestWithContext(gone, "POST", "/notify?text=n", nil))
		if w.Code != http.StatusOK || w.Body.String() != `{"sent":true}`+"\n" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// TestNotifications plays pattern 4: of 13 in an hour, 10 are sent and 3 wait for the digest.
func TestNotifications(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *limits.Client) {
		h := handler(c, "")
		sent := 0
		for i := range 13 {
			w, r := httptest.NewRecorder(), httptest.NewRequest("POST", fmt.Sprint("/notify?text=n", i), nil)
			h.ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				t.Fatalf("notify: %d %s", w.Code, w.Body)
			}
			sent += strings.Count(w.Body.String(), `"sent":true`)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/digest", nil))
		if want := `["n10","n11","n12"]` + "\n"; sent != 10 || w.Body.String() != want {
			t.Errorf("%d sent, digest %s, want 10 and %s", sent, w.Body, want)
		}
		w = httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/notify", nil))
		if w.Code != http.StatusBadRequest {
			t.Errorf("without a text: %d %s", w.Code, w.Body)
		}
	})
}
