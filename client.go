package limits

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// DefaultTimeout bounds a call whose context has no deadline.
const DefaultTimeout = 2 * time.Second

// maxReplyBytes is the largest answer that a call accepts. A NATS server may be configured to carry larger
// messages, and then a page of a list could exceed it.
const maxReplyBytes = 1 << 20

// Client asks a limiter over a NATS connection. It is safe for concurrent use.
//
// # Timeouts
//
// Every call returns when its context ends, or after [DefaultTimeout] (or the [Timeout] of the client) if the context
// has no deadline, even if the network has silently stopped accepting data. For [Client.Wait] and [Client.All] that
// timeout bounds each attempt and each page, and not the whole call.
//
// After a call that got no answer, the charge may or may not have been made. A [Request] with an ID can be sent
// again: the same ID charges once.
//
// In an HTTP server, do not pass the context of an incoming request. It ends when the client goes away or merely
// closes its half of the connection, so a client could prevent decisions at will. Use a deadline of your own, with
// context.WithTimeout(context.WithoutCancel(r.Context()), ...), as package httplimit does.
//
// # Errors
//
// A call fails with one of these:
//
//   - An [*Error], if the service answered with one. The client makes one itself if no limiter is listening (Status
//     503, Code [CodeUnavailable]), if the answer has more than 1 MiB or the request more than the NATS server takes in
//     one message (Status 413, Code [CodeTooLarge]), and if a text of the request is not valid UTF-8 (Status 400).
//   - An error that wraps [context.DeadlineExceeded], if no answer came in time, or [context.Canceled], if the context was
//     canceled first. It also wraps nats.ErrPermissionViolation if the NATS server said that the user may not send this
//     request, or may not listen for answers. In the latter case set the inbox prefix that the user is permitted, with
//     nats.CustomInboxPrefix.
//   - An error that wraps nats.ErrDisconnected, at once, if the connection is interrupted and the call asks for a
//     decision: Consume, Check, VerifyKey and Wait. The connection would buffer the request and send it later, and
//     it would be charged although nobody waits for the decision any more. Calls that report something that has
//     already happened, such as Record, Refund and Settle, are buffered and sent when the connection is back, whether
//     or not the caller still waits. Once 8 MiB are buffered (nats.ReconnectBufSize), further ones fail at once, with
//     nats.ErrReconnectBufExceeded. What is buffered is lost if no limiter is listening when the connection is back: after
//     a restart of NATS the client may reconnect before the limiter does.
//   - An error that wraps nats.ErrDisconnected, at once, if a call that timed out a second ago is still blocked inside
//     the connection, because the network accepts no data or because a server is silent during a reconnect. This
//     applies to calls that ask for a decision, to LogRequest and to Watch, and to all calls once 16,384 are blocked.
//   - An error that says so, if the answer is not a limiter's, such as a decision without "allowed".
//   - Otherwise the error of the connection, such as nats.ErrConnectionClosed, or nats.ErrInvalidConnection if the
//     connection is nil.
//
// While the connection is down, the errors name the NATS servers, without their credentials, and why the last attempt
// to connect failed.
type Client struct {
	nc       *nats.Conn
	timeout  time.Duration
	blocking blockingCalls
	queues   waitQueues
	// noLimiterAt is when requests last found no limiter listening even after all retries; nil for never.
	noLimiterAt atomic.Pointer[time.Time]
}

// Option configures a [Client].
type Option func(*Client)

// Timeout bounds calls whose context has no deadline, in place of [DefaultTimeout]. 0 stands for DefaultTimeout.
func Timeout(d time.Duration) Option {
	return func(c *Client) { c.timeout = cmp.Or(d, DefaultTimeout) }
}

// NewClient returns a client that uses nc. The caller remains responsible for closing nc.
//
// Connect nc with [Reconnect]. With the defaults of nats.go, connecting fails while no NATS server can be reached, and
// the connection is closed for good after 60 attempts (two minutes without a server) or when a server refuses its
// credentials twice. From then on every call fails until the process restarts.
func NewClient(nc *nats.Conn, options ...Option) *Client {
	c := &Client{nc: nc, timeout: DefaultTimeout}
	for _, o := range options {
		o(c)
	}
	return c
}

// Consume decides whether a request is allowed and, if all its limits have room, charges them, in one atomic step. A
// denial is a normal reply and charges nothing.
func (c *Client) Consume(ctx context.Context, r Request) (*Reply, error) {
	reply, err := c.decide(ctx, SubjectConsume, r)
	if err == nil {
		reply.ID = r.ID
	}
	return reply, err
}

// Check decides as [Client.Consume] would right now, and charges nothing.
func (c *Client) Check(ctx context.Context, r Request) (*Reply, error) {
	return c.decide(ctx, SubjectCheck, r)
}

// Record charges work that already happened, even past the limit. Allowed says whether the cost still fitted. Of a policy
// in shadow it charges nothing if one of its limits has nothing left: enforced, the policy would have denied the Check
// before the work.
func (c *Client) Record(ctx context.Context, r Request) (*Reply, error) {
	return c.decide(ctx, SubjectRecord, r)
}

// Refund gives cost back, up to the limit; nothing is saved up for a later window.
//
// A refund does not name the charge that it takes back. If the window of that charge is over, the refund reduces what
// the current window has used. To prevent that, consume with an ID and use [Client.Settle], which knows the window
// that was charged.
func (c *Client) Refund(ctx context.Context, r Request) (*Reply, error) {
	return c.decide(ctx, SubjectRefund, r)
}

// Settle sets the final cost of an earlier [Client.Consume] or [Client.VerifyKey] with this ID: reserve an estimate,
// do the work, settle the actual cost. After [Client.Wait], pass the ID of the reply. Allowed says whether the final
// cost fitted.
//
// Settling again with the same cost returns the same answer. It fails with an [*Error] with the code
//
//   - [CodeIDConflict], if the ID was already settled with another cost,
//   - [CodeUnknownID], if the ID is not known: no request had it, or the request is not decided yet (settle again a
//     little later), was charged without the store, or is older than 10 minutes,
//   - [CodeNothingToSettle], if the ID is not that of an allowed request, such as one that was denied.
func (c *Client) Settle(ctx context.Context, id string, cost int64) (*Reply, error) {
	return c.decide(ctx, SubjectSettle, SettleRequest{ID: id, Cost: cost})
}

// Status returns the counters of a key. An unknown key has none.
func (c *Client) Status(ctx context.Context, key string) (*Status, error) {
	return call[Status](ctx, c, SubjectStatus, StatusRequest{Key: key})
}

// StatusOf returns how the limits stand that policies set for a request, such as for a page that shows a user what is left.
// Unlike a Check it counts no denial if nothing remains.
func (c *Client) StatusOf(ctx context.Context, r StatusRequest) (*Status, error) {
	return call[Status](ctx, c, SubjectStatus, r)
}

// List returns one page of counters. [Client.All] iterates over all pages.
func (c *Client) List(ctx context.Context, r ListRequest) (*List, error) {
	return call[List](ctx, c, SubjectList, r)
}

// All iterates over the counters whose key begins with prefix, in key order, and requests pages as needed. An empty
// prefix selects all counters. The sequence ends after an error. If ctx has no deadline, each page has its own timeout.
func (c *Client) All(ctx context.Context, prefix string) iter.Seq2[Counter, error] {
	return func(yield func(Counter, error) bool) {
		r := ListRequest{Prefix: prefix, Max: MaxListPage}
		for {
			page, err := c.List(ctx, r)
			if e, ok := errors.AsType[*Error](err); ok && e.Code == CodeTooLarge && r.Max > 1 {
				r.Max /= 2
				continue
			}
			if err != nil {
				yield(Counter{}, err)
				return
			}
			for _, counter := range page.Counters {
				if !yield(counter, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			r.After = page.Next
		}
	}
}

// Reset sets counters back to unused: those of one key, or of all keys with a prefix.
func (c *Client) Reset(ctx context.Context, r ResetRequest) (*ResetReply, error) {
	return call[ResetReply](ctx, c, SubjectReset, r)
}

// Do sends a request body to a subject of the service and returns the answer's JSON as it came. It works for every
// subject but [SubjectUsage], which is never answered. If the answer is an error, Do returns its body and the [*Error],
// and if it is not a limiter's, its body and an error that says so. The other methods are built on Do.
func (c *Client) Do(ctx context.Context, subject string, body []byte) ([]byte, error) {
	if subject == SubjectUsage {
		return nil, &Error{Status: 400, Code: "invalid_subject", Field: "subject",
			Message: subject + " never answers; send lines of the request log with LogRequest"}
	}
	return c.do(ctx, subject, bytes.Clone(body))
}

// do is Do with a body that stays as it is, because the connection may read it after do has returned.
func (c *Client) do(ctx context.Context, subject string, body []byte) ([]byte, error) {
	if err := c.checkConnection(subject, !asksDecision(subject)); err != nil {
		return nil, err
	}
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	var msg *nats.Msg
	var err error
	if !c.blocking.run(ctx, func() { msg, err = c.request(ctx, subject, body) }) {
		return nil, fmt.Errorf("%s: no answer from %s: %w", subject, serverNames(c.nc), ctx.Err())
	}
	switch {
	case err != nil:
		return nil, err
	case msg.Header[headerErrorCode] != nil || msg.Header[headerError] != nil: // even if they are empty
		return msg.Data, serviceError(msg)
	case len(msg.Data) > maxReplyBytes:
		return nil, &Error{Code: CodeTooLarge, Status: 413, Message: fmt.Sprintf(
			"%s: the answer of %d bytes is too large, at most %d are read; ask for fewer at a time with max", subject, len(msg.Data), maxReplyBytes)}
	}
	return msg.Data, checkAnswer(subject, msg.Data)
}

// withTimeout gives ctx the client's timeout if it has no deadline.
func (c *Client) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.timeout)
}

// decide sends a request whose answer is a decision.
func (c *Client) decide(ctx context.Context, subject string, request any) (*Reply, error) {
	answer, err := c.ask(ctx, subject, request)
	if err != nil {
		return nil, err
	}
	if reply, ok := readReply(answer); ok {
		return reply, nil
	}
	return decodeReply(subject, answer)
}

// decodeReply reads any answer that has a decision.
func decodeReply(subject string, answer []byte) (*Reply, error) {
	body, err := readAnswer[decisionBody](subject, answer)
	if err != nil {
		return nil, err
	}
	reply := body.reply()
	if reply == nil {
		return nil, missingField(subject, "allowed")
	}
	return reply, nil
}

// decisionBody is the JSON of an answer that should be a decision. An answer without "allowed", such as null from
// another service on the same subject, must not be read as a denial: callers that let requests pass if the limiter
// fails would refuse them.
type decisionBody struct {
	Reply
	Allowed *bool `json:"allowed"`
}

// reply returns nil if the answer has no decision.
func (d *decisionBody) reply() *Reply {
	if d == nil || d.Allowed == nil {
		return nil
	}
	d.Reply.Allowed = *d.Allowed
	return &d.Reply
}

// call sends a request as JSON and reads the answer's JSON into a T.
func call[T any](ctx context.Context, c *Client, subject string, request any) (*T, error) {
	answer, err := c.ask(ctx, subject, request)
	if err != nil {
		return nil, err
	}
	return readAnswer[T](subject, answer)
}

// ask sends a request as JSON and returns the answer.
func (c *Client) ask(ctx context.Context, subject string, request any) ([]byte, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("%s: write request: %w", subject, err)
	}
	if hadInvalidUTF8(body) {
		return nil, &Error{Status: 400, Code: "invalid_json", Message: subject + ": a string in the request is not valid UTF-8"}
	}
	return c.do(ctx, subject, body)
}

func readAnswer[T any](subject string, answer []byte) (*T, error) {
	body := new(T)
	if err := json.Unmarshal(answer, body); err != nil {
		return nil, fmt.Errorf("%s: read answer: %w", subject, err)
	}
	return body, nil
}

// hadInvalidUTF8 reports whether json.Marshal replaced invalid UTF-8 in a text. Replaced text must not be sent, because
// two different users could end up with the same key. json.Marshal writes U+FFFD as the escape \ufffd only for bytes
// that it replaced; a U+FFFD of the text itself is written as UTF-8.
func hadInvalidUTF8(body []byte) bool {
	for {
		at := bytes.Index(body, []byte(`\ufffd`))
		if at < 0 {
			return false
		}
		slashes := at - len(bytes.TrimRight(body[:at], `\`))
		if slashes%2 == 0 {
			return true
		}
		body = body[at+1:] // the backslash is itself escaped, so the text contains a literal \ufffd
	}
}
