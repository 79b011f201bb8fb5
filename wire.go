package limits

// The algorithms of a [LimitSpec].
const (
	SlidingWindow = "sliding_window"
	FixedWindow   = "fixed_window"
	TokenBucket   = "token_bucket"
)

// The consistencies of a [LimitSpec].
const (
	Exact  = "exact"
	Leased = "leased"
)

// Request asks for a decision: the body of consume, check, record and refund. It has one of three forms, never
// mixed: one limit (Key, Limit, Window and their options), several limits (Limits), or a policy (Policy,
// Attributes, Tier).
type Request struct {
	// Key, Limit and Window, with the options beside them, are form 1: one inline limit.
	LimitSpec

	// Limits is form 2: up to [MaxLimits] limits that are decided together, all or nothing.
	Limits []LimitSpec `json:"limits,omitempty"`

	// Policy is form 3: the name of a policy. Left out, with Attributes given, every policy whose match fits
	// the attributes applies; none fitting allows the request with no limits.
	Policy     string            `json:"policy,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Tier       string            `json:"tier,omitempty"`

	// Cost is what the request charges to each of its limits: 1 unless said, up to [MaxAmount].
	Cost int64 `json:"cost,omitzero"`

	// ID makes the request idempotent: for at least 10 minutes the same id charges once and is answered the
	// same. The same id with another body is error 409: an id has to be unique over the whole
	// service, whatever the key or the policy, so put the user in front of one that users may choose. A check
	// ignores it.
	ID string `json:"id,omitempty"`
}

// LimitSpec is one inline limit.
type LimitSpec struct {
	// Key is what is limited, such as "api:user:123".
	Key string `json:"key,omitempty"`
	// Limit is how much cost may be charged to the key in one window.
	Limit int64 `json:"limit,omitzero"`
	// Window is a duration from "100ms" to "366d" (units ms, s, m, h, d, w) or a calendar period: "minute",
	// "hour", "day", "week", "month".
	Window string `json:"window,omitempty"`
	// Algorithm is [SlidingWindow], [FixedWindow] or [TokenBucket]. Unless said it is sliding_window, and
	// fixed_window for a calendar period.
	Algorithm string `json:"algorithm,omitempty"`
	// Burst is what a token bucket may hold on top of Limit.
	Burst int64 `json:"burst,omitzero"`
	// Name tells the counters of one key apart; the window as written unless said.
	Name string `json:"name,omitempty"`
	// Timezone is the IANA zone of a calendar period; UTC unless said.
	Timezone string `json:"timezone,omitempty"`
	// Anchor is "aligned", unless said, or "first_use", which lets a fixed window start at its first charge instead of at a
	// multiple of the window.
	Anchor string `json:"anchor,omitempty"`
	// Consistency is [Exact], unless said, or [Leased], which lets a worker charge a little ahead and answer from
	// memory: faster, and never more than the limit, but a crash may lose what was charged ahead.
	Consistency string `json:"consistency,omitempty"`
}

// Reply is a decision. Its top fields speak for the limit that blocks (with several, the one with the longest
// RetryAfter: a retry at that moment passes them all), else for the one with the least remaining.
type Reply struct {
	Allowed bool   `json:"allowed"`
	Key     string `json:"key,omitempty"`
	Name    string `json:"name,omitempty"`
	Limit   int64  `json:"limit"`
	// Remaining is the cost that could be charged right now.
	Remaining int64 `json:"remaining"`
	// Reset is when the whole limit is free again if nothing more is charged, in Unix milliseconds.
	Reset int64 `json:"reset"`
	// RetryAfter is the milliseconds until the same request fits, on a denial only; 0 (left out) when the cost
	// can never fit.
	RetryAfter int64 `json:"retryAfter,omitzero"`
	// BlockedBy is the name of the limit that blocks, on a denial only. A degraded denial has none where the store cannot be
	// reached and on_error denies.
	BlockedBy string `json:"blockedBy,omitempty"`
	// Message says a denial in words.
	Message string `json:"message,omitempty"`
	// Limits lists every limit decided when there is more than one or a policy was used.
	Limits []LimitReply `json:"limits,omitempty"`
	// Degraded marks an answer given without the store.
	Degraded bool `json:"degraded,omitzero"`
	// Shadow marks a denial that was not enforced.
	Shadow bool `json:"shadow,omitzero"`

	// ID is the id of the request that [Client.Consume], [Client.VerifyKey] or [Client.Wait] sent, which is the one to settle. It is
	// no part of the answer: the client sets it.
	ID string `json:"-"`
}

// LimitReply is the decision of one limit among several.
type LimitReply struct {
	Policy     string `json:"policy,omitempty"`
	Name       string `json:"name"`
	Key        string `json:"key"`
	Algorithm  string `json:"algorithm"`
	Limit      int64  `json:"limit"`
	Window     string `json:"window"`
	Remaining  int64  `json:"remaining"`
	Reset      int64  `json:"reset"`
	Allowed    bool   `json:"allowed"`
	RetryAfter int64  `json:"retryAfter,omitzero"`
	// Shadow says that the limit is not enforced: its policy is in mode shadow.
	Shadow bool `json:"shadow,omitzero"`
}

// SettleRequest is the body of settle: the final cost of the consume, or the verify, that had the id.
type SettleRequest struct {
	// ID is the id of a consume or a verify that was allowed, in the last 10 minutes.
	ID string `json:"id"`
	// Cost is what the work cost, 0 to [MaxAmount]. What is missing is charged now, even past the limit; what is too
	// much is given back to the window that was charged, if it still counts.
	Cost int64 `json:"cost"`
}

// StatusRequest is the body of status.
type StatusRequest struct {
	Key string `json:"key"`
}

// Status is every counter of a key that has something used; none for an unknown key.
type Status struct {
	Key      string    `json:"key"`
	Counters []Counter `json:"counters"`
}

// Counter is the state of one (key, name).
type Counter struct {
	// Key is given in lists only; in a [Status] it stands above.
	Key       string `json:"key,omitempty"`
	Name      string `json:"name"`
	Policy    string `json:"policy,omitempty"`
	Algorithm string `json:"algorithm"`
	Limit     int64  `json:"limit"`
	Window    string `json:"window"`
	Burst     int64  `json:"burst,omitzero"`
	Used      int64  `json:"used"`
	Remaining int64  `json:"remaining"`
	Reset     int64  `json:"reset"`
}

// ListRequest is the body of admin.list: a page of counters that have something used, in key order.
type ListRequest struct {
	// Prefix is what the keys begin with; all keys when empty.
	Prefix string `json:"prefix,omitempty"`
	// After is the Next of the page before, or a key: the page starts behind it.
	After string `json:"after,omitempty"`
	// Max is how many counters a page holds: 100 unless said, up to [MaxListPage].
	Max int `json:"max,omitzero"`
}

// List is a page of counters. Next, when there, is the After of the page that follows.
type List struct {
	Counters []Counter `json:"counters"`
	Next     string    `json:"next,omitempty"`
}

// ResetRequest is the body of admin.reset: one Key, or every key under Prefix; an empty prefix needs All.
type ResetRequest struct {
	Key    string `json:"key,omitempty"`
	Prefix string `json:"prefix,omitempty"`
	All    bool   `json:"all,omitzero"`
	// DryRun counts what would be reset and resets nothing.
	DryRun bool `json:"dryRun,omitzero"`
}

// ResetReply says how many counters were (or, in a dry run, would be) reset.
type ResetReply struct {
	Reset int64 `json:"reset"`
}
