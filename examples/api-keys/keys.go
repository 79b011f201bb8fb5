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

// sessionUserKey is the context key of the user of a session.
type sessionUserKey struct{}

// userOf returns the user of a request's API key or session.
func userOf(ctx context.Context) string {
	if key, ok := httplimit.KeyFrom(ctx); ok {
		return key.User
	}
	user, _ := ctx.Value(sessionUserKey{}).(string)
	return user
}

// withSessionUser returns the request with the user of its session.
func withSessionUser(user string, r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), sessionUserKey{}, user))
}

// keyed passes requests with a valid key to next, within the rate of the key, and logs them.
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

// logged logs requests with their status and duration.
func (s *server) logged(next http.Handler, endpoint httplimit.Attribute) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		seen := &statusWriter{ResponseWriter: w, panicked: true}
		defer func() { s.log(r, endpoint(r), seen.result(), time.Since(begin)) }()
		next.ServeHTTP(seen, r)
		seen.panicked = false
	})
}

// log sends a line of the request log without waiting for an answer. The line has the id of the key, and never the key itself. The
// endpoint is the route pattern and not the path, since reports have a row for each endpoint.
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

// statusWriter records the status for the log.
type statusWriter struct {
	http.ResponseWriter
	status   int  // 0 until one is written
	panicked bool // until the handler has returned
}

// result is the status to log. It is 500 for a handler that panicked, even if it had written a status, because the client got
// only a part of the response, or none.
func (w *statusWriter) result() int {
	if w.panicked {
		return http.StatusInternalServerError
	}
	return cmp.Or(w.status, http.StatusOK)
}

// WriteHeader records the first status that is not merely informational.
func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap returns the underlying writer, for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
