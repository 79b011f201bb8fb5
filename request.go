package limits

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// The headers that a NATS micro service puts on an answer that is an error.
const (
	headerError     = "Nats-Service-Error"
	headerErrorCode = "Nats-Service-Error-Code"
)

// Subjects with these prefixes are answered by an alerter, or by a limiter that runs one inside.
const (
	alertsPrefix = "limits.admin.alerts."
	jobsPrefix   = "limits.admin.jobs."
)

// takeoverPauses are the pauses between attempts while no limiter is listening. Together they are long enough for a
// standby limiter to take over from one that died.
var takeoverPauses = [...]time.Duration{10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond}

// asksDecision reports whether an answer on the subject is of use only now. If it cannot be had now, the request must
// not be sent later either.
func asksDecision(subject string) bool {
	return subject == SubjectConsume || subject == SubjectCheck || subject == SubjectVerify
}

// answeredByAlerter reports whether an alerter answers the subject, and limiters do not.
func answeredByAlerter(subject string) bool {
	return strings.HasPrefix(subject, alertsPrefix) || strings.HasPrefix(subject, jobsPrefix)
}

// checkConnection returns an error if a call must not use the connection. A deferrable call is of use even if the
// connection sends it later, so it may use a stalled connection until too many calls are blocked there.
func (c *Client) checkConnection(name string, deferrable bool) error {
	switch {
	case c.nc == nil:
		return fmt.Errorf("%s: %w", name, nats.ErrInvalidConnection)
	case c.blocking.full() || !deferrable && c.blocking.stalled():
		return fmt.Errorf("%s: not sent, because the connection to %s is stalled: %w", name, serverNames(c.nc), nats.ErrDisconnected)
	}
	return nil
}

// request may block for longer than ctx lasts, so it runs in [blockingCalls.run]. It does not send a request for a
// decision if the connection is down, possibly after it blocked for long.
func (c *Client) request(ctx context.Context, subject string, body []byte) (*nats.Msg, error) {
	if asksDecision(subject) && !c.nc.IsConnected() && !c.nc.IsClosed() {
		return nil, fmt.Errorf("%s: not sent, because the decision would come too late and still be charged: %w", subject, c.disconnected())
	}
	msg, err := c.requestThroughTakeover(ctx, subject, body)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, noLimiter(subject)
	case errors.Is(err, nats.ErrMaxPayload):
		return nil, tooLarge(subject, body)
	case err != nil:
		return nil, c.noAnswer(subject, err)
	}
	return msg, nil
}

// requestThroughTakeover sends a request, and sends it again while nobody is listening, which is safe because nobody
// has seen it. After all pauses have passed in vain, or as many as ctx had time for, requests are sent only once for
// the next second: callers that let requests pass without a limiter should not be slowed down each time.
func (c *Client) requestThroughTakeover(ctx context.Context, subject string, body []byte) (msg *nats.Msg, err error) {
	for _, pause := range takeoverPauses {
		msg, err = c.nc.RequestWithContext(ctx, subject, body)
		switch {
		case !errors.Is(err, nats.ErrNoResponders) || c.lackedLimiter():
			return msg, err
		case sleep(ctx, pause) != nil:
			if pause > takeoverPauses[0] && ctx.Err() == nil {
				c.noteNoLimiter(subject)
			}
			return nil, err
		case asksDecision(subject) && !c.nc.IsConnected(): // nats.go would buffer it, and it would be charged later
			return nil, err
		}
	}
	if msg, err = c.nc.RequestWithContext(ctx, subject, body); errors.Is(err, nats.ErrNoResponders) {
		c.noteNoLimiter(subject)
	}
	return msg, err
}

func (c *Client) noteNoLimiter(subject string) {
	if !answeredByAlerter(subject) {
		now := time.Now()
		c.noLimiterAt.Store(&now)
	}
}

// lackedLimiter reports whether no limiter was listening within the last second.
func (c *Client) lackedLimiter() bool {
	at := c.noLimiterAt.Load()
	return at != nil && time.Since(*at) < time.Second
}

// disconnected returns an error with the servers that the connection tries and the reason why it has none.
func (c *Client) disconnected() error {
	tried := strings.Join(c.nc.Servers(), ",")
	if reason := connectError(c.nc); reason != nil {
		return fmt.Errorf("%w from %s: %w", nats.ErrDisconnected, tried, reason)
	}
	return fmt.Errorf("%w from %s", nats.ErrDisconnected, tried)
}

// noAnswer adds to err why no answer came, if that is known. A server reports a refused publish or subscription as an
// asynchronous error of the connection, not of the request. That error may also be an old one about another subject.
func (c *Client) noAnswer(subject string, err error) error {
	inbox := cmp.Or(c.nc.Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, "."))
	if last := c.nc.LastError(); isRefusal(last, `Publish to "`+subject+`"`) || isRefusal(last, `Subscription to "`+inbox+".") {
		return fmt.Errorf("%s: no answer: %w: %w", subject, err, last)
	}
	return fmt.Errorf("%s: no answer%s: %w", subject, fromServers(c.nc), err)
}

// isRefusal reports whether err is the server's refusal of an operation, such as `Publish to "limits.check"`.
func isRefusal(err error, operation string) bool {
	return errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), operation)
}

func tooLarge(subject string, body []byte) *Error {
	return &Error{Code: CodeTooLarge, Status: 413, Message: fmt.Sprintf(
		"%s: a request of %d bytes is too large for the NATS server; see its max_payload", subject, len(body))}
}

func noLimiter(subject string) *Error {
	message := subject + ": no limiter is listening on this NATS server"
	if answeredByAlerter(subject) {
		message = subject + ": no alerter is listening on this NATS server; start a limiter with --alerter on, or, if the limiters are" +
			" workers on PostgreSQL, run the program alerter with their --nats-url and --database-url"
	}
	return &Error{Code: CodeUnavailable, Status: 503, Message: message}
}

// serviceError reads an answer that is an error. The micro framework answers some requests itself, without our body;
// then the message is that of its header.
func serviceError(msg *nats.Msg) *Error {
	status, _ := strconv.Atoi(msg.Header.Get(headerErrorCode))
	var body ErrorBody
	if err := json.Unmarshal(msg.Data, &body); err != nil || body.Error == nil {
		body.Error = &Error{Code: "error", Message: msg.Header.Get(headerError)}
	}
	body.Error.Status = status
	return body.Error
}
