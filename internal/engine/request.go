package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Verb is what a request asks for.
type Verb uint8

// The verbs.
const (
	// Consume decides and charges.
	Consume Verb = iota
	// Check decides and charges nothing.
	Check
	// Record charges even past the limit. Of a policy in shadow it charges nothing if one of its limits
	// has nothing left: enforced, it would not have let the work begin.
	Record
	// Refund gives cost back.
	Refund
	// Settle sets the final cost, 0 to MaxAmount, of the consume that had the request's ID; it has no
	// limits of its own. If the work cost more, the difference is charged now, even past the limit, as
	// a record does. If it cost less, the difference is given back to the window that was charged, as
	// far as the charge still counts. The same cost again gets the same answer, another cost
	// ErrIDConflict. An id is known as long as its receipt: at least 10 minutes.
	Settle
	// The verbs from here on are of the engine's own requests.

	// reportDenials raises events for denials that were counted in memory.
	reportDenials
	// returnLeases settles leases that have ended.
	returnLeases
	// renewLeases settles leases that are used up, or about to end, and takes new ones.
	renewLeases
	// noop runs a transaction without limits: it shows that cached denials still hold, or probes
	// the store.
	noop
)

var verbNames = [...]string{
	"consume", "check", "record", "refund", "settle", "report denials", "return leases", "renew leases", "noop",
}

// String returns the verb's name; up to Settle it is the name on the wire.
func (v Verb) String() string { return verbNames[v] }

// internal reports whether the verb is of the engine's own requests, which nobody waits for.
func (v Verb) internal() bool { return v >= reportDenials }

// OnError is what to answer when the store fails.
type OnError uint8

// The answers without the store.
const (
	OnErrorAllow OnError = iota
	OnErrorDeny
	// OnErrorLocal limits in the worker's memory instead.
	OnErrorLocal
)

var onErrorNames = [...]string{"allow", "deny", "local"}

// String returns the name as in settings and policies.
func (o OnError) String() string { return onErrorNames[o] }

// ParseOnError reads allow, deny or local, and fails for anything else.
func ParseOnError(s string) (OnError, error) {
	if i := slices.Index(onErrorNames[:], s); i >= 0 {
		return OnError(i), nil
	}
	return 0, fmt.Errorf("unknown value %q; want one of %s", s, strings.Join(onErrorNames[:], ", "))
}

// The errors that answer a request in place of a decision.
var (
	ErrOverloaded  = errors.New("overloaded")
	ErrClosed      = errors.New("the engine is closed")
	ErrUnavailable = errors.New("the store cannot be reached")
	ErrIDConflict  = errors.New("the id was used with another request")
)

// ErrManyCounters answers a status of a key with more than [MaxKeyCounters] counters.
var ErrManyCounters = fmt.Errorf("the key has more than %d counters", MaxKeyCounters)

// Request is one question. It belongs to the engine from Submit until Done is called, and must not
// be reused.
type Request struct {
	Verb Verb
	// Limits are decided together, each of another counter: none is charged unless all fit. Without
	// limits the request is allowed.
	Limits []Limit
	// Cost is charged to each limit, 1 to MaxAmount.
	Cost int64
	// ID makes the request idempotent; Fingerprint distinguishes a repeat from another request with
	// the same ID. Submit changes both for a settle.
	ID          string
	Fingerprint [32]byte
	// Refusal, if set, answers the request unless there is a receipt for the ID. It is for a
	// request whose limits cannot be determined, or no longer can.
	Refusal error
	OnError OnError
	// Done takes the answer; err wraps one of this package's errors. It must not block.
	Done func(d Decision, err error)
	// Received is when the request arrived. Answers from memory are decided as of then. Submit sets
	// it to now if it is zero.
	Received time.Time
	// Waited is how long the request had waited before that. It is answered with ErrOverloaded that
	// much sooner.
	Waited time.Duration
	// AtOnce says that Submit calls Done before it returns, in the caller's goroutine. Submit sets it.
	AtOnce bool

	// reservation is what a settle corrects, and consumeExpiry when the receipt of that consume
	// expires. An id may be used again after its receipt has expired; the expiry tells which use of
	// the id is settled.
	reservation   *reservation
	consumeExpiry int64

	// deniedCosts has, for reportDenials, the cost of the first denial of each limit.
	deniedCosts []int64

	// slots are the indexes of the limits' counters in the batch.
	slots []int
	// Room for the usual request, which has one limit, so that it needs no further allocation.
	slotBuf   [1]int
	resultBuf [1]Result
	// look is for a check of [Engine.StatusOf], which counts neither as a check nor, if nothing remains, as a denial, and which
	// only the store answers.
	look bool
	// replayed says that the answer comes from a receipt of an earlier request. maybeCommitted says
	// that an earlier attempt to write this request may have been committed, so a receipt that is
	// found may be its own.
	replayed, maybeCommitted bool
	// decision and err are the answer, until Done is called.
	decision Decision
	err      error
}

// makeResults returns a slice with one result for each limit.
func (r *Request) makeResults() []Result {
	if len(r.Limits) == 1 {
		return r.resultBuf[:]
	}
	return make([]Result, len(r.Limits))
}

// Decision is the answer to a request.
type Decision struct {
	Allowed bool     `json:"allowed"`
	Results []Result `json:"results"`
	// Degraded marks an answer without the store.
	Degraded bool `json:"degraded,omitempty"`
	// Shadow says that the request is allowed, but that a limit in shadow would have denied it.
	Shadow bool `json:"shadow,omitempty"`
}

// Result is the decision of one limit.
type Result struct {
	Key       string    `json:"key"`
	Name      string    `json:"name"`
	Policy    string    `json:"policy,omitempty"`
	Window    string    `json:"window"`
	Algorithm Algorithm `json:"algorithm"`
	// FirstUse says that the window begins with its first charge.
	FirstUse bool  `json:"firstUse,omitempty"`
	Limit    int64 `json:"limit"`
	Burst    int64 `json:"burst,omitempty"`
	Allowed  bool  `json:"allowed"`
	// Used and Remaining include the charge, if there was one.
	Used      int64 `json:"used"`
	Remaining int64 `json:"remaining"`
	// ResetAt is when the whole limit is free again, in Unix milliseconds.
	ResetAt int64 `json:"resetAt"`
	// RetryAfter, on a denial, is the milliseconds until the cost fits; 0 if it never does.
	RetryAfter int64 `json:"retryAfter,omitempty"`
	// Shadow says that the limit is not enforced.
	Shadow bool `json:"shadow,omitempty"`
	// Spared says that the limit is not charged even if others are: its policy is in shadow and,
	// enforced, would have refused the request.
	Spared bool `json:"spared,omitempty"`
	// Message is the policy's text for the denial. It is part of the result because a repeat gets
	// the same one.
	Message string `json:"message,omitempty"`
}

// Speaker returns the result that represents the decision. For a denial it is the blocking limit with
// the longest retryAfter (never fitting is longest), otherwise the limit with the least remaining.
// It is nil without limits.
func (d *Decision) Speaker() *Result {
	var best *Result
	for i := range d.Results {
		if r := &d.Results[i]; best == nil || speaksBefore(r, best) {
			best = r
		}
	}
	return best
}

// speaksBefore reports whether r represents the decision rather than best. A limit in shadow does
// so only if all are.
func speaksBefore(r, best *Result) bool {
	if r.Shadow != best.Shadow {
		return !r.Shadow
	}
	if r.Allowed != best.Allowed {
		return !r.Allowed
	}
	if r.Allowed {
		return r.Remaining < best.Remaining
	}
	return best.RetryAfter != 0 && (r.RetryAfter == 0 || r.RetryAfter > best.RetryAfter)
}
