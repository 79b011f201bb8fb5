package main

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/httplimit"
)

// userKey is the key of the user of a session, in a request's context.
type userKey struct{}

// userOf gives whose key a request came with, or whose session.
func userOf(ctx context.Context) string {
	if key, ok := httplimit.KeyFrom(ctx); ok {
		return key.User
	}
	user, _ := ctx.Value(userKey{}).(string)
	return user
}

// ofSession gives the request with the user of its session.
func ofSession(user string, r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), userKey{}, user))
}

// keyed lets requests with a valid key pass to next, within the key's rate, and logs them.
func (s *server) keyed(next http.Handler, endpoint httplimit.Attribute) http.Handler {
	return httplimit.Middleware(s.limiter, httplimit.Config{
		APIKey:   httplimit.Header("X-API-Key"),
		Policy:   httplimit.Text("key-rate"),
		Deadline: s.deadline,
		Headers:  []httplimit.Headers{httplimit.XRateLimitUnix},
		Body:     httplimit.JSONQuota,
		OnDenied: func(r *http.Request, _ *limits.Reply) { s.log(r, endpoint(r), http.StatusTooManyRequests, 0) },
	})(s.logged(next, endpoint))
}

// logged logs what becomes of requests.
func (s *server) logged(next http.Handler, endpoint httplimit.Attribute) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		seen := &statusWriter{ResponseWriter: w, panicked: true}
		defer func() { s.log(r, endpoint(r), seen.result(), time.Since(begin)) }()
		next.ServeHTTP(seen, r)
		seen.panicked = false
	})
}

// log sends a line and waits for nothing. It has the key's id, and never the key. The pattern stands for the endpoint:
// paths are endless, and the reports have a row for each.
func (s *server) log(r *http.Request, pattern string, status int, took time.Duration) {
	key, ok := httplimit.KeyFrom(r.Context())
	if !ok {
		return
	}
	_, endpoint, found := strings.Cut(pattern, " ")
	if !found {
		endpoint = "none"
	}
	_ = s.limiter.LogRequest(limits.LogEntry{ // a lost line must not fail the request
		Key: key.Key.ID, User: key.User, Endpoint: endpoint, Method: r.Method, Status: status, Millis: took.Milliseconds(),
	})
}

// statusWriter remembers the status for the log.
type statusWriter struct {
	http.ResponseWriter
	status   int  // 0 until one is written
	panicked bool // until the handler has returned
}

// result is 500 of a handler that panics, whatever it had written: its client got half an answer, or none.
func (w *statusWriter) result() int {
	if w.panicked {
		return http.StatusInternalServerError
	}
	return cmp.Or(w.status, http.StatusOK)
}

// WriteHeader remembers the first status that is not merely informational.
func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
