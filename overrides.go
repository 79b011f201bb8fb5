package limits

import "context"

// The subjects of overrides.
const (
	SubjectOverridesSet    = "limits.admin.overrides.set"
	SubjectOverridesDelete = "limits.admin.overrides.delete"
	SubjectOverridesList   = "limits.admin.overrides.list"
)

// CodeTooManyOverrides is the code of a 409: there are as many overrides as a worker keeps in memory.
const CodeTooManyOverrides = "too_many_overrides"

// CodeUnknownLimit is the code of a 404: the policy has no limit with the name.
const CodeUnknownLimit = "unknown_limit"

// MaxReasonBytes is the most bytes of the reason of an override.
const MaxReasonBytes = 256

// OverrideID identifies an override: a limit of a policy, and the subject that it is changed for.
type OverrideID struct {
	Policy string `json:"policy"`
	// Name is the name of the limit in its policy.
	Name string `json:"name"`
	// Subject is a key that the limit has for a request, such as "api:user:7", or a glob over keys, in which * stands for
	// any text. An exact key takes precedence over a glob, and a longer glob over a shorter one.
	Subject string `json:"subject"`
}

// SetOverrideRequest is the body of admin.overrides.set. At least one of Limit, Window, Burst and Unlimited is needed.
// Those that are left out stay as the policy has them.
type SetOverrideRequest struct {
	OverrideID
	Limit  int64  `json:"limit,omitzero"`
	Window string `json:"window,omitempty"`
	Burst  *int64 `json:"burst,omitempty"`
	// Unlimited lifts the limit. It cannot be combined with Limit, Window and Burst.
	Unlimited bool `json:"unlimited,omitzero"`
	// ExpiresAt is when the override ends, in Unix milliseconds; never by default.
	ExpiresAt int64 `json:"expiresAt,omitzero"`
	// Reason and By say why the override was set and by whom, for people.
	Reason string `json:"reason"`
	By     string `json:"by,omitempty"`
}

// Override is a stored override.
type Override struct {
	SetOverrideRequest
	// SetAt is when the override was set, in Unix milliseconds.
	SetAt int64 `json:"setAt"`
	// Unused is true in a list if the override is in force and applies to nothing: the policies of the worker that answers
	// do not have its limit, or it cannot be changed this way.
	Unused bool `json:"unused,omitzero"`
}

// OverrideReply is the override that was set.
type OverrideReply struct {
	Override Override `json:"override"`
}

// DeleteOverrideReply says whether there was such an override.
type DeleteOverrideReply struct {
	Deleted bool `json:"deleted"`
}

// ListOverridesRequest is the body of admin.overrides.list. It asks for a page in the order of policy, name and subject.
type ListOverridesRequest struct {
	// Policy selects the overrides of one policy; all policies by default.
	Policy string `json:"policy,omitempty"`
	// After is the Next of the previous page.
	After string `json:"after,omitempty"`
	// Max is how many overrides a page holds: 100 by default, up to [MaxListPage].
	Max int `json:"max,omitzero"`
}

// OverrideList is a page of overrides. Next is the After of the following page, and left out on the last page.
type OverrideList struct {
	Overrides []Override `json:"overrides"`
	Next      string     `json:"next,omitempty"`
}

// SetOverride changes a limit of a policy for a subject. Every worker knows within a second. It replaces an override of
// the same policy, name and subject.
func (c *Client) SetOverride(ctx context.Context, r SetOverrideRequest) (*OverrideReply, error) {
	return call[OverrideReply](ctx, c, SubjectOverridesSet, r)
}

// DeleteOverride removes an override, so that the limit of the policy applies again. Every worker knows within a second.
func (c *Client) DeleteOverride(ctx context.Context, id OverrideID) (*DeleteOverrideReply, error) {
	return call[DeleteOverrideReply](ctx, c, SubjectOverridesDelete, id)
}

// ListOverrides returns one page of overrides, including those that have expired.
func (c *Client) ListOverrides(ctx context.Context, r ListOverridesRequest) (*OverrideList, error) {
	return call[OverrideList](ctx, c, SubjectOverridesList, r)
}
