package httplimit

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed503877ad/limits"
)

// The keys of what the handler may read and change of the request's limits, in its context. Middlewares may stand inside each
// other: the reply, a *limits.Reply, is that of the innermost, and the cost, a *atomic.Int64, that of the innermost in mode
// CheckThenRecord.
type (
	replyKey struct{}
	costKey  struct{}
)

// unset is the cost until SetCost says one.
const unset = -1

// ReplyFrom gives the decision that let the request pass, for handlers that show it: of several middlewares, that of the
// innermost. There is none when the request was exempt or the limiter did not answer.
func ReplyFrom(ctx context.Context) (reply *limits.Reply, ok bool) {
	reply, _ = ctx.Value(replyKey{}).(*limits.Reply)
	return reply, reply != nil
}

// SetCost says what the request turned out to cost, in mode [CheckThenRecord]: the charge after the handler is of
// this cost, of [limits.MaxAmount] when it is more, and of none when it is 0 or less. The context is the request's. Of several
// middlewares it is the nearest one in that mode, also when one in mode [Consume] stands inside of it.
func SetCost(ctx context.Context, cost int64) {
	if c, _ := ctx.Value(costKey{}).(*atomic.Int64); c != nil {
		c.Store(min(max(cost, 0), limits.MaxAmount))
	}
}

// handle runs the handler and, in mode CheckThenRecord, charges afterwards.
func (m *middleware) handle(w http.ResponseWriter, r *http.Request, next http.Handler, request limits.Request, a *Answer) {
	ctx := context.WithValue(a.withKey(r).Context(), replyKey{}, a.Reply)
	if m.Mode == Consume {
		inner := r.WithContext(ctx)
		defer handBack(r, inner)
		next.ServeHTTP(w, inner)
		return
	}
	cost := new(atomic.Int64)
	cost.Store(unset)
	inner := r.WithContext(context.WithValue(ctx, costKey{}, cost))
	defer handBack(r, inner)
	r = inner
	recorder := &statusRecorder{ResponseWriter: w}
	returned := false
	// Deferred, so that work that was done is charged even if the handler panics after it. The panic goes on.
	defer func() {
		if m.Charge(recorder.result(returned)) {
			m.charge(r, request, cost.Load())
		}
	}()
	next.ServeHTTP(recorder.wrapped(), r)
	returned = true
}

// handBack gives the request that came what the handler has found in its copy: the form, whose temporary files package http removes with
// the request that it made itself, and the pattern, which those around this middleware may log.
func handBack(r, inner *http.Request) {
	if r.MultipartForm == nil {
		r.MultipartForm = inner.MultipartForm
	}
	if r.Pattern == "" {
		r.Pattern = inner.Pattern
	}
}

// charge charges the cost that SetCost said, or that of the request.
func (m *middleware) charge(r *http.Request, request limits.Request, cost int64) {
	switch cost {
	case 0:
		return
	case unset:
	default:
		request.Cost = cost
	}
	if m.ChargeBehind {
		go m.record(r, request, max(m.Deadline, limits.DefaultTimeout))
		return
	}
	m.record(r, request, m.Deadline)
}

// record charges without the id where that was used with another request: this one is no repeat of that, and was served.
func (m *middleware) record(r *http.Request, request limits.Request, deadline time.Duration) {
	_, err := m.ask(r, m.client.Record, request, deadline)
	if e, ok := errors.AsType[*limits.Error](err); ok && e.Code == limits.CodeIDConflict {
		request.ID = ""
		_, err = m.ask(r, m.client.Record, request, deadline)
	}
	if err != nil {
		m.OnError(r, &unconfirmed{err})
	}
}

// unconfirmed tells a charge that is not confirmed from a question without an answer.
type unconfirmed struct{ cause error }

func (u *unconfirmed) Error() string { return "charge: " + u.cause.Error() }
func (u *unconfirmed) Unwrap() error { return u.cause }

// statusRecorder remembers the status. Embedding hides what else the writer can do, so wrapped gives back what
// handlers ask for with a type assertion; http.ResponseController finds the rest by Unwrap.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

// wrapped shows http.Flusher where the writer beneath has it, and http.Hijacker where http.ResponseController finds one: one that
// pretended to flush would be worse. Others, such as http.Pusher, it hides.
func (s *statusRecorder) wrapped() http.ResponseWriter {
	_, canFlush := s.ResponseWriter.(http.Flusher)
	switch canHijack := hijacks(s.ResponseWriter); {
	case canFlush && canHijack:
		return struct {
			flushing
			http.Hijacker
		}{flushing{s}, hijacking{s}}
	case canFlush:
		return flushing{s}
	case canHijack:
		return hijacking{s}
	}
	return s
}

// hijacks looks for an http.Hijacker where http.ResponseController does, which would go past a recorder that is none.
func hijacks(w http.ResponseWriter) bool {
	for {
		if _, ok := w.(http.Hijacker); ok {
			return true
		}
		wrapper, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = wrapper.Unwrap()
	}
}

type hijacking struct{ *statusRecorder }

// Hijack implements [http.Hijacker]. Who has the connection has begun a response, whatever becomes of it.
func (h hijacking) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err == nil {
		h.implicit()
	}
	return conn, buffer, err
}

type flushing struct{ *statusRecorder }

// Flush implements [http.Flusher].
func (f flushing) Flush() { _ = f.FlushError() }

// FlushError is what [http.ResponseController] asks for before anything else: it tells that the client has gone. Without it, that
// would go past the recorder where a writer beneath offers no more than Unwrap. A flush begins a response, if nothing was
// written: with a status of 200.
func (s *statusRecorder) FlushError() error {
	err := http.NewResponseController(s.ResponseWriter).Flush()
	if !errors.Is(err, http.ErrNotSupported) {
		s.implicit()
	}
	return err
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

// sniffed is how much net/http looks at to tell the type of a body.
const sniffed = 512

// ReadFrom keeps the writer's own way, such as sendfile, open to io.Copy. The first bytes it writes itself, as net/http does: a
// reader that breaks before them, or has none, has begun no response.
func (s *statusRecorder) ReadFrom(from io.Reader) (n int64, err error) {
	if s.status == 0 {
		n, err = io.Copy(struct{ io.Writer }{s}, io.LimitReader(from, sniffed))
		if err != nil || n < sniffed {
			return n, err
		}
	}
	rest, err := io.Copy(s.ResponseWriter, from)
	return n + rest, err
}

// Unwrap is for http.ResponseController.
func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *statusRecorder) implicit() {
	if s.status == 0 {
		s.status = http.StatusOK
	}
}
