package httplimit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed503877ad/limits"
)

// The context keys of a request's decision, a *limits.Reply, and of its cost in mode CheckThenRecord, a *atomic.Int64. If
// middlewares are nested, the handler sees the decision of the innermost, and the cost of the innermost in mode
// CheckThenRecord.
type (
	replyCtxKey struct{}
	costCtxKey  struct{}
)

// costUnset is the cost until SetCost is called.
const costUnset = -1

// ReplyFrom returns the decision that let the request pass, for handlers that show it. ctx is the context of the request.
// If middlewares are nested, it is the decision of the innermost. ok is false if the limiter was not asked, as about an exempt
// request, or did not answer.
func ReplyFrom(ctx context.Context) (reply *limits.Reply, ok bool) {
	reply, _ = ctx.Value(replyCtxKey{}).(*limits.Reply)
	return reply, reply != nil
}

// SetCost sets the cost that mode [CheckThenRecord] charges after the handler. It is bounded by [limits.MaxAmount]; for 0
// or less nothing is charged. ctx is the context of the request. If middlewares are nested, SetCost applies to the
// innermost one in that mode, even if one in mode [Consume] is inside of it.
func SetCost(ctx context.Context, cost int64) {
	if c, _ := ctx.Value(costCtxKey{}).(*atomic.Int64); c != nil {
		c.Store(min(max(cost, 0), limits.MaxAmount))
	}
}

// ErrNotCharged is wrapped by an error that [Config.OnError] gets about a charge, in mode [CheckThenRecord]: the request was
// served, and nothing confirms that it was charged.
var ErrNotCharged = errors.New("charge not confirmed")

// handle runs the handler and, in mode CheckThenRecord, charges afterwards.
func (m *middleware) handle(w http.ResponseWriter, r *http.Request, next http.Handler, request limits.Request, a *Answer) {
	ctx := context.WithValue(a.withKey(r).Context(), replyCtxKey{}, a.Reply)
	if m.Mode == Consume {
		inner := r.WithContext(ctx)
		defer copyBack(r, inner)
		next.ServeHTTP(w, inner)
		return
	}
	cost := new(atomic.Int64)
	cost.Store(costUnset)
	inner := r.WithContext(context.WithValue(ctx, costCtxKey{}, cost))
	defer copyBack(r, inner)
	r = inner
	recorder := &statusRecorder{ResponseWriter: w}
	returned := false
	// Deferred, so that work is charged even if the handler panics after it. The panic is not recovered.
	defer func() {
		if m.Charge(recorder.finalStatus(returned)) {
			m.charge(r, request, cost.Load())
		}
	}()
	next.ServeHTTP(recorder.wrapped(), r)
	returned = true
}

// copyBack copies to the original request what the handler has set in its copy: the form, because package http removes the
// temporary files of the original's form, and the pattern, because middlewares around this one may log it.
func copyBack(r, inner *http.Request) {
	if r.MultipartForm == nil {
		r.MultipartForm = inner.MultipartForm
	}
	r.Pattern = inner.Pattern
}

// charge charges the cost of SetCost or, if that was not called, the cost of the request.
func (m *middleware) charge(r *http.Request, request limits.Request, cost int64) {
	switch cost {
	case 0:
		return
	case costUnset:
	default:
		request.Cost = cost
	}
	if m.ChargeBehind {
		go m.record(r, request, max(m.Deadline, limits.DefaultTimeout))
		return
	}
	m.record(r, request, m.Deadline)
}

// record charges a request that was served. If its id was already used with another request, this one is not a repeat of
// that, and is charged without the id.
func (m *middleware) record(r *http.Request, request limits.Request, deadline time.Duration) {
	_, err := m.ask(r, m.client.Record, request, deadline)
	if e, ok := errors.AsType[*limits.Error](err); ok && e.Code == limits.CodeIDConflict {
		request.ID = ""
		_, err = m.ask(r, m.client.Record, request, deadline)
	}
	if err != nil {
		m.OnError(r, fmt.Errorf("%w: %w", ErrNotCharged, err))
	}
}

// statusRecorder records the status of a response. Embedding hides the optional interfaces of the writer. wrapped restores
// those that handlers find by a type assertion, and http.ResponseController finds the others by Unwrap.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

// wrapped returns the recorder with http.Flusher if the underlying writer has it, and with http.Hijacker if
// http.ResponseController would find one. A Flusher that only pretended to flush would be worse than none. Other
// interfaces, such as http.Pusher, stay hidden.
func (s *statusRecorder) wrapped() http.ResponseWriter {
	_, canFlush := s.ResponseWriter.(http.Flusher)
	switch canHijack := isHijackable(s.ResponseWriter); {
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

// isHijackable looks for an http.Hijacker as http.ResponseController does, which bypasses a recorder that is not one.
func isHijackable(w http.ResponseWriter) bool {
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

// Hijack implements [http.Hijacker]. A handler that has taken over the connection counts as having begun a response.
func (h hijacking) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err == nil {
		h.implicitOK()
	}
	return conn, buffer, err
}

type flushing struct{ *statusRecorder }

// Flush implements [http.Flusher].
func (f flushing) Flush() { _ = f.FlushError() }

// FlushError is the method that [http.ResponseController] looks for first. Its error says that the client has gone. Without
// it, the controller would bypass the recorder if an underlying writer has only Unwrap. A flush before any write begins
// the response, with status 200.
func (s *statusRecorder) FlushError() error {
	err := http.NewResponseController(s.ResponseWriter).Flush()
	if !errors.Is(err, http.ErrNotSupported) {
		s.implicitOK()
	}
	return err
}

// finalStatus is the status of the response. A handler that wrote none has implicitly written 200, unless it panicked.
func (s *statusRecorder) finalStatus(returned bool) int {
	switch {
	case s.status != 0:
		return s.status
	case returned:
		return http.StatusOK
	}
	return http.StatusInternalServerError
}

// WriteHeader records the first status that is not merely informational.
func (s *statusRecorder) WriteHeader(status int) {
	if s.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

func (s *statusRecorder) Write(b []byte) (int, error) {
	s.implicitOK()
	return s.ResponseWriter.Write(b)
}

// sniffBytes is how much net/http reads of a body to detect its type.
const sniffBytes = 512

// ReadFrom lets io.Copy use the ReadFrom of the underlying writer, such as sendfile. It writes the first bytes itself, as
// net/http does, so that a reader that fails before them, or is empty, has not begun a response.
func (s *statusRecorder) ReadFrom(from io.Reader) (n int64, err error) {
	if s.status == 0 {
		n, err = io.Copy(struct{ io.Writer }{s}, io.LimitReader(from, sniffBytes))
		if err != nil || n < sniffBytes {
			return n, err
		}
	}
	rest, err := io.Copy(s.ResponseWriter, from)
	return n + rest, err
}

// Unwrap returns the underlying writer, for http.ResponseController.
func (s *statusRecorder) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// implicitOK records the status 200 of a response that begins without one.
func (s *statusRecorder) implicitOK() {
	if s.status == 0 {
		s.status = http.StatusOK
	}
}
