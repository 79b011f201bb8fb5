package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"log"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/httplimit"
)

// caller is whose key a request came with, or whose session: that has a user only.
type caller struct{ key, user string }

type callerKey struct{}

func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// by gives the request with its caller.
func by(who caller, r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), callerKey{}, who))
}

// keyed lets requests with a valid key pass to next, within the key's rate, and logs them.
func (s *server) keyed(next http.Handler, endpoint httplimit.Attribute) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		who, rate, err := s.verify(r)
		if refused, ok := errors.AsType[*refusal](err); ok {
			refuse(w, refused.status, refused.why)
			return
		}
		seen := &statusWriter{ResponseWriter: w, panicked: true}
		defer func() { s.log(r, who, endpoint(r), seen.result(), time.Since(begin)) }()
		if s.within(seen, rate) {
			next.ServeHTTP(seen, by(who, r))
		}
		seen.panicked = false
	})
}

// refusal is an answer to a request that has no valid key.
type refusal struct {
	status int
	why    string
}

func (r *refusal) Error() string { return r.why }

// verify asks in one call whose the key is and whether its rate allows the request. Without an answer, a key that was
// valid before passes with no decision; whose another one is, nobody can say. The request's own context would end whenever
// its client likes, which merely has to close its half of the connection, and a known key would pass with no decision.
func (s *server) verify(r *http.Request) (who caller, rate *limits.Reply, err error) {
	key := r.Header.Get("X-API-Key")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), s.deadline)
	defer cancel()
	answer, err := s.limiter.VerifyKey(ctx, limits.VerifyRequest{APIKey: key, Policy: "key-rate"})
	digest := sha256.Sum256([]byte(key))
	if err != nil {
		return s.remembered(digest, err)
	}
	if !answer.Valid {
		s.known.Delete(digest)
		return who, nil, &refusal{http.StatusUnauthorized, "key " + answer.Code}
	}
	who = caller{answer.Key.ID, answer.User}
	s.known.Store(digest, who)
	return who, answer.Decision, nil
}

func (s *server) remembered(digest [sha256.Size]byte, err error) (caller, *limits.Reply, error) {
	if known, ok := s.known.Load(digest); ok {
		return known.(caller), nil, nil
	}
	// What the limiter cannot read, such as no key at all, is no key of ours.
	if e, ok := errors.AsType[*limits.Error](err); ok &&
		(e.Status == http.StatusBadRequest || e.Status == http.StatusRequestEntityTooLarge) {
		return caller{}, nil, &refusal{http.StatusUnauthorized, "key " + limits.KeyUnknown}
	}
	log.Printf("verify a key: %v", err) // such as a policy that the limiter does not have
	return caller{}, nil, &refusal{http.StatusServiceUnavailable, "keys cannot be verified now"}
}

// within sets the headers of the key's rate and answers 429 past it.
func (s *server) within(w http.ResponseWriter, rate *limits.Reply) bool {
	a := &httplimit.Answer{Reply: rate, At: time.Now(), Status: http.StatusTooManyRequests}
	httplimit.XRateLimitUnix(w.Header(), a)
	if !a.Denied() {
		return true
	}
	contentType, body := httplimit.JSONQuota(a)
	w.Header().Set("Content-Type", contentType)
	if seconds, ok := a.RetryAfter(); ok {
		w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(body) // the client may be gone
	return false
}

// log sends a line and waits for nothing. It has the key's id, and never the key. The pattern stands for the endpoint:
// paths are endless, and the reports have a row for each.
func (s *server) log(r *http.Request, who caller, pattern string, status int, took time.Duration) {
	_, endpoint, ok := strings.Cut(pattern, " ")
	if !ok {
		endpoint = "none"
	}
	_ = s.limiter.LogRequest(limits.LogEntry{ // a lost line must not fail the request
		Key: who.key, User: who.user, Endpoint: endpoint, Method: r.Method, Status: status, Millis: took.Milliseconds(),
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
