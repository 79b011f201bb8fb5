package httplimit

import (
	"io"
	"math/rand/v2"
	"net/http"
	"time"
)

// The defaults of [Transport].
const (
	DefaultAttempts = 3
	DefaultMaxWait  = 2 * time.Minute
)

const (
	firstBackoff = time.Second
	maxBackoff   = 32 * time.Second
	// drainBytes is how much of a discarded response is read, and drainTime for how long.
	drainBytes = 64 << 10
	drainTime  = 100 * time.Millisecond
)

// Transport is an http.RoundTripper that retries a request that was answered 429. The backoff is 1, 2, 4, 8, 16, 32, 32, ...
// seconds, each up to a quarter longer or shorter. It never retries before the time that the server asked for
// ([RetryAt]), and up to a quarter of the backoff after that, so that clients do not all come back at once.
//
// It returns the 429 to its caller if the attempts are used up, if the wait would be longer than MaxWait or end after the
// request's deadline, or if the body cannot be sent again. A request can be sent again if it has no body or has GetBody,
// which http.NewRequest sets for buffers and strings.
//
// The zero value is ready to use. Transport keeps no state and is safe for concurrent use.
type Transport struct {
	// Base sends the requests: http.DefaultTransport by default.
	Base http.RoundTripper
	// Attempts is how often a request is sent at most: 3 by default. With 1 it is never retried.
	Attempts int
	// MaxWait is the longest single wait: 2 minutes by default. If a server asks for more, the caller gets the 429.
	MaxWait time.Duration
	// Unavailable also retries requests that were answered 503 with a Retry-After.
	Unavailable bool
	// OnRetry is called before each wait, with the response, whose body is closed, and the time of the next attempt.
	OnRetry func(resp *http.Response, at time.Time)
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	attempt := req
	for n := 1; ; n++ {
		resp, err := base(t.Base).RoundTrip(attempt)
		if err != nil || n >= orDefault(t.Attempts, DefaultAttempts) || !t.shouldRetry(resp) || !canReplay(req) {
			return resp, err
		}
		at, ok := t.nextAttempt(req, resp, n)
		if !ok {
			return resp, nil
		}
		if attempt, err = replay(req); err != nil {
			return resp, nil // the response says more than the error
		}
		discard(resp)
		if t.OnRetry != nil {
			t.OnRetry(resp, at)
		}
		if err := pause(req.Context(), time.Until(at)); err != nil {
			closeBody(attempt)
			return nil, err
		}
	}
}

func (t *Transport) shouldRetry(resp *http.Response) bool {
	return CanRetry(resp) && (t.Unavailable || resp.StatusCode == http.StatusTooManyRequests)
}

// nextAttempt is when attempt n+1 is due. ok is false if that is after MaxWait or the request's deadline. The jitter, which
// keeps clients from all coming back at once, takes at most half of the time that is left until then, since the attempt
// needs the rest. It never makes the attempt earlier than the server asked for.
func (t *Transport) nextAttempt(req *http.Request, resp *http.Response, n int) (at time.Time, ok bool) {
	server, found := RetryAt(resp)
	now, step, asked := time.Now(), backoff(n), time.Duration(0)
	if found {
		asked = max(0, server.Sub(now))
	}
	wait, jitter := step, rand.N(step/2+1)-step/4
	if asked > wait+jitter {
		wait, jitter = asked, rand.N(step/4+1)
	}
	room := orDefault(t.MaxWait, DefaultMaxWait) - max(wait, asked)
	if end, bounded := req.Context().Deadline(); bounded {
		room = min(room, end.Sub(now)-max(wait, asked))
	}
	return now.Add(max(asked, wait+min(jitter, room/2))), room >= 0
}

// backoff is the wait after attempt n, which counts from 1, without jitter.
func backoff(n int) time.Duration {
	return min(firstBackoff<<min(n-1, 8), maxBackoff)
}

func canReplay(req *http.Request) bool {
	return req.Body == nil || req.Body == http.NoBody || req.GetBody != nil
}

// replay returns a copy of the request with a body of its own, since a RoundTripper must not modify the request.
func replay(req *http.Request) (*http.Request, error) {
	again := req.Clone(req.Context())
	if req.GetBody == nil {
		return again, nil
	}
	var err error
	again.Body, err = req.GetBody()
	return again, err
}

// discard reads the rest of a small response, so that its connection can be reused, and closes it. A server may never end
// its response, so the time is bounded. A response that package http decompresses is closed at once, at the price of its
// connection, because a Read that waits for the gzip header holds a lock that Close needs. A Base that is not a network
// transport may return a response without a body.
func discard(resp *http.Response) {
	if resp.Body == nil {
		return
	}
	if resp.Uncompressed {
		_ = resp.Body.Close()
		return
	}
	defer time.AfterFunc(drainTime, func() { _ = resp.Body.Close() }).Stop()
	_, _ = io.CopyN(io.Discard, resp.Body, drainBytes)
	_ = resp.Body.Close()
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// CloseIdleConnections closes the idle connections of the base, for [http.Client.CloseIdleConnections].
func (t *Transport) CloseIdleConnections() { closeIdle(t.Base) }

func closeIdle(rt http.RoundTripper) {
	if c, ok := base(rt).(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func base(rt http.RoundTripper) http.RoundTripper {
	if rt == nil {
		return http.DefaultTransport
	}
	return rt
}

func orDefault[T int | time.Duration](value, otherwise T) T {
	if value <= 0 {
		return otherwise
	}
	return value
}
