package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/seed503877ad/limits"
)

// DefaultDeadline bounds one question to the limiter.
const DefaultDeadline = 50 * time.Millisecond

// A Mode says when a request is charged.
type Mode int

const (
	// Consume decides and charges before the handler runs, atomically: the limit is never passed.
	Consume Mode = iota
	// CheckThenRecord checks before the handler runs and charges after it, if the handler's status is one that
	// Charge accepts. Requests that run at the same time pass the check together, so the limit can be passed by as
	// many as run at once.
	CheckThenRecord
)

// Config says what [Middleware] does. It needs Limits, or Policy or Attributes or APIKey, and not both.
type Config struct {
	// APIKey says where the API key of a request is, such as [Bearer], or Header("X-API-Key"). Then the key is verified, and the limits of
	// its user decided, in one question (limits.verify): by Policy, or by the policies whose match fits the Attributes, with the attributes
	// "user" and "key" of the key, and its own. A request without a key, or with one that is unknown, revoked or expired, is refused with
	// 401; [KeyFrom] gives handlers what a valid one stands for. Keys are guessed without a limit, so limit addresses outside of it.
	//
	// Where the limiter does not answer, a key that was valid in the last hour passes, unless FailClosed is set, and any other request is
	// refused with FailStatus: letting it in would be no check of keys. A key that is revoked meanwhile passes so, too.
	//
	// It goes with mode [Consume]: what is charged after the work has a middleware of its own inside of this one, whose Attributes take
	// the user from [KeyFrom].
	APIKey Attribute

	// Policy gives the name of the policy that decides. Nil, or an empty name, leaves it to the policies whose
	// match fits the attributes; without Attributes there are none, and the request passes. [Text] gives a fixed name.
	//
	// Never give a name that stands in the request, such as Header("X-Plan"): for one that no policy has, the limiter gives
	// an error (404) instead of a decision, and unless FailClosed is set the request passes; so whoever makes up a name has
	// no limit. Map what the request says to the names that there are, and all else to a name of its own.
	Policy Attribute

	// Attributes are what the policies match and make keys of, by name. One without a value is left out, unless
	// none has a value. A value over 256 bytes, or with unprintable characters, which those of this package write percent-encoded,
	// is refused with 400.
	Attributes map[string]Attribute

	// Tier gives the tier of the caller; nil or an empty tier sends none. It goes with Policy or Attributes.
	Tier Attribute

	// Limits gives inline limits instead of policies, up to 16. A request for which it gives none is not limited.
	Limits func(*http.Request) []limits.LimitSpec

	// Cost is what a request charges; nil charges 1, and so does 0. A request that shall charge nothing is Exempt.
	// In mode [CheckThenRecord] the handler may say otherwise with [SetCost].
	Cost func(*http.Request) int64

	// ID gives the idempotency key of the charge, up to 128 bytes of printable UTF-8; another is refused with 400. One id charges
	// once and is answered the same for at least 10 minutes, a denial too. Nil or an empty id sends none. It has to be unique over
	// the whole service, whatever the key or the policy: put the user, and what it is for, in front of what a client may choose, or
	// the second user with an Idempotency-Key of 1 gets 409. Do not take it from a
	// header unless the handler, too, does the work once per id: else a client that always sends the same one is never charged
	// again. An id that was used with another request, or another cost, is refused with 409; in mode [CheckThenRecord], where
	// that shows after the work, the request is charged without it.
	ID Attribute

	// Mode is [Consume] unless set.
	Mode Mode

	// Charge says, in mode CheckThenRecord, which statuses are charged; nil charges those below 400. A handler that
	// panics before it wrote a status counts as 500; afterwards, as what it wrote. A hijacked connection counts as
	// 200.
	Charge func(status int) bool

	// ChargeBehind, in mode CheckThenRecord, charges in a goroutine of its own, so that the answer never waits for it.
	// The charge is lost if the process ends first or no limiter listens, and the same client's next request may be
	// checked before it.
	ChargeBehind bool

	// Exempt says which requests pass without a question, with no headers. A preflight of CORS, which carries no credentials, is one only
	// where whatever answers it does no work: where CORS stands inside of this middleware, which is better the other way round.
	Exempt func(*http.Request) bool

	// Deadline bounds each question to the limiter: 50 ms unless set. A client that goes away does not end it, or
	// going away would be a way not to be charged.
	Deadline time.Duration

	// FailClosed refuses requests, with FailStatus, when the limiter does not answer within the Deadline. Otherwise they pass,
	// without headers: load alone makes answers late, so whoever limits abuse sets it, and a Deadline that the clients can wait: a
	// request whose answer is late, as where the store is slow, is refused and charged all the same. Requests that the limiter cannot read are
	// refused in both cases. What no policy matches has an answer, and passes in both, also where the limiter runs without its
	// policy file. A Policy that is named and not there is a failure (404), so name it where nothing may pass unlimited.
	FailClosed bool

	// FailStatus is the status of a refusal by FailClosed, and of a denial that the limiter gives because it cannot
	// reach its store (on_error deny): 503 unless set; 500 to 599. What its stand-in denies (on_error local) is used up.
	FailStatus int

	// Headers are the styles in which the state of the limit is told, on every answer: [RateLimitFields] and
	// [XRateLimitUnix] unless set; an empty list that is not nil sends none. A denial has Retry-After besides. In
	// mode CheckThenRecord they describe the state before the charge.
	Headers []Headers

	// Body writes refusals: [Problem] unless set.
	Body Body

	// OnDenied is called on each denial, before it is written. With APIKey, [KeyFrom] gives the key of the request.
	OnDenied func(*http.Request, *limits.Reply)

	// OnError is called when a question to the limiter fails, and when a charge is not confirmed: it may be lost, or made all the
	// same, as one is that the connection keeps until it is back. With ChargeBehind it may be called after the request has ended.
	// Nil logs a warning to slog.Default, at most one of a kind every 10 s: for what a client sent, for other questions, and for
	// charges.
	OnError func(*http.Request, error)
}

// withDefaults fills in what is not set.
func (c Config) withDefaults() Config {
	if c.Charge == nil {
		c.Charge = func(status int) bool { return status < http.StatusBadRequest }
	}
	if c.Deadline == 0 {
		c.Deadline = DefaultDeadline
	}
	if c.FailStatus == 0 {
		c.FailStatus = http.StatusServiceUnavailable
	}
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

// validate names the field at fault.
func (c Config) validate() error {
	policies := c.Policy != nil || len(c.Attributes) > 0 || c.APIKey != nil
	switch {
	case c.Limits == nil && !policies:
		return errors.New("nothing says what is limited: set Limits, or Policy, or Attributes, or APIKey")
	case c.Limits != nil && (policies || c.Tier != nil):
		return errors.New("both Limits and Policy, Attributes, Tier or APIKey are set: one request has one form, so drop one of them")
	case c.Mode != Consume && c.Mode != CheckThenRecord:
		return fmt.Errorf("the Mode is %d: want Consume or CheckThenRecord", c.Mode)
	case c.APIKey != nil && c.Mode == CheckThenRecord:
		return errors.New("both APIKey and the Mode CheckThenRecord are set: a key is charged when it is verified, so put another middleware inside for what is charged later")
	case c.Deadline < 0:
		return fmt.Errorf("the Deadline is %v: want more than 0, or 0 for %v", c.Deadline, DefaultDeadline)
	case c.FailStatus != 0 && (c.FailStatus < 500 || c.FailStatus > 599):
		return fmt.Errorf("the FailStatus is %d: want 500 to 599, or 0 for 503", c.FailStatus)
	}
	return nil
}
