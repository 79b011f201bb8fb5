package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/httplimit"
)

// serverFunc is a RoundTripper that plays the server without a network, so that synctest controls the time.
type serverFunc func(*http.Request) *http.Response

func (f serverFunc) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	resp := f(r)
	if r.Body != nil {
		r.Body.Close()
	}
	return resp, nil
}

// closing counts open bodies.
type closing struct {
	io.Reader
	open *int
}

func (c closing) Close() error { *c.open--; return nil }

func response(status int, open *int, headers ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Add(headers[i], headers[i+1])
	}
	*open++
	return &http.Response{StatusCode: status, Header: h, Body: closing{strings.NewReader("later"), open}}
}

// idle counts how often its connections were closed.
type idle struct {
	http.RoundTripper
	closed int
}

func (i *idle) CloseIdleConnections() { i.closed++ }

// TestIdleConnectionsAreClosed through both transports.
func TestIdleConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	base := &idle{}
	(&http.Client{Transport: &httplimit.Transport{Base: httplimit.Outbound(dial(t, natsURL), limits.Per("k", 1, "1m"), base)}}).CloseIdleConnections()
	if base.closed != 1 {
		t.Errorf("closed %d times", base.closed)
	}
	(&http.Client{Transport: &httplimit.Transport{Base: serverFunc(nil)}}).CloseIdleConnections() // its base has no idle connections
}

// TestContextCauseIsReturned: like package http, Transport returns the cause of a context's end.
func TestContextCauseIsReturned(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T) {
		open, enough := 0, errors.New("enough")
		ctx, end := context.WithCancelCause(t.Context())
		server := serverFunc(func(*http.Request) *http.Response {
			time.AfterFunc(time.Second, func() { end(enough) })
			return response(429, &open, "Retry-After", "60")
		})
		_, err := (&httplimit.Transport{Base: server}).RoundTrip(post(t, "x").WithContext(ctx))
		if !errors.Is(err, enough) || open != 0 {
			t.Errorf("%v, with %d bodies open", err, open)
		}
	})
}

// inBubble runs f with a synctest clock, moved to this century, since X-RateLimit-Reset recognizes dates by their size.
func inBubble(t *testing.T, test func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(noon))
		test(t)
	})
}

func post(t *testing.T, body string) *http.Request {
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://api.example/", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// TestTransportBacksOff, and however often it tries, never comes back at once.
func TestTransportBacksOff(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T) {
		var at []time.Time
		var told []time.Time
		open := 0
		transport := &httplimit.Transport{Attempts: 100, Base: serverFunc(func(r *http.Request) *http.Response {
			at = append(at, time.Now())
			if body, _ := io.ReadAll(r.Body); string(body) != "work" {
				t.Errorf("attempt %d has the body %q", len(at), body)
			}
			return response(429, &open)
		}), OnRetry: func(_ *http.Response, next time.Time) { told = append(told, next) }}
		resp, err := transport.RoundTrip(post(t, "work"))
		if err != nil || resp.StatusCode != 429 || open != 1 {
			t.Fatalf("response %v, error %v, %d bodies open", resp, err, open)
		}
		steps := append([]time.Duration{1, 2, 4, 8, 16}, slices.Repeat([]time.Duration{32}, 94)...)
		if len(at) != len(steps)+1 || len(told) != len(steps) {
			t.Fatalf("%d attempts, %d announced", len(at), len(told))
		}
		for i, step := range steps {
			waited := at[i+1].Sub(at[i])
			if low, high := step*time.Second*3/4, step*time.Second*5/4; waited < low || waited > high {
				t.Errorf("wait %d: %v, want %v to %v", i, waited, low, high)
			}
			if !told[i].Equal(at[i+1]) {
				t.Errorf("wait %d: announced %v, was %v", i, told[i], at[i+1])
			}
		}
	})
}

func TestTransportHonoursServerRetryTime(t *testing.T) {
	t.Parallel()
	for name, headers := range map[string][]string{
		"seconds":            {"Retry-After", "60", "X-RateLimit-Reset", "1"},
		"date":               {"Retry-After", "Fri, 02 Jan 2026 12:01:00 GMT"},
		"date, other clock":  {"Retry-After", "Fri, 02 Jan 2026 13:01:00 GMT", "Date", "Fri, 02 Jan 2026 13:00:00 GMT"},
		"Unix seconds":       {"X-RateLimit-Reset", "1767355260"},
		"Unix milliseconds":  {"X-RateLimit-Reset", "1767355260000"},
		"Unix, other clock":  {"X-RateLimit-Reset", "1767358860", "Date", "Fri, 02 Jan 2026 13:00:00 GMT"},
		"ISO, other clock":   {"X-RateLimit-Reset", "2026-01-02T11:01:00.000Z", "Date", "Fri, 02 Jan 2026 11:00:00 GMT"},
		"seconds from now":   {"X-RateLimit-Reset", "60"},
		"ISO date":           {"X-RateLimit-Reset", "2026-01-02T12:01:00.000Z"},
		"draft":              {"RateLimit", `"a;t=1, b";r=0;t=60, "c\";r=0;t=9";r=5;t=3600`},
		"draft, none empty":  {"RateLimit", `"a";r=1;t=60,"c";r=5;t=30`, "X-RateLimit-Reset", "2"},
		"draft, other types": {"RateLimit", `"a";r=0;t=9;r=1;pk=:YQ==:;x=%"%c3%bc", b;x=?1;y=@1;z;r=000;  t=060, 1.5;r=7;v=-1.5`},
		"draft, malformed":   {"RateLimit", `"a";r=0;t=1, "b";r=0;t=`, "X-RateLimit-Reset", "60"},
		"draft and a reset":  {"RateLimit", `"gateway";r=0;t=9`, "X-RateLimit-Reset", "9", "X-RateLimit-Reset", "60"},
		"seconds, twice":     {"Retry-After", "1", "Retry-After", "60", "Retry-After", "soon"},
		"resets, twice":      {"X-RateLimit-Reset", "1767355201", "X-RateLimit-Reset", "1767355260"},
		"resets of two":      {"X-RateLimit-Reset", "1767355201", "X-RateLimit-Reset", "2026-01-02T12:01:00.000Z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T) {
				began, open, tries := time.Now(), 0, 0
				resp, err := (&httplimit.Transport{Base: serverFunc(func(*http.Request) *http.Response {
					if tries++; tries == 1 {
						return response(429, &open, headers...)
					}
					return response(200, &open)
				})}).RoundTrip(post(t, ""))
				if err != nil || resp.StatusCode != 200 {
					t.Fatalf("response %v, error %v", resp, err)
				}
				if waited := time.Since(began); waited < time.Minute || waited > time.Minute+time.Second/4 {
					t.Errorf("waited %v, want 1m and up to 250ms", waited)
				}
			})
		})
	}
}

// Jitter never makes a retry earlier than the server's time, however little room there is after it.
func TestTransportIsNeverEarly(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T) {
		const asked = 1100 * time.Millisecond // a little more than the wait would be
		for range 200 {
			due, open := time.UnixMilli(time.Now().Add(asked).UnixMilli()), 0
			transport := &httplimit.Transport{Attempts: 2, MaxWait: asked + 20*time.Millisecond, Base: serverFunc(func(*http.Request) *http.Response {
				return response(429, &open, "X-RateLimit-Reset", strconv.FormatInt(due.UnixMilli(), 10))
			})}
			if _, err := transport.RoundTrip(post(t, "")); err != nil {
				t.Fatal(err)
			}
			if late := time.Since(due); late < 0 || late > 20*time.Millisecond {
				t.Fatalf("came %v after what the server asked for", late)
			}
		}
	})
}

// Jitter is no reason to give up, neither at the longest wait nor shortly before the deadline.
func TestTransportWaitsAsLongAsItMay(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]struct{ asked, longest, deadline time.Duration }{
		"longest wait":        {5 * time.Second, 5 * time.Second, time.Hour},
		"over it":             {5 * time.Second, 5*time.Second - 1, time.Hour},
		"deadline":            {5 * time.Second, time.Hour, 5*time.Second + time.Millisecond},
		"past it":             {5 * time.Second, time.Hour, 5*time.Second - 1},
		"backoff as longest":  {0, time.Second, time.Hour},
		"backoff over it":     {0, time.Second - 1, time.Hour},
		"backoff to deadline": {0, time.Hour, time.Second + time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T) {
				for range 50 {
					began, open, tries := time.Now(), 0, 0
					transport := &httplimit.Transport{Attempts: 2, MaxWait: limit.longest, Base: serverFunc(func(*http.Request) *http.Response {
						tries++
						return response(429, &open, "Retry-After", strconv.Itoa(int(limit.asked/time.Second)))
					})}
					ctx, cancel := context.WithTimeout(t.Context(), limit.deadline)
					defer cancel()
					_, err := transport.RoundTrip(post(t, "").WithContext(ctx))
					want, due := 1, max(limit.asked, time.Second)
					if end := min(limit.longest, limit.deadline); due <= end {
						want = 2
						if waited := time.Since(began); waited < limit.asked || waited > end {
							t.Errorf("waited %v, want %v to %v", waited, limit.asked, end)
						}
					}
					if err != nil || tries != want {
						t.Fatalf("%d tries, error %v, want %d", tries, err, want)
					}
				}
			})
		})
	}
}

// Nothing that a server writes into its headers makes a client wait for ever, or not at all.
func TestTransportIgnoresInvalidHeaders(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T) {
		for value, want := range map[string]int{
			"99999999999999999999": 1, "9999999999999": 1, "86400": 1, "-5": 3, "soon": 3, "1.5": 3, "0": 3, "": 3,
			"Mon, 01 Jan 0001 00:00:00 GMT": 3, "Fri, 31 Dec 9999 23:59:59 GMT": 1,
		} {
			tries, open := 0, 0
			began := time.Now()
			_, err := (&httplimit.Transport{Base: serverFunc(func(*http.Request) *http.Response {
				tries++
				return response(429, &open, "Retry-After", value)
			})}).RoundTrip(post(t, ""))
			if waited := time.Since(began); err != nil || tries != want || waited > 4*time.Second || tries == 3 && waited < 2*time.Second {
				t.Errorf("%q: %d tries in %v, error %v, want %d", value, tries, waited, err, want)
			}
		}
	})
}

func TestTransportRetriesOnlyWhenAllowed(t *testing.T) {
	t.Parallel()
	oneWay := func(r *http.Request) { r.GetBody = nil }
	noBody := func(r *http.Request) { r.Body, r.GetBody = http.NoBody, nil }
	nilBody := func(r *http.Request) { r.Body, r.GetBody = nil, nil }
	spoilt := func(r *http.Request) { r.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("gone") } }
	short := func(r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second/2)
		context.AfterFunc(r.Context(), cancel)
		*r = *r.WithContext(ctx)
	}
	for name, tt := range map[string]struct {
		transport httplimit.Transport
		status    int
		change    func(*http.Request)
		want      int
	}{
		"429":                         {httplimit.Transport{}, 429, nil, 3},
		"one attempt":                 {httplimit.Transport{Attempts: 1}, 429, nil, 1},
		"503":                         {httplimit.Transport{}, 503, nil, 1},
		"503, wanted":                 {httplimit.Transport{Unavailable: true}, 503, nil, 3},
		"500":                         {httplimit.Transport{Unavailable: true}, 500, nil, 1},
		"200":                         {httplimit.Transport{}, 200, nil, 1},
		"a body that goes once":       {httplimit.Transport{}, 429, oneWay, 1},
		"no body":                     {httplimit.Transport{}, 429, noBody, 3},
		"nil body":                    {httplimit.Transport{}, 429, nilBody, 3},
		"a body that comes no more":   {httplimit.Transport{}, 429, spoilt, 1},
		"a deadline before the retry": {httplimit.Transport{}, 429, short, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T) {
				tries, open := 0, 0
				tt.transport.Base = serverFunc(func(*http.Request) *http.Response {
					tries++
					return response(tt.status, &open, "Retry-After", "1")
				})
				req := post(t, "work")
				if tt.change != nil {
					tt.change(req)
				}
				resp, err := tt.transport.RoundTrip(req)
				if err != nil || resp.StatusCode != tt.status || tries != tt.want {
					t.Fatalf("response %v, error %v, %d tries, want %d", resp, err, tries, tt.want)
				}
				if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "later" || open != 1 {
					t.Errorf("the last body: %q, error %v; %d open", body, err, open)
				}
			})
		})
	}
}

func TestTransportEndsWithItsContext(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		open, tries := 0, 0
		transport := &httplimit.Transport{Base: serverFunc(func(*http.Request) *http.Response {
			tries++
			time.AfterFunc(time.Second/4, cancel)
			return response(429, &open, "Retry-After", "30")
		})}
		began := time.Now()
		req := post(t, "work").WithContext(ctx)
		req.GetBody = func() (io.ReadCloser, error) {
			open++
			return closing{strings.NewReader("work"), &open}, nil
		}
		resp, err := transport.RoundTrip(req)
		if !errors.Is(err, context.Canceled) || resp != nil || tries != 1 || open != 0 {
			t.Errorf("response %v, error %v, %d tries, %d bodies open", resp, err, tries, open)
		}
		if waited := time.Since(began); waited != time.Second/4 {
			t.Errorf("ended after %v", waited)
		}
	})
}

// TestTransportDoesNotDrainEndlessResponse: a server may never end its response.
func TestTransportDoesNotDrainEndlessResponse(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T) {
		began, tries, open := time.Now(), 0, 0
		resp, err := (&httplimit.Transport{Base: serverFunc(func(*http.Request) *http.Response {
			if tries++; tries > 1 {
				return response(200, &open)
			}
			resp := response(429, &open)
			resp.Body, _ = io.Pipe()
			return resp
		})}).RoundTrip(post(t, ""))
		if waited := time.Since(began); err != nil || resp.StatusCode != 200 || waited > 2*time.Second {
			t.Errorf("response %v, error %v after %v", resp, err, waited)
		}
	})
}

// TestResponseMayHaveNilBody: a Base that is not a network transport may return a response without
// a body.
func TestResponseMayHaveNilBody(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T) {
		tries := 0
		resp, err := (&httplimit.Transport{Base: serverFunc(func(*http.Request) *http.Response {
			tries++
			return &http.Response{StatusCode: 429}
		})}).RoundTrip(post(t, ""))
		if err != nil || resp.StatusCode != 429 || tries != httplimit.DefaultAttempts {
			t.Errorf("response %v, error %v, %d tries", resp, err, tries)
		}
	})
}

// A compressed response whose gzip header never comes: a Read that waits for it holds the lock that Close needs.
func TestTransportDoesNotWaitForGzipHeader(t *testing.T) {
	t.Parallel()
	var tries atomic.Int64
	gone := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tries.Add(1) > 1 {
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(http.StatusTooManyRequests)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(gone)
	}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &httplimit.Transport{}}).Do(req)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("response %v, error %v, want 200 of the second attempt", resp, err)
	}
	resp.Body.Close()
	<-gone // its connection was closed
}

func TestCanRetry(t *testing.T) {
	t.Parallel()
	open := 0
	for _, tt := range []struct {
		resp *http.Response
		want bool
	}{
		{response(429, &open), true}, {response(503, &open), false}, {response(503, &open, "Retry-After", "1"), true},
		{response(200, &open, "Retry-After", "1"), false}, {response(500, &open, "Retry-After", "1"), false},
	} {
		if got := httplimit.CanRetry(tt.resp); got != tt.want {
			t.Errorf("%d %v: %v", tt.resp.StatusCode, tt.resp.Header, got)
		}
	}
	for _, resp := range []*http.Response{response(429, &open), nil} {
		if at, ok := httplimit.RetryAt(resp); ok {
			t.Errorf("a time from nowhere: %v", at)
		}
	}
	if httplimit.CanRetry(nil) {
		t.Error("a request that failed has no response")
	}
}

// TestRetryAtPicksTheDelay that the server meant, within bounds.
func TestRetryAtPicksTheDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			want   time.Duration
			header []string
		}{
			{0, []string{"Retry-After", "0", "RateLimit", `"a";r=0;t=30`}}, // the one that is meant for this response
			{0, []string{"Retry-After", "Fri, 31 Dec 1999 23:00:00 GMT"}},
			{366 * 24 * time.Hour, []string{"Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT"}},
			{30 * time.Second, []string{"RateLimit", `"a";r=5;t=1000, "b";r=0;t=30, "c";r=9;t=2000`}}, // b has denied
			{time.Minute, []string{"RateLimit", `"a";r=0;t=60, "b";r=0;t=30`}},
		} {
			open := 0
			at, ok := httplimit.RetryAt(response(429, &open, tt.header...))
			if got := time.Until(at); !ok || got != tt.want {
				t.Errorf("%q: %s, %v, want %s", tt.header, got, ok, tt.want)
			}
		}
	})
}

func TestCountdown(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T) {
		began := time.Now()
		var shown []time.Duration
		for left := range httplimit.Countdown(t.Context(), began.Add(2500*time.Millisecond)) {
			shown = append(shown, left)
			if behind := time.Since(began) + left; behind < 2500*time.Millisecond || behind >= 3500*time.Millisecond {
				t.Errorf("%v after %v", left, time.Since(began))
			}
		}
		if got := len(shown); got != 4 || shown[0] != 3*time.Second || shown[3] != 0 || time.Since(began) != 2500*time.Millisecond {
			t.Errorf("shown %v, ended after %v", shown, time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for left := range httplimit.Countdown(ctx, time.Now().Add(time.Hour)) {
			if cancel(); left != time.Hour {
				t.Errorf("goes on to %v after its context", left)
			}
		}
		for left := range httplimit.Countdown(t.Context(), began.AddDate(400, 0, 0)) {
			if left < 290*365*24*time.Hour {
				t.Errorf("%v left of 400 years", left)
			}
			break
		}
		for left := range httplimit.Countdown(t.Context(), began) {
			if left != 0 {
				t.Errorf("%v left of the past", left)
			}
		}
	})
}
