package limits

import "context"

// MaxPoliciesPage is the most policies in one page of admin.policies.
const MaxPoliciesPage = 100

// PoliciesRequest is the body of admin.policies. It asks for a page of the policies of the worker that answers, in the
// order of its policy file.
type PoliciesRequest struct {
	// After is the Next of the previous page: the page starts after it. If that policy no longer exists, the answer is
	// error 400 with code invalid_after.
	After string `json:"after,omitempty"`
	// Max is how many policies a page holds: [MaxPoliciesPage] by default, which is also the maximum. A page holds fewer if
	// its policies have many limits.
	Max int `json:"max,omitzero"`
}

// Policies describes the policies that are in force on the worker that answers.
type Policies struct {
	// Hash is the SHA-256 of the file, in hex; empty without a policy file. Workers with the same hash decide alike.
	Hash string `json:"hash,omitempty"`
	// LoadedAt is when the file was read, in Unix milliseconds.
	LoadedAt int64 `json:"loadedAt,omitzero"`
	// Error lists the mistakes, one per line, because of which the current file is not in force; left out if it is.
	Error string `json:"error,omitempty"`
	// Failures counts the files that were rejected since the worker started.
	Failures int64        `json:"failures,omitzero"`
	Policies []PolicyInfo `json:"policies"`
	// Next is the After of the following page, and left out on the last page.
	Next string `json:"next,omitempty"`
}

// PolicyInfo summarizes a policy.
type PolicyInfo struct {
	Name   string        `json:"name"`
	Group  string        `json:"group,omitempty"`
	Mode   string        `json:"mode,omitempty"`
	Limits []PolicyLimit `json:"limits"`
	// Tiers are the names of the tiers that have limits of their own.
	Tiers []string `json:"tiers,omitempty"`
	// TierLimits has, for each of these tiers, the limits that it changes, as they are in the tier.
	TierLimits map[string][]PolicyLimit `json:"tierLimits,omitempty"`
	// Schedule lists the times of day at which the limits differ.
	Schedule []PolicySlot `json:"schedule,omitempty"`
}

// PolicySlot is a time of day at which the limits of a policy differ.
type PolicySlot struct {
	// From and To are times such as "22:00". If To is before From, the slot ends on the next day.
	From string `json:"from"`
	To   string `json:"to"`
	// Days are the days on which the slot begins, such as "mon"; all by default.
	Days []string `json:"days,omitempty"`
	// Timezone is an IANA time zone; UTC by default.
	Timezone string `json:"timezone,omitempty"`
	// Factor multiplies the limit and burst of every limit.
	Factor float64 `json:"factor,omitzero"`
	// Limits are those that the slot changes, as they are without a tier and before the factor.
	Limits []PolicyLimit `json:"limits,omitempty"`
}

// PolicyLimit is a limit of a policy. It leaves out the fields that the policy file leaves out.
type PolicyLimit struct {
	Name string `json:"name"`
	// Key is the template of the key.
	Key string `json:"key"`
	// Limit is left out if Unlimited is set.
	Limit     int64  `json:"limit,omitzero"`
	Unlimited bool   `json:"unlimited,omitzero"`
	Window    string `json:"window,omitempty"`
	// Algorithm is [SlidingWindow] if it is left out, or [FixedWindow] for a calendar period.
	Algorithm string `json:"algorithm,omitempty"`
	Burst     int64  `json:"burst,omitzero"`
	// Timezone is UTC, Anchor "aligned" and Consistency [Exact] if they are left out.
	Timezone    string `json:"timezone,omitempty"`
	Anchor      string `json:"anchor,omitempty"`
	Consistency string `json:"consistency,omitempty"`
}

// Policies returns a page of the policies of one worker, and the state of its policy file.
func (c *Client) Policies(ctx context.Context, r PoliciesRequest) (*Policies, error) {
	return call[Policies](ctx, c, SubjectPolicies, r)
}
