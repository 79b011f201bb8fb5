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

// Request asks for a decision: the body of consume, check, record and refund. It has one of three forms, which cannot be
// mixed: one inline limit (Key, Limit, Window and their options), several inline limits (Limits), or policies (Policy,
// Attributes, Tier).
type Request struct {
	// LimitSpec is form 1: one inline limit.
	LimitSpec

	// Limits is form 2: up to [MaxLimits] inline limits that are decided together. Either all are charged or none.
	Limits []LimitSpec `json:"limits,omitempty"`

	// Policy is form 3: the name of a policy. If only Attributes are given, every policy whose match fits the
	// attributes applies. If none fits, the request is allowed, with no limits.
	Policy     string            `json:"policy,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Tier       string            `json:"tier,omitempty"`

	// Cost is what the request charges to each of its limits: 1 by default, up to [MaxAmount].
	Cost int64 `json:"cost,omitzero"`

	// ID makes the request idempotent: for at least 10 minutes the same id is charged once and gets the same answer. The
	// same id with another body is error 409. An id has to be unique across the whole service, whatever the key or the
	// policy, so put the user in front of an id that users may choose. A check ignores the id.
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
	// Algorithm is [SlidingWindow], [FixedWindow] or [TokenBucket]. The default is sliding_window, or fixed_window for a
	// calendar period.
	Algorithm string `json:"algorithm,omitempty"`
	// Burst is what a token bucket may hold on top of Limit.
	Burst int64 `json:"burst,omitzero"`
	// Name tells the counters of one key apart. The default is the window as written.
	Name string `json:"name,omitempty"`
	// Timezone is the IANA time zone of a calendar period: UTC by default.
	Timezone string `json:"timezone,omitempty"`
	// Anchor says where a fixed window starts: "aligned" (the default), at a multiple of the window, or "first_use", at
	// its first charge.
	Anchor string `json:"anchor,omitempty"`
	// Consistency is [Exact] (the default) or [Leased]. Leased lets a worker charge a little ahead and answer from memory,
	// which is faster. It never allows more than the limit, but a crash may lose what was charged ahead.
	Consistency string `json:"consistency,omitempty"`
}

// Reply is a decision. If it is a denial, the top-level fields describe the limit that blocks. If several limits block,
// that is one that the cost can never fit, with RetryAfter 0, or else the one with the longest RetryAfter, since a retry at
// that moment passes them all. If the request is allowed, they describe the limit with the least remaining.
type Reply struct {
	Allowed bool   `json:"allowed"`
	Key     string `json:"key,omitempty"`
	Name    string `json:"name,omitempty"`
	// Limit is 0, as Remaining and Reset are, if no limit applies: see [Reply.Unlimited].
	Limit int64 `json:"limit"`
	// Remaining is how much cost could be charged right now. It is 0 if no limit applies, too.
	Remaining int64 `json:"remaining"`
	// Reset is when the whole limit is free again if nothing more is charged, in Unix milliseconds.
	Reset int64 `json:"reset"`
	// RetryAfter is how long until the same request fits, in milliseconds, on a denial only; 0 (left out) if the cost can
	// never fit.
	RetryAfter int64 `json:"retryAfter,omitzero"`
	// BlockedBy is the name of the limit that blocks, on a denial only. It is left out of a degraded denial that no limit
	// caused, because the store cannot be reached and on_error is deny.
	BlockedBy string `json:"blockedBy,omitempty"`
	// Message describes a denial in words.
	Message string `json:"message,omitempty"`
	// Limits lists every limit that was decided, if there is more than one or a policy was used. It is empty if no limit
	// applies, and left out if the top-level fields say all.
	Limits []LimitReply `json:"limits,omitzero"`
	// Degraded marks an answer that was given without the store.
	Degraded bool `json:"degraded,omitzero"`
	// Shadow marks a denial that was not enforced.
	Shadow bool `json:"shadow,omitzero"`

	// ID is the id of the request that [Client.Consume], [Client.VerifyKey] or [Client.Wait] sent, and the one to pass to
	// [Client.Settle]. It is not part of the answer; the client sets it.
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

// SettleRequest is the body of settle: the final cost of the earlier consume or verify with the id.
type SettleRequest struct {
	// ID is the id of a consume or verify that was allowed in the last 10 minutes.
	ID string `json:"id"`
	// Cost is what the work cost, 0 to [MaxAmount]. If it is more than was charged, the difference is charged now, even
	// past the limit. If it is less, the difference is given back to the window that was charged, if that still counts.
	Cost int64 `json:"cost"`
}

// StatusRequest is the body of status. It asks for all counters of a key, or for the limits that policies set for a request
// with these attributes, as in a [Request]: how they stand, without a charge, and without a denial if nothing remains.
type StatusRequest struct {
	Key        string            `json:"key,omitempty"`
	Policy     string            `json:"policy,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Tier       string            `json:"tier,omitempty"`
}

// Status lists the counters of a key that have something used; an unknown key has none. For the limits of policies it lists
// one for each, also if nothing is used.
type Status struct {
	Key      string    `json:"key,omitempty"`
	Counters []Counter `json:"counters"`
}

// Counter is the state of one (key, name).
type Counter struct {
	// Key is set in a [List], and in the [Status] of policies. It is left out in that of a key.
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

// ListRequest is the body of admin.list. It asks for a page of the counters that have something used, in key order.
type ListRequest struct {
	// Prefix selects the keys that begin with it; all keys if it is empty.
	Prefix string `json:"prefix,omitempty"`
	// After is the Next of the previous page, or a key: the page starts after it.
	After string `json:"after,omitempty"`
	// Max is how many counters a page holds: 100 by default, up to [MaxListPage].
	Max int `json:"max,omitzero"`
}

// List is a page of counters. Next is the After of the following page, and left out on the last page.
type List struct {
	Counters []Counter `json:"counters"`
	Next     string    `json:"next,omitempty"`
}

// ResetRequest is the body of admin.reset. It selects one Key, or all keys that begin with Prefix. An empty prefix needs
// All.
type ResetRequest struct {
	Key    string `json:"key,omitempty"`
	Prefix string `json:"prefix,omitempty"`
	All    bool   `json:"all,omitzero"`
	// DryRun only counts what would be reset.
	DryRun bool `json:"dryRun,omitzero"`
}

// ResetReply says how many counters were reset or, in a dry run, would be.
type ResetReply struct {
	Reset int64 `json:"reset"`
}
