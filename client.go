package limits

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"weak"

	"github.com/nats-io/nats.go"
)

// DefaultTimeout bounds a call whose context has no deadline.
const DefaultTimeout = 2 * time.Second

// maxReplyBytes bounds an answer. Where NATS takes more in one message, a page of a list may pass it.
const maxReplyBytes = 1 << 20

// The headers that a NATS micro service puts on an answer that is an error.
const (
	headerError     = "Nats-Service-Error"
	headerErrorCode = "Nats-Service-Error-Code"
)

// Client asks a limiter over a NATS connection. Any number of goroutines may share it.
//
// Every call ends with its context, or after [DefaultTimeout] when the context has no deadline, also when the network takes
// nothing more and does not say so. A call fails with
//
//   - an [*Error] when the service answered with one, or (Status 503, Code [CodeUnavailable]) when no limiter is
//     listening, or (Status 413, Code [CodeTooLarge]) when the answer has more than 1 MiB, or the request more than the
//     NATS server takes in one message,
//   - an error when the answer is not a limiter's, such as a decision without "allowed",
//   - an error that wraps [context.DeadlineExceeded] when no answer came in time, and nats.ErrPermissionViolation too when
//     the NATS server said that the user may not ask, or may not listen for answers: give the connection the prefix that
//     the user has, with nats.CustomInboxPrefix,
//   - at once an error that wraps nats.ErrDisconnected when the connection is interrupted, from what decides: Consume,
//     Check, VerifyKey and Wait. The connection would keep the question and send it later, and then it would be charged
//     although nobody waits for the decision. What tells of something that has happened, such as Record, Refund and
//     Settle, is kept by the connection and sent when it is back, whether or not the call still waits for its answer; it is
//     lost when no limiter listens by then, as after a restart of NATS where the limiter's connection comes back later,
//   - at once an error that wraps nats.ErrDisconnected, from what decides, from LogRequest and from Watch, when a call that ended
//     a second ago still cannot be sent, since the network takes nothing or a server that is reconnected to says nothing; and
//     from every call when 16,384 wait so,
//   - the error of the connection, such as nats.ErrConnectionClosed, otherwise: nats.ErrInvalidConnection where it is nil.
//
// Where the connection is not up, the error of a question names the servers, and none of their passwords.
//
// After a call that got no answer the charge may or may not have been made. A [Request] with an ID can be sent
// again: the same ID charges once.
//
// In an HTTP server, do not ask with the context of a request that others send: a client ends it when it goes away, or
// merely closes its half of the connection, and so would have no decision whenever it likes. Take a deadline of your own,
// with context.WithTimeout(context.WithoutCancel(r.Context()), …); package httplimit does.
type Client struct {
	nc      *nats.Conn
	timeout time.Duration
	alone   alone
	gates   gates
	// nobody is when nobody was listening, even after a while, in Unix nanoseconds.
	nobody atomic.Int64
}

// Option changes a [Client].
type Option func(*Client)

// Timeout bounds calls whose context has no deadline, instead of [DefaultTimeout], which 0 stands for.
func Timeout(d time.Duration) Option {
	return func(c *Client) { c.timeout = cmp.Or(d, DefaultTimeout) }
}

// NewClient gives a client over nc, which stays the caller's to close. Connect with [Reconnect]: otherwise there is no nc while no
// NATS server can be reached, and it is closed for good after 60 tries, two minutes without a server, and when one refuses its
// credentials twice, and every call fails until the process starts again.
func NewClient(nc *nats.Conn, options ...Option) *Client {
	c := &Client{nc: nc, timeout: DefaultTimeout}
	for _, o := range options {
		o(c)
	}
	return c
}

// Consume decides and, when all limits fit, charges them, atomically. A denial is a normal reply.
func (c *Client) Consume(ctx context.Context, r Request) (*Reply, error) {
	reply, err := c.decision(ctx, SubjectConsume, r)
	if err == nil {
		reply.ID = r.ID
	}
	return reply, err
}

// Check decides as [Client.Consume] would right now, and charges nothing.
func (c *Client) Check(ctx context.Context, r Request) (*Reply, error) {
	return c.decision(ctx, SubjectCheck, r)
}

// Record charges work that already happened, even past the limit; Allowed tells whether it fitted.
func (c *Client) Record(ctx context.Context, r Request) (*Reply, error) {
	return c.decision(ctx, SubjectRecord, r)
}

// Refund gives cost back: never above the limit, and nothing is saved up for a later window. It names no charge: one that comes after
// the window of its charge takes from what counts by then. Where that matters, consume with an ID and [Client.Settle], which knows the
// window that was charged.
func (c *Client) Refund(ctx context.Context, r Request) (*Reply, error) {
	return c.decision(ctx, SubjectRefund, r)
}

// Settle sets the final cost of an earlier [Client.Consume] or [Client.VerifyKey] that had the id: reserve an estimate, do the work,
// settle what it cost. Allowed tells whether it fitted. The same settle again gets the same answer, and another cost for the
// id is an [*Error] with [CodeIDConflict]. An id that is not known any more, or that no limit applied to, has
// [CodeUnknownID]; one that was denied, [CodeNothingToSettle]. After [Client.Wait] it is the ID of the reply.
func (c *Client) Settle(ctx context.Context, id string, cost int64) (*Reply, error) {
	return c.decision(ctx, SubjectSettle, SettleRequest{ID: id, Cost: cost})
}

// Status shows the counters of a key; an unknown key has none.
func (c *Client) Status(ctx context.Context, key string) (*Status, error) {
	return call[Status](ctx, c, SubjectStatus, StatusRequest{Key: key})
}

// List gives one page of counters. [Client.All] reads page after page.
func (c *Client) List(ctx context.Context, r ListRequest) (*List, error) {
	return call[List](ctx, c, SubjectList, r)
}

// All gives every counter whose key begins with prefix, in key order, reading pages as it goes; an empty prefix
// means all. It ends after an error. Without a deadline in ctx, each page has its own timeout.
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

// Reset sets counters back to unused: those of one key, or of every key under a prefix.
func (c *Client) Reset(ctx context.Context, r ResetRequest) (*ResetReply, error) {
	return call[ResetReply](ctx, c, SubjectReset, r)
}

// Do sends a request body to one of the service's subjects that answer, which all do but [SubjectUsage], and gives the answer's JSON as
// it came. The other calls are made of it. When the answer is an error, its body comes along with the [*Error].
func (c *Client) Do(ctx context.Context, subject string, body []byte) ([]byte, error) {
	if subject == SubjectUsage {
		return nil, &Error{Status: 400, Code: "invalid_subject", Field: "subject",
			Message: subject + " is never answered, so nothing is asked there; send lines of the request log with LogRequest"}
	}
	if err := c.refuse(subject, !decides(subject)); err != nil {
		return nil, err
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	body = bytes.Clone(body) // which may be read for longer than the call lasts
	var msg *nats.Msg
	var err error
	if !c.alone.aside(ctx, func() { msg, err = c.request(ctx, subject, body) }) {
		return nil, fmt.Errorf("%s: no answer from %s: %w", subject, servers(c.nc), ctx.Err())
	}
	switch {
	case err != nil:
		return nil, err
	case msg.Header[headerErrorCode] != nil || msg.Header[headerError] != nil: // whatever they say
		return msg.Data, serviceError(msg)
	case len(msg.Data) > maxReplyBytes:
		return nil, &Error{Code: CodeTooLarge, Status: 413, Message: fmt.Sprintf(
			"%s: an answer of %d bytes; at most %d are read; ask for fewer at a time with max", subject, len(msg.Data), maxReplyBytes)}
	}
	return msg.Data, nil
}

// refuse says why nothing is to be asked of the connection. What is worth something later is kept where that hangs.
func (c *Client) refuse(what string, later bool) error {
	switch {
	case c.nc == nil:
		return fmt.Errorf("%s: %w", what, nats.ErrInvalidConnection)
	case c.alone.full() || !later && c.alone.hangs():
		return fmt.Errorf("%s: not sent, since the connection to %s takes nothing: %w", what, servers(c.nc), nats.ErrDisconnected)
	}
	return nil
}

// request may hang for longer than ctx lasts. A decision that was stuck until then is not asked for any more.
func (c *Client) request(ctx context.Context, subject string, body []byte) (*nats.Msg, error) {
	if decides(subject) && !c.nc.IsConnected() && !c.nc.IsClosed() {
		return nil, fmt.Errorf("%s: not asked, since the decision would come too late and be charged all the same: %w", subject, c.disconnected())
	}
	msg, err := c.attended(ctx, &nats.Msg{Subject: subject, Data: body})
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

// disconnected says which servers are tried, and what the last one said, or why none was reached: nobody else tells that an address is
// mistyped where the connection was made without a server.
func (c *Client) disconnected() error {
	tried := strings.Join(c.nc.Servers(), ",")
	if last := c.nc.LastError(); last != nil {
		return fmt.Errorf("%w from %s: %w", nats.ErrDisconnected, tried, last)
	}
	if why, ok := undialed.Load(weak.Make(c.nc)); ok { // as text: a dial that took too long is a context.DeadlineExceeded, too
		return fmt.Errorf("%w from %s: %v", nats.ErrDisconnected, tried, why)
	}
	return fmt.Errorf("%w from %s", nats.ErrDisconnected, tried)
}

// takeOver are the pauses in which a limiter that stands by takes the place of one that died.
var takeOver = [...]time.Duration{10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond}

// attended asks again while nobody listens, as nobody has seen the request then. Where nobody did after all the pauses that there was time
// for, there are none for a second: who lets requests pass without a limiter should not hold them up.
func (c *Client) attended(ctx context.Context, m *nats.Msg) (msg *nats.Msg, err error) {
	for _, pause := range takeOver {
		msg, err = c.nc.RequestMsgWithContext(ctx, m)
		switch {
		case !errors.Is(err, nats.ErrNoResponders) || time.Since(time.Unix(0, c.nobody.Load())) < time.Second:
			return msg, err
		case sleep(ctx, pause) != nil:
			if pause > takeOver[0] && ctx.Err() == nil {
				c.listensNobody(m.Subject)
			}
			return nil, err
		case decides(m.Subject) && !c.nc.IsConnected(): // it would be kept, and charged later
			return nil, err
		}
	}
	if msg, err = c.nc.RequestMsgWithContext(ctx, m); errors.Is(err, nats.ErrNoResponders) {
		c.listensNobody(m.Subject)
	}
	return msg, err
}

func (c *Client) listensNobody(subject string) {
	if !ofAlerter(subject) {
		c.nobody.Store(time.Now().UnixNano())
	}
}

// decides tells what is worth an answer now and nothing later.
func decides(subject string) bool {
	return subject == SubjectConsume || subject == SubjectCheck || subject == SubjectVerify
}

// noAnswer says why, where it is known: that the server refuses a request, or to listen for answers, it tells the connection
// alone. What it told before of something else is no reason.
func (c *Client) noAnswer(subject string, err error) error {
	inbox := cmp.Or(c.nc.Opts.InboxPrefix, strings.TrimSuffix(nats.InboxPrefix, "."))
	if last := c.nc.LastError(); refuses(last, `Publish to "`+subject+`"`) || refuses(last, `Subscription to "`+inbox+".") {
		return fmt.Errorf("%s: no answer: %w: %w", subject, err, last)
	}
	return fmt.Errorf("%s: no answer%s: %w", subject, from(c.nc), err)
}

// refuses tells that an error of a connection is the server's refusal of an act, such as: Publish to "limits.check"
func refuses(err error, act string) bool {
	return errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), act)
}

// bound gives ctx a deadline when it has none.
func (c *Client) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.timeout)
}

// decision is call for a decision.
func (c *Client) decision(ctx context.Context, subject string, request any) (*Reply, error) {
	answer, err := call[decided](ctx, c, subject, request)
	if err != nil {
		return nil, err
	}
	reply := answer.reply()
	if reply == nil {
		return nil, lacks(subject, "allowed")
	}
	return reply, nil
}

// decided is an answer that may have no decision, such as null from somebody else who listens. That is no denial: those who let requests
// pass when the limiter fails must not stop them for it.
type decided struct {
	Reply
	Allowed *bool `json:"allowed"`
}

// reply gives nil where there is no decision.
func (d *decided) reply() *Reply {
	if d == nil || d.Allowed == nil {
		return nil
	}
	d.Reply.Allowed = *d.Allowed
	return &d.Reply
}

func lacks(subject, field string) error {
	return fmt.Errorf("%s: read answer: it lacks %q, so it is not that of a limiter", subject, field)
}

func call[T any](ctx context.Context, c *Client, subject string, request any) (*T, error) {
	body, err := write(subject, request)
	if err != nil {
		return nil, err
	}
	answer, err := c.Do(ctx, subject, body)
	if err != nil {
		return nil, err
	}
	reply := new(T)
	if err := json.Unmarshal(answer, reply); err != nil {
		return nil, fmt.Errorf("%s: read answer: %w", subject, err)
	}
	return reply, nil
}

func write(subject string, request any) ([]byte, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("%s: write request: %w", subject, err)
	}
	if replaced(body) {
		return nil, &Error{Status: 400, Code: "invalid_json", Message: subject + ": a text of the request is not valid UTF-8"}
	}
	return body, nil
}

// replaced tells whether a text was not valid UTF-8. Where it is not json.Marshal writes U+FFFD, as an escape, which it uses
// for no other character: so two users could come to have one key.
func replaced(body []byte) bool {
	for {
		at := bytes.Index(body, []byte(`\ufffd`))
		if at < 0 {
			return false
		}
		slashes := at - len(bytes.TrimRight(body[:at], `\`))
		if slashes%2 == 0 {
			return true
		}
		body = body[at+1:] // a backslash of the text itself, and what follows it
	}
}

func tooLarge(subject string, body []byte) *Error {
	return &Error{Code: CodeTooLarge, Status: 413, Message: fmt.Sprintf(
		"%s: the NATS server does not take a request of %d bytes in one message; see its max_payload", subject, len(body))}
}

// ofAlerter tells which subjects an alerter answers where limiters do not.
func ofAlerter(subject string) bool {
	return strings.HasPrefix(subject, alertsPrefix) || strings.HasPrefix(subject, jobsPrefix)
}

func noLimiter(subject string) *Error {
	message := subject + ": no limiter is listening on this NATS server"
	if ofAlerter(subject) {
		message = subject + ": no alerter is listening on this NATS server; start a limiter with --alerter on, or, beside limiters that" +
			" are workers on PostgreSQL, the program alerter with their --nats-url and --database-url"
	}
	return &Error{Code: CodeUnavailable, Status: 503, Message: message}
}

// What begins with these an alerter answers, or a limiter that has it inside.
const (
	alertsPrefix = "limits.admin.alerts."
	jobsPrefix   = "limits.admin.jobs."
)

// serviceError reads an answer that is an error. One without our body (the micro framework answers some itself)
// still gives its header's words.
func serviceError(msg *nats.Msg) *Error {
	status, _ := strconv.Atoi(msg.Header.Get(headerErrorCode))
	var body ErrorBody
	if err := json.Unmarshal(msg.Data, &body); err != nil || body.Error == nil {
		body.Error = &Error{Code: "error", Message: msg.Header.Get(headerError)}
	}
	body.Error.Status = status
	return body.Error
}
