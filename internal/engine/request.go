package engine

import (
	"errors"
	"fmt"
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
	// Record charges even past the limit.
	Record
	// Refund gives cost back.
	Refund
	// Settle sets the final cost of an earlier consume, also one for a verify; [Engine.Settle] makes such requests.
	Settle
	// reportDenials writes the denials that were counted in memory into an event; the engine asks itself.
	reportDenials
	// returnLeases settles leases; the engine asks itself.
	returnLeases
	// renewLeases settles leases that are used up, and asks for new ones; the engine asks itself.
	renewLeases
	// noop has a transaction run, without any limit, so that what is remembered holds on, or to see whether the store answers;
	// the engine asks itself.
	noop
)

var verbNames = [...]string{"consume", "check", "record", "refund", "settle", "tell", "hand back", "renew", "look"}

// String gives the verb's name on the wire.
func (v Verb) String() string { return verbNames[v] }

// internal tells the engine's own requests, which are not answered.
func (v Verb) internal() bool { return v >= reportDenials }

// OnError is what to answer when the store fails.
type OnError uint8

// The answers without the store.
const (
	OnErrorAllow OnError = iota
	OnErrorDeny
	// OnErrorLocal lets a limiter in the worker's memory stand in.
	OnErrorLocal
)

var onErrorNames = [...]string{"allow", "deny", "local"}

// String gives the name in settings and policies.
func (o OnError) String() string { return onErrorNames[o] }

// ParseOnError reads allow, deny or local.
func ParseOnError(s string) (OnError, error) {
	for i, name := range onErrorNames {
		if s == name {
			return OnError(i), nil
		}
	}
	return 0, fmt.Errorf("unknown answer %q; want %s", s, strings.Join(onErrorNames[:], ", "))
}

// The errors that answer a request instead of a decision.
var (
	ErrOverloaded  = errors.New("the queue is full")
	ErrClosed      = errors.New("the engine is closed")
	ErrUnavailable = errors.New("the store cannot be reached")
	ErrIDConflict  = errors.New("the id was used with another request")
)

// Request is one question. It belongs to the engine from Submit until Done is called, and is not used again.
type Request struct {
	Verb Verb
	// Limits are decided together, each of another counter: none is charged unless all fit. None at all allows.
	Limits []Limit
	// Cost is charged to each limit, 1 to MaxAmount.
	Cost int64
	// ID makes the request idempotent; Fingerprint tells a repeat from another request with the same ID.
	ID          string
	Fingerprint [32]byte
	// Refusal is the answer unless the ID has been answered before: of a request whose limits cannot be told, or not any more.
	Refusal error
	OnError OnError
	// Done takes the answer; err is one of this package's. It must not block.
	Done func(d Decision, err error)
	// Received is when it came, by which it is decided where no store is needed; Submit says now unless it is set.
	Received time.Time
	// AtOnce says that Done is called before Submit returns, by its caller's goroutine. Submit sets it.
	AtOnce bool

	// reservation is what a settle is to correct, and life when the receipt of that consume expires: an id that comes again
	// after its receipt has gone has another life.
	reservation   *reservation
	consumeExpiry int64

	// deniedCosts are the costs whose denials a tell is about, one for each limit.
	deniedCosts []int64

	// slots are the places of the limits' counters in the batch.
	slots []int
	// The usual request has one limit and needs nothing else of the heap.
	slotBuf   [1]int
	resultBuf [1]Result
	// replayed says that the answer is that of a receipt from before; unsure that one that is found may be its own.
	replayed, maybeCommitted bool
	// decision and err are the answer, until Done is called.
	decision Decision
	err      error
}

// makeResults gives room for one result for each limit.
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
	// Shadow says that a limit in shadow would have denied what is allowed.
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
	// Used and Remaining are after the charge, if there was one.
	Used      int64 `json:"used"`
	Remaining int64 `json:"remaining"`
	// ResetAt is when the whole limit is free again, in Unix milliseconds.
	ResetAt int64 `json:"resetAt"`
	// RetryAfter is the milliseconds until the cost fits, on a denial; 0 when it never does.
	RetryAfter int64 `json:"retryAfter,omitempty"`
	// Shadow says that the limit is not enforced.
	Shadow bool `json:"shadow,omitempty"`
	// Message is the policy's words for the denial; kept here because a repeat is answered with the same.
	Message string `json:"message,omitempty"`
}

// Speaker gives the result that speaks for the decision: of a denial the blocking limit that takes longest to
// fit (never fitting is longest), else the one with the least remaining. It is nil when there are no limits.
func (d *Decision) Speaker() *Result {
	var best *Result
	for i := range d.Results {
		if r := &d.Results[i]; best == nil || speaksBefore(r, best) {
			best = r
		}
	}
	return best
}

// speaksBefore lets limits in shadow speak only where there are no others.
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
