package httplimit

import (
	"context"
	"errors"
	"net/http"

	"github.com/seed503877ad/limits"
)

// Outbound is an http.RoundTripper that waits for its turn before each request: all processes that use the same
// limit together send no more than it allows. base sends the requests; nil is http.DefaultTransport.
//
//	client := &http.Client{Transport: httplimit.Outbound(c, limits.Per("outbound:weather", 60, "1m"), nil)}
//
// A request is not sent, and fails with the error of [limits.Client.Wait], when its context ends first, when its turn
// would come after its deadline (that is told at once, as a timeout), and when the limiter does not answer: what somebody else
// counts must not be passed because nobody counts here. A turn that the limiter gives without its store, whatever on_error says,
// is no answer either: the error is a [limits.Error] with Status 503 and [limits.CodeUnavailable].
//
// Nor is a turn that nothing limits, where turn has attributes alone: no policy fits them, as when the name of one is mistyped, or the
// limiter runs without its policy file. The error is a [limits.Error] with Status 404 and [limits.CodeUnknownPolicy]. The limiter answers
// alike where what fits is unlimited, for a tier, at a time of day or by an override, so a turn whose limit may be lifted has to name its
// Policy: then it passes.
//
// To keep to the server's own answers besides, use it as the Base of a [Transport]: then each repetition waits for
// its turn too. turn has no ID, since each request is charged. It panics without a client, as [Middleware] does.
func Outbound(client *limits.Client, turn limits.Request, base http.RoundTripper) http.RoundTripper {
	if client == nil {
		panic("httplimit: Outbound: client is nil: make one with limits.NewClient")
	}
	turn.ID = ""
	return &outbound{client: client, turn: turn, base: base}
}

type outbound struct {
	client *limits.Client
	turn   limits.Request
	base   http.RoundTripper
}

// CloseIdleConnections closes those of the base, for [http.Client.CloseIdleConnections].
func (o *outbound) CloseIdleConnections() { closeIdle(o.base) }

// RoundTrip implements http.RoundTripper. It closes the body also of a request that is not sent, as that asks.
func (o *outbound) RoundTrip(req *http.Request) (*http.Response, error) {
	reply, err := o.client.Wait(req.Context(), o.turn)
	switch {
	case err != nil:
	case reply.Degraded:
		err = &limits.Error{Code: limits.CodeUnavailable, Status: http.StatusServiceUnavailable,
			Message: "the limiter cannot reach its store, and so nobody counts the turns of all processes together"}
	case o.turn.Policy == "" && reply.Limit == 0 && len(reply.Limits) == 0:
		err = &limits.Error{Code: limits.CodeUnknownPolicy, Status: http.StatusNotFound, Field: "attributes",
			Message: "no policy limits this request: none that the limiter has fits its attributes, or what fits is unlimited now;" +
				" name the policy, and the request passes where its limit is lifted"}
	}
	if err != nil {
		closeBody(req)
		return nil, &turnError{err}
	}
	return base(o.base).RoundTrip(req)
}

// turnError is of a request that was not sent.
type turnError struct{ cause error }

func (e *turnError) Error() string { return "wait for a turn: " + e.cause.Error() }
func (e *turnError) Unwrap() error { return e.cause }

// Timeout is what [net/url.Error] and os.IsTimeout ask, which do not unwrap.
func (e *turnError) Timeout() bool { return errors.Is(e.cause, context.DeadlineExceeded) }
