package httplimit

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed503877ad/limits"
)

// decision is what the handler may read and change of the request's limit, in its context.
type decision struct {
	reply *limits.Reply
	// cost is what SetCost said; unset until then.
	cost atomic.Int64
}

const unset = -1

type contextKey struct{}

// ReplyFrom gives the decision that let the request pass, for handlers that show it. There is none when the request
// was exempt or the limiter did not answer.
func ReplyFrom(ctx context.Context) (reply *limits.Reply, ok bool) {
	d, _ := ctx.Value(contextKey{}).(*decision)
	if d == nil || d.reply == nil {
		return nil, false
	}
	return d.reply, true
}

// SetCost says what the request turned out to cost, in mode [CheckThenRecord]: the charge after the handler is of
// this cost, and of none when it is 0. The context is the request's.
func SetCost(ctx context.Context, cost int64) {
	if d, _ := ctx.Value(contextKey{}).(*decision); d != nil {
		d.cost.Store(max(cost, 0))
	}
}

// handle runs the handler and, in mode CheckThenRecord, charges afterwards.
func (m *middleware) handle(w http.ResponseWriter, r *http.Request, next http.Handler, request limits.Request,
	reply *limits.Reply) {
	d := &decision{reply: reply}
	d.cost.Store(unset)
	r = r.WithContext(context.WithValue(r.Context(), contextKey{}, d))
	if m.Mode == Consume {
		next.ServeHTTP(w, r)
		return
	}
	recorder := &statusRecorder{ResponseWriter: w}
	returned := false
	// Deferred, so that work that was done is charged even if the handler panics after it. The panic goes on.
	defer func() {
		if m.Charge(recorder.result(returned)) {
			m.charge(r, request, d)
		}
	}()
	next.ServeHTTP(recorder.wrapped(), r)
	returned = true
}

func (m *middleware) charge(r *http.Request, request limits.Request, d *decision) {
	if cost := d.cost.Load(); cost == 0 {
		return
	} else if cost != unset {
		request.Cost = cost
	}
	if m.ChargeBehind {
		go m.record(r, request, max(m.Deadline, limits.DefaultTimeout))
		return
	}
	m.record(r, request, m.Deadline)
}

func (m *middleware) record(r *http.Request, request limits.Request, deadline time.Duration) {
	if _, err := m.ask(r, m.client.Record, request, deadline); err != nil {
		m.OnError(r, err)
	}
}

// statusRecorder remembers the status. Embedding hides what else the writer can do, so wrapped gives back what
// handlers ask for with a type assertion; http.ResponseController finds the rest by Unwrap.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

// wrapped shows exactly the interfaces that the writer beneath has: one that pretended to flush would be worse.
func (s *statusRecorder) wrapped() http.ResponseWriter {
	flusher, canFlush := s.ResponseWriter.(http.Flusher)
	hijacker, canHijack := s.ResponseWriter.(http.Hijacker)
	switch {
	case canFlush && canHijack:
		return struct {
			flushing
			http.Hijacker
		}{flushing{s, flusher}, hijacker}
	case canFlush:
		return flushing{s, flusher}
	case canHijack:
		return struct {
			*statusRecorder
			http.Hijacker
		}{s, hijacker}
	}
	return s
}

// flushing begins a response with a flush, if nothing was written: with a status of 200.
type flushing struct {
	*statusRecorder
	beneath http.Flusher
}

// Flush implements [http.Flusher].
func (f flushing) Flush() {
	f.implicit()
	f.beneath.Flush()
}

// FlushError is what [http.ResponseController] prefers to Flush: it tells that the client has gone.
func (f flushing) FlushError() error {
	f.implicit()
	return http.NewResponseController(f.ResponseWriter).Flush()
}

// result is the status of the whole; a handler that ended without one wrote 200, unless it panicked.
func (s *statusRecorder) result(returned bool) int {
	switch {
	case s.status != 0:
		return s.status
	case returned:
		return http.StatusOK
	}
	return http.StatusInternalServerError
}

// WriteHeader remembers the first status that is not merely informational.
func (s *statusRecorder) WriteHeader(status int) {
	if s.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

func (s *statusRecorder) Write(b []byte) (int, error) {
	s.implicit()
	return s.ResponseWriter.Write(b)
}

// ReadFrom keeps the writer's own way, such as sendfile, open to io.Copy.
func (s *statusRecorder) ReadFrom(from io.Reader) (int64, error) {
	s.implicit()
	return io.Copy(s.ResponseWriter, from)
}

// Unwrap is for http.ResponseController.
func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *statusRecorder) implicit() {
	if s.status == 0 {
		s.status = http.StatusOK
	}
}
