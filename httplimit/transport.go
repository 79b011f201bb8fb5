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
	// drainBytes is how much of an answer that is thrown away is read, and drainTime for how long.
	drainBytes = 64 << 10
	drainTime  = 100 * time.Millisecond
)

// Transport is an http.RoundTripper that sends a request again when it was answered 429, after 1, 2, 4, 8, 16, 32,
// 32, … seconds, each up to a quarter longer or shorter, and never before the time that the server gave ([RetryAt]);
// up to a quarter of the backoff after it, so that clients do not all come back at once.
//
// It gives the answer 429 to its caller when the attempts are used up, when the wait would be longer than MaxWait or
// end after the request's deadline, and when the body cannot be sent again. A body can be when it is absent or the
// request has GetBody, which http.NewRequest sets for buffers and strings.
//
// The zero value is ready for use. It keeps no state, and any number of goroutines may share it.
type Transport struct {
	// Base sends the requests: http.DefaultTransport unless set.
	Base http.RoundTripper
	// Attempts is how often a request is sent at most: 3 unless set; 1 never repeats.
	Attempts int
	// MaxWait is the longest single wait: 2 minutes unless set. A server that asks for more gets its way: the answer
	// goes to the caller.
	MaxWait time.Duration
	// Unavailable repeats answers 503 with a Retry-After too.
	Unavailable bool
	// OnRetry is called before each wait, with the answer, whose body is closed, and the time of the next attempt.
	OnRetry func(resp *http.Response, at time.Time)
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	attempt := req
	for n := 1; ; n++ {
		resp, err := base(t.Base).RoundTrip(attempt)
		if err != nil || n >= orDefault(t.Attempts, DefaultAttempts) || !t.wants(resp) || !canReplay(req) {
			return resp, err
		}
		at, ok := t.nextAttempt(req, resp, n)
		if !ok {
			return resp, nil
		}
		if attempt, err = replay(req); err != nil {
			return resp, nil // the answer tells more than the error
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

func (t *Transport) wants(resp *http.Response) bool {
	return CanRetry(resp) && (t.Unavailable || resp.StatusCode == http.StatusTooManyRequests)
}

// nextAttempt is when attempt n+1 is due; ok is false when that is later than it may be. What the wait differs by, so that
// clients do not all come back at once, is cut to half of the room there is, since the attempt needs the rest; and it never leads
// to before the server's time.
func (t *Transport) nextAttempt(req *http.Request, resp *http.Response, n int) (at time.Time, ok bool) {
	server, told := RetryAt(resp)
	now, step, asked := time.Now(), backoff(n), time.Duration(0)
	if told {
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

// backoff is the wait after attempt n, from 1, without jitter.
func backoff(n int) time.Duration {
	return min(firstBackoff<<min(n-1, 8), maxBackoff)
}

func canReplay(req *http.Request) bool {
	return req.Body == nil || req.Body == http.NoBody || req.GetBody != nil
}

// replay copies the request, since a RoundTripper must not change it, with a body of its own.
func replay(req *http.Request) (*http.Request, error) {
	again := req.Clone(req.Context())
	if req.GetBody == nil {
		return again, nil
	}
	var err error
	again.Body, err = req.GetBody()
	return again, err
}

// discard reads what is left of a small answer, so that its connection can be used again, and closes it. A server may
// leave its answer open for ever. One that package http decompresses is closed at once, at the price of its connection: whoever
// waits for the head of it holds a lock that Close needs too. A Base that is no network's may give none, as to an [http.Client].
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

// CloseIdleConnections closes those of the base, for [http.Client.CloseIdleConnections].
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
