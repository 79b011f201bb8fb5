package limits

import "context"

// MaxPoliciesPage is how many policies one page of admin.policies holds.
const MaxPoliciesPage = 100

// PoliciesRequest is the body of admin.policies: a page of the policies of the worker that answers, in the order of its
// file.
type PoliciesRequest struct {
	// After is the Next of the page before: the page starts behind it. Where the policy is no more that is error 400
	// invalid_after.
	After string `json:"after,omitempty"`
	// Max is how many policies a page holds: [MaxPoliciesPage] unless said, and at most. It holds fewer where they have many limits.
	Max int `json:"max,omitzero"`
}

// Policies is what the worker that answers has in force of its policy file.
type Policies struct {
	// Hash is the SHA-256 of the file, in hex; empty without a policy file. Workers with one hash answer alike.
	Hash string `json:"hash,omitempty"`
	// LoadedAt is when the file was read, in Unix milliseconds.
	LoadedAt int64 `json:"loadedAt,omitzero"`
	// Error is why the file as it is now is not in force, when it is not: its mistakes, one a line.
	Error string `json:"error,omitempty"`
	// Failures counts the files that were refused since the start.
	Failures int64        `json:"failures,omitzero"`
	Policies []PolicyInfo `json:"policies"`
	// Next, when there, is the After of the page that follows.
	Next string `json:"next,omitempty"`
}

// PolicyInfo is a policy in short.
type PolicyInfo struct {
	Name   string        `json:"name"`
	Group  string        `json:"group,omitempty"`
	Mode   string        `json:"mode,omitempty"`
	Limits []PolicyLimit `json:"limits"`
	// Tiers are the names of the tiers that have limits of their own.
	Tiers []string `json:"tiers,omitempty"`
	// TierLimits are, for each of them, the limits that it changes, as they are in it.
	TierLimits map[string][]PolicyLimit `json:"tierLimits,omitempty"`
	// Schedule is when the limits are others.
	Schedule []PolicySlot `json:"schedule,omitempty"`
}

// PolicySlot is a time of day at which limits are others.
type PolicySlot struct {
	// From and To are such as "22:00". A slot that ends before it begins ends the next day.
	From string `json:"from"`
	To   string `json:"to"`
	// Days are those on which the slot begins, such as "mon"; all unless said.
	Days []string `json:"days,omitempty"`
	// Timezone is an IANA zone; UTC unless said.
	Timezone string `json:"timezone,omitempty"`
	// Factor multiplies limit and burst of every limit.
	Factor float64 `json:"factor,omitzero"`
	// Limits are those that the slot changes, as they are without a tier and before the factor.
	Limits []PolicyLimit `json:"limits,omitempty"`
}

// PolicyLimit is a limit of a policy. A field that its file leaves out is left out.
type PolicyLimit struct {
	Name string `json:"name"`
	// Key is the template of the key.
	Key string `json:"key"`
	// Limit is left out when the limit is Unlimited.
	Limit     int64  `json:"limit,omitzero"`
	Unlimited bool   `json:"unlimited,omitzero"`
	Window    string `json:"window,omitempty"`
	// Algorithm is [SlidingWindow] unless said, and [FixedWindow] for a calendar period.
	Algorithm string `json:"algorithm,omitempty"`
	Burst     int64  `json:"burst,omitzero"`
	// Timezone is UTC, Anchor "aligned" and Consistency [Exact] unless said.
	Timezone    string `json:"timezone,omitempty"`
	Anchor      string `json:"anchor,omitempty"`
	Consistency string `json:"consistency,omitempty"`
}

// Policies gives a page of the policies of one worker, and the state of their file.
func (c *Client) Policies(ctx context.Context, r PoliciesRequest) (*Policies, error) {
	return call[Policies](ctx, c, SubjectPolicies, r)
}
