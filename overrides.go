package limits

import "context"

// The subjects of overrides.
const (
	SubjectOverridesSet    = "limits.admin.overrides.set"
	SubjectOverridesDelete = "limits.admin.overrides.delete"
	SubjectOverridesList   = "limits.admin.overrides.list"
)

// CodeTooManyOverrides is the code of the error 409 for an override more than a worker keeps in memory.
const CodeTooManyOverrides = "too_many_overrides"

// CodeUnknownLimit is the code of the error 404 for an override of a limit that its policy does not have.
const CodeUnknownLimit = "unknown_limit"

// MaxReasonBytes bounds the reason of an override.
const MaxReasonBytes = 256

// OverrideID names an override: a limit of a policy, and whom it changes for.
type OverrideID struct {
	Policy string `json:"policy"`
	// Name is the name of the limit in its policy.
	Name string `json:"name"`
	// Subject is the key that the limit makes of a request, such as "api:user:7", or a glob over keys, in which *
	// stands for any text. A key goes before a glob, and a longer glob before a shorter one.
	Subject string `json:"subject"`
}

// SetOverrideRequest is the body of admin.overrides.set. What is left out stays as the policy has it; at least one of
// Limit, Window, Burst and Unlimited is needed.
type SetOverrideRequest struct {
	OverrideID
	Limit  int64  `json:"limit,omitzero"`
	Window string `json:"window,omitempty"`
	Burst  *int64 `json:"burst,omitempty"`
	// Unlimited lifts the limit; Limit, Window and Burst are left out then.
	Unlimited bool `json:"unlimited,omitzero"`
	// ExpiresAt is when the override ends, in Unix milliseconds; it does not unless said.
	ExpiresAt int64 `json:"expiresAt,omitzero"`
	// Reason says why, and By who, for people.
	Reason string `json:"reason"`
	By     string `json:"by,omitempty"`
}

// Override is an override as stored.
type Override struct {
	SetOverrideRequest
	// SetAt is when it was set, in Unix milliseconds.
	SetAt int64 `json:"setAt"`
}

// OverrideReply is an override as it was set.
type OverrideReply struct {
	Override Override `json:"override"`
}

// DeleteOverrideReply says whether there was one.
type DeleteOverrideReply struct {
	Deleted bool `json:"deleted"`
}

// ListOverridesRequest is the body of admin.overrides.list: a page in order of policy, name and subject.
type ListOverridesRequest struct {
	// Policy selects those of one policy; all unless said.
	Policy string `json:"policy,omitempty"`
	// After is the Next of the page before.
	After string `json:"after,omitempty"`
	// Max is how many overrides a page holds: 100 unless said, up to [MaxListPage].
	Max int `json:"max,omitzero"`
}

// OverrideList is a page of overrides. Next, when there, is the After of the page that follows.
type OverrideList struct {
	Overrides []Override `json:"overrides"`
	Next      string     `json:"next,omitempty"`
}

// SetOverride sets other limits for a subject, on every worker within a second. It replaces the override of the same
// policy, name and subject.
func (c *Client) SetOverride(ctx context.Context, r SetOverrideRequest) (*OverrideReply, error) {
	return call[OverrideReply](ctx, c, SubjectOverridesSet, r)
}

// DeleteOverride lets the policy count again, on every worker within a second.
func (c *Client) DeleteOverride(ctx context.Context, id OverrideID) (*DeleteOverrideReply, error) {
	return call[DeleteOverrideReply](ctx, c, SubjectOverridesDelete, id)
}

// ListOverrides gives one page of overrides, with those that have expired.
func (c *Client) ListOverrides(ctx context.Context, r ListOverridesRequest) (*OverrideList, error) {
	return call[OverrideList](ctx, c, SubjectOverridesList, r)
}
