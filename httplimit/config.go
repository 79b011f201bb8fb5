package httplimit

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/seed503877ad/limits"
)

// DefaultDeadline bounds each request to the limiter.
const DefaultDeadline = 50 * time.Millisecond

// A Mode says when a request is charged.
type Mode int

const (
	// Consume decides and charges before the handler runs, in one atomic step. The limit is never exceeded.
	Consume Mode = iota
	// CheckThenRecord checks before the handler runs and charges after it, if Charge accepts the status of the response.
	// Concurrent requests may pass the check together, so the limit can be exceeded by as many as run at once.
	CheckThenRecord
)

// Config configures [Middleware]. It must say what is limited: either with Limits, or with any of Policy, Attributes
// and APIKey.
type Config struct {
	// APIKey returns the API key of a request, for example [Bearer] or Header("X-API-Key"). If it is set, one request to
	// the limiter (limits.verify) verifies the key and decides the limits of its user: by Policy, or by the policies
	// whose match fits the Attributes, to which the attributes of the key and "user" and "key" (its id) are added. A
	// request without a key, or with one that is unknown, revoked or expired, is refused with 401. Handlers get the
	// verified key from [KeyFrom]. Guessing keys is not limited, so limit client addresses in a middleware around this one.
	//
	// If the limiter cannot verify keys, one that was valid within the last hour counts as valid, even if it was revoked
	// meanwhile, unless FailClosed is set: its limits still hold if the limiter answers that it cannot read keys, and it
	// passes if there is no such answer. Any other request is refused with FailStatus, because letting it in would mean
	// not to check keys.
	//
	// APIKey requires the mode [Consume]. To charge after the work, put a second middleware in mode [CheckThenRecord]
	// inside this one, with Attributes that take the user from [KeyFrom].
	APIKey Attribute

	// Policy returns the name of the policy that decides. Use [Text] for a fixed name. If it is nil or returns an empty
	// name, the policies whose match fits the Attributes decide. Without Attributes and APIKey the request then passes.
	//
	// Never return a name that stands in the request, as Header("X-Plan") does. For a name that no policy has, the limiter
	// returns an error (404) instead of a decision, and unless FailClosed is set the request passes. So a client could
	// avoid all limits with an invented name. Map what the request says to the names of existing policies instead, with
	// one policy for everything else.
	Policy Attribute

	// Attributes are the values, by name, that policies match and build their keys from: up to 32, with names of 1 to 64
	// bytes of printable UTF-8. An attribute without a value is left out, unless none has a value. A request is refused with
	// 400 if a value has more than 256 bytes or unprintable characters; the functions of this package percent-encode the
	// latter.
	Attributes map[string]Attribute

	// Tier returns the tier of the caller. If it is nil or returns an empty tier, none is sent. It requires Policy,
	// Attributes or APIKey. The tier of an API key takes precedence.
	Tier Attribute

	// Limits returns up to 16 inline limits, in place of policies. A request without limits passes.
	Limits func(*http.Request) []limits.LimitSpec

	// Cost returns what a request charges: 1 by default. A cost below 1, such as the ContentLength -1 of a request that does
	// not say its length, also charges 1, and one above [limits.MaxAmount] charges that. Use Exempt for requests that should
	// charge nothing. In mode [CheckThenRecord] the handler can override it with [SetCost].
	Cost func(*http.Request) int64

	// ID returns the idempotency key of the charge: up to 128 bytes of printable UTF-8. A request with any other
	// id is refused with 400. If ID is nil or returns an empty id, none is sent. For at least 10 minutes an id is charged
	// only once, and gets the same answer again, even if that is a denial.
	//
	// Ids have to be unique across the whole service, whatever the key or the policy. If clients choose the id, put the
	// user and the purpose in front of it. Otherwise the second user who sends Idempotency-Key: 1 gets 409.
	//
	// Do not take the id from a header unless the handler also does the work only once per id. Otherwise a client that
	// always sends the same id is charged only once.
	//
	// An id that was used with another request or another cost is refused with 409. In mode [CheckThenRecord] the
	// conflict appears after the work, so the request is charged without the id.
	ID Attribute

	// Mode is when requests are charged: [Consume] by default.
	Mode Mode

	// Charge says, in mode CheckThenRecord, whether a response with this status is charged. The default charges those
	// below 400. A handler that panics before it wrote a status counts as 500; if it panics later, the status that it
	// wrote counts. A hijacked connection counts as 200.
	//
	// So does a handler that returns without writing anything, also if it gave up because r.Context() ended: its client has
	// gone, or an http.TimeoutHandler around the middleware has answered 503. To charge nothing for such requests, put the
	// http.TimeoutHandler inside the middleware, which then sees its 503, or write a status before giving up.
	Charge func(status int) bool

	// ChargeBehind makes mode CheckThenRecord charge in a separate goroutine, so that the response never waits for it. The
	// charge is lost if the process ends first or no limiter is listening, and the next request of the same client may be
	// checked before it.
	ChargeBehind bool

	// Exempt says which requests pass without asking the limiter, and get no headers. A CORS preflight carries no
	// credentials. Exempt it only if the handler that answers it does no work; it is better to put the CORS middleware
	// around this one.
	Exempt func(*http.Request) bool

	// Deadline bounds each request to the limiter: 50 ms by default. It does not end when the client goes away, or a
	// client could avoid the charge by going away.
	Deadline time.Duration

	// FailClosed refuses requests with FailStatus if the limiter does not answer within the Deadline. By default they
	// pass, without headers.
	//
	// Set it if the limits are there to prevent abuse, because high load alone makes answers late. Then also set a
	// Deadline that is as long as clients can wait: if an answer is late, for example because the store is slow, the
	// request is refused and charged nevertheless.
	//
	// Whether or not FailClosed is set, a request that the limiter cannot read is refused, and a request that no policy
	// matches passes, since that is an answer, even of a limiter that runs without its policy file. A Policy that is named
	// and does not exist is a failure (404). So name the policy if nothing may pass unlimited.
	FailClosed bool

	// FailStatus is the status of a refusal by FailClosed, and of a denial that the limiter gives because it cannot reach
	// its store (on_error: deny): 503 by default, 500 to 599. What the limiter denies from its memory meanwhile (on_error:
	// local) is an exceeded limit, with status 429.
	FailStatus int

	// Headers are the styles of the headers that describe the limits on every response: [RateLimitFields] and
	// [XRateLimitUnix] by default. An empty list that is not nil sends none. Denials have Retry-After in any case. In mode
	// CheckThenRecord the headers describe the state before the charge.
	Headers []Headers

	// Body writes the body of refusals: [Problem] by default.
	Body Body

	// OnDenied is called on each denial, before the response is written. With APIKey, [KeyFrom] returns the key of the
	// request.
	OnDenied func(*http.Request, *limits.Reply)

	// OnError is called if a request to the limiter fails, and if a charge is not confirmed, which errors.Is tells by
	// [ErrNotCharged]. Such a charge may be lost, or it may be made later, if the connection buffered it. With ChargeBehind,
	// OnError may be called after the request has ended.
	//
	// The default logs a warning to slog.Default, at most every 10 s for each kind of failure: what a client sent, other
	// requests to the limiter, and charges.
	OnError func(*http.Request, error)
}

// withDefaults returns a copy in which unset fields have their defaults.
func (c Config) withDefaults() Config {
	if c.Charge == nil {
		c.Charge = func(status int) bool { return status < http.StatusBadRequest }
	}
	c.Deadline, c.FailStatus = cmp.Or(c.Deadline, DefaultDeadline), cmp.Or(c.FailStatus, http.StatusServiceUnavailable)
	if c.Headers == nil {
		c.Headers = []Headers{RateLimitFields, XRateLimitUnix}
	}
	if c.Body == nil {
		c.Body = Problem
	}
	if c.OnError == nil {
		c.OnError = new(errorLog).warn
	}
	return c
}

// validate returns an error that names the field at fault.
func (c Config) validate() error {
	policies := c.Policy != nil || len(c.Attributes) > 0 || c.APIKey != nil
	switch {
	case c.Limits == nil && !policies:
		return errors.New("nothing is limited: set Limits, Policy, Attributes or APIKey")
	case c.Limits != nil && (policies || c.Tier != nil):
		return errors.New("Limits cannot be combined with Policy, Attributes, Tier or APIKey: remove one of them")
	case c.Mode != Consume && c.Mode != CheckThenRecord:
		return fmt.Errorf("invalid Mode %d; want Consume or CheckThenRecord", c.Mode)
	case c.APIKey != nil && c.Mode == CheckThenRecord:
		return errors.New("APIKey cannot be combined with Mode CheckThenRecord: a key is charged when it is verified, so put another middleware inside for what is charged later")
	case c.Deadline < 0:
		return fmt.Errorf("invalid Deadline %v; want more than 0, or 0 for the default of %v", c.Deadline, DefaultDeadline)
	case c.FailStatus != 0 && (c.FailStatus < 500 || c.FailStatus > 599):
		return fmt.Errorf("invalid FailStatus %d; want 500 to 599, or 0 for the default of 503", c.FailStatus)
	}
	for i, set := range c.Headers {
		if set == nil {
			return fmt.Errorf("invalid Headers[%d]: nil; remove it", i)
		}
	}
	return c.validateAttributes()
}

// validateAttributes finds the mistakes for which the limiter would refuse requests as if their clients had made them, and
// attributes that never have a value, so that the policies that need them would limit nobody.
func (c Config) validateAttributes() error {
	if len(c.Attributes) > limits.MaxAttributes {
		return fmt.Errorf("invalid Attributes: %d of them; want at most %d", len(c.Attributes), limits.MaxAttributes)
	}
	for name, attribute := range c.Attributes {
		switch {
		case name == "" || len(name) > limits.MaxNameBytes || printable(name) != name:
			return fmt.Errorf("invalid Attributes[%q]; want a name of 1 to %d bytes of printable UTF-8", name, limits.MaxNameBytes)
		case attribute == nil:
			return fmt.Errorf("invalid Attributes[%q]: nil; give a function, or remove it", name)
		}
	}
	return nil
}
