package httplimit

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed503877ad/limits"
)

// Middleware returns a middleware that asks client before each request, and answers 429 if the reply is a denial. It
// panics if config is not valid, as http.ServeMux does; the message names the field.
func Middleware(client *limits.Client, config Config) func(http.Handler) http.Handler {
	if client == nil {
		panic("httplimit: Middleware: client is nil: make one with limits.NewClient")
	}
	if err := config.validate(); err != nil {
		panic("httplimit: Middleware: " + err.Error())
	}
	m := &middleware{Config: config.withDefaults(), client: client}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

type middleware struct {
	Config
	client *limits.Client
	keys   validKeyCache // for APIKey
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.Exempt != nil && m.Exempt(r) {
		next.ServeHTTP(w, r)
		return
	}
	request, limited := m.request(r)
	if !limited {
		next.ServeHTTP(w, r)
		return
	}
	a, err := m.decide(r, request)
	if err != nil {
		m.OnError(r, err)
	}
	if a.Status != 0 {
		m.refuse(w, a)
		return
	}
	reply := a.Reply
	// The store failed and the policy then denies: no limit is exceeded and none is named, so 429 and a used-up limit in the
	// headers would be wrong.
	undecided := a.Denied() && reply.Degraded && reply.BlockedBy == ""
	if reply != nil && !undecided {
		for _, set := range m.Headers {
			set(w.Header(), a)
		}
	}
	if a.Denied() {
		if m.OnDenied != nil {
			m.OnDenied(a.withKey(r), reply)
		}
		if a.Status = http.StatusTooManyRequests; undecided {
			a.Status = m.FailStatus
		}
		m.refuse(w, a)
		return
	}
	m.handle(w, r, next, request, a)
}

// request builds the request to the limiter. limited is false if nothing limits the HTTP request.
func (m *middleware) request(r *http.Request) (request limits.Request, limited bool) {
	if m.Limits != nil {
		switch specs := m.Limits(r); len(specs) {
		case 0:
			return request, false
		case 1:
			request.LimitSpec = specs[0]
		default:
			request.Limits = specs
		}
	} else {
		request.Policy, request.Tier = m.Policy.value(r), m.Tier.value(r)
		request.Attributes = m.attributes(r, request.Policy != "" || m.APIKey != nil)
		if request.Policy == "" && len(request.Attributes) == 0 && m.APIKey == nil {
			return request, false
		}
	}
	if m.Cost != nil {
		request.Cost = min(max(m.Cost(r), 0), limits.MaxAmount) // 0 is left out, and charges 1
	}
	request.ID = m.ID.value(r)
	return request, true
}

// value returns an empty text for a nil attribute.
func (a Attribute) value(r *http.Request) string {
	if a == nil {
		return ""
	}
	return a(r)
}

// attributes returns the attributes that have a value. If none has one, it returns all of them, empty, unless allowNone
// is set: a request that names no policy needs at least one attribute to be valid.
func (m *middleware) attributes(r *http.Request, allowNone bool) map[string]string {
	given, all := map[string]string{}, map[string]string{}
	for name, attribute := range m.Attributes {
		value := attribute.value(r)
		all[name] = value
		if value != "" {
			given[name] = value
		}
	}
	if len(given) == 0 && !allowNone {
		return all
	}
	return given
}

// decide asks the limiter. The answer has a status only if the request is refused without a decision.
func (m *middleware) decide(r *http.Request, request limits.Request) (a *Answer, err error) {
	a = &Answer{spec: request.LimitSpec}
	switch {
	case m.APIKey != nil:
		err = m.verify(r, request, a)
	case m.Mode == Consume:
		a.Reply, err = m.ask(r, m.client.Consume, request, m.Deadline)
	default:
		// A check ignores the id, which belongs to the charge. It is sent nevertheless, so that an invalid id is refused
		// before the work.
		a.Reply, err = m.ask(r, m.client.Check, request, m.Deadline)
	}
	if a.At = time.Now(); err != nil && m.APIKey == nil {
		a.Status = m.refusal(err)
	}
	return a, err
}

// ask sends a request with a deadline of its own. A request that is too large is refused here, before it costs anything
// on NATS.
func (m *middleware) ask(r *http.Request, verb func(context.Context, limits.Request) (*limits.Reply, error),
	request limits.Request, deadline time.Duration) (*limits.Reply, error) {
	if textBytes(request) > limits.MaxRequestBytes {
		return nil, &limits.Error{Code: limits.CodeTooLarge, Status: http.StatusRequestEntityTooLarge,
			Message: "the attributes of the HTTP request are too large for a request to the limiter"}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), deadline)
	defer cancel()
	return verb(ctx, request)
}

func textBytes(r limits.Request) int {
	n := len(r.Policy) + len(r.Tier) + len(r.ID) + len(r.Key) + len(r.Name)
	for name, value := range r.Attributes {
		n += len(name) + len(value)
	}
	for _, spec := range r.Limits {
		n += len(spec.Key) + len(spec.Name)
	}
	return n
}

// refusal returns the status to refuse a request with after an error; 0 lets it pass.
func (m *middleware) refusal(err error) int {
	if e, ok := errors.AsType[*limits.Error](err); ok {
		switch e.Status {
		case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
			return http.StatusBadRequest
		case http.StatusConflict:
			return http.StatusConflict
		}
	}
	if m.FailClosed {
		return m.FailStatus
	}
	return 0
}

func (m *middleware) refuse(w http.ResponseWriter, a *Answer) {
	contentType, body := m.Body(a)
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	setRetryAfter(h, a)
	if a.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", a.challenge())
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(body) // the client may be gone
}

// errorLog is the default OnError. Each kind of failure has its own throttle, so that errors that a client can cause do
// not suppress the others.
type errorLog struct{ refused, undecided, uncharged logThrottle }

const errorLogEvery = 10 * time.Second

// logThrottle allows a log line every errorLogEvery. last is when the last one was written; nil before the first.
type logThrottle struct{ last atomic.Pointer[time.Time] }

func (t *logThrottle) allow() bool {
	last := t.last.Load()
	if last != nil && time.Since(*last) < errorLogEvery {
		return false
	}
	now := time.Now()
	return t.last.CompareAndSwap(last, &now)
}

// warn does not log the message of an error of the limiter. The message quotes the value at fault, which came from the
// client and may be a secret.
func (l *errorLog) warn(r *http.Request, err error) {
	what, kind, cause := "no decision", &l.undecided, slog.Any("error", err)
	if e, ok := errors.AsType[*limits.Error](err); ok {
		cause = slog.Group("error", "status", e.Status, "code", e.Code, "field", e.Field)
		switch e.Status {
		case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusConflict:
			kind = &l.refused
		}
	}
	if errors.Is(err, ErrNotCharged) {
		what, kind = ErrNotCharged.Error(), &l.uncharged
	}
	if kind.allow() {
		slog.WarnContext(r.Context(), "rate limit: "+what+"; suppressing further warnings of this kind for "+errorLogEvery.String(), cause)
	}
}
