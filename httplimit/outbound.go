package httplimit

import (
	"context"
	"errors"
	"net/http"

	"github.com/seed503877ad/limits"
)

// Outbound returns an http.RoundTripper that calls [limits.Client.Wait] with turn before it sends a request. All processes
// that use the same limit together send no more than it allows. base sends the requests; nil means http.DefaultTransport.
//
//	client := &http.Client{Transport: httplimit.Outbound(c, limits.Per("outbound:weather", 60, "1m"), nil)}
//
// A request is not sent, and fails with the error of Wait, if
//
//   - its context ends while it waits,
//   - its turn would come after its deadline; this fails at once, and is a timeout,
//   - the limiter does not answer. The other service still counts requests, so they must not pass because nobody counts
//     them here.
//
// It is not sent either, and fails with a [*limits.Error], if
//
//   - the limiter allows it without its store, whatever on_error says (Status 503, [limits.CodeUnavailable]),
//   - turn has only attributes and nothing limits it (Status 404, [limits.CodeUnknownPolicy]). Then no policy fits the
//     attributes, perhaps because of a misspelled name, or the limiter runs without its policy file. The answer looks the same
//     if the limit that fits is unlimited, for a tier, at a time of day or by an override. So if the limit may be lifted,
//     turn has to name its Policy; then the request passes.
//
// To respect the answers of the other service as well, use Outbound as the Base of a [Transport]. Then each retry waits for
// its turn, too. The ID of turn is ignored, since each request is charged. Outbound panics if client is nil, as
// [Middleware] does.
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

// CloseIdleConnections closes the idle connections of the base, for [http.Client.CloseIdleConnections].
func (o *outbound) CloseIdleConnections() { closeIdle(o.base) }

// RoundTrip implements http.RoundTripper, which requires that the body is closed even if the request is not sent.
func (o *outbound) RoundTrip(req *http.Request) (*http.Response, error) {
	reply, err := o.client.Wait(req.Context(), o.turn)
	switch {
	case err != nil:
	case reply.Degraded:
		err = &limits.Error{Code: limits.CodeUnavailable, Status: http.StatusServiceUnavailable,
			Message: "the limiter cannot reach its store, so turns are not counted across processes"}
	case o.turn.Policy == "" && reply.Unlimited():
		err = &limits.Error{Code: limits.CodeUnknownPolicy, Status: http.StatusNotFound, Field: "attributes",
			Message: "no policy limits this request: no policy matches its attributes, or those that match are unlimited now;" +
				" name the policy to let the request pass while its limit is lifted"}
	}
	if err != nil {
		closeBody(req)
		return nil, &turnError{err}
	}
	return base(o.base).RoundTrip(req)
}

// turnError is the error of a request that was not sent.
type turnError struct{ cause error }

func (e *turnError) Error() string { return "wait for a turn: " + e.cause.Error() }
func (e *turnError) Unwrap() error { return e.cause }

// Timeout is for [net/url.Error] and os.IsTimeout, which do not unwrap errors.
func (e *turnError) Timeout() bool { return errors.Is(e.cause, context.DeadlineExceeded) }
