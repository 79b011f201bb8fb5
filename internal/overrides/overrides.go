// Package overrides keeps the exceptions from policies: other limits for some subjects of a policy's limit, for a time
// and with a reason. They stand in the store, and every worker has all of them in memory (table.go), because each
// decision asks for them.
//
// The package knows nothing of policies, of the wire, or of SQL.
package overrides

import (
	"context"
	"errors"
)

// ID names an override.
type ID struct {
	// Policy and Name name the limit.
	Policy, Name string
	// Subject is the key that is limited, or a glob over keys, where * stands for any text.
	Subject string
}

// Override is what changes of a limit. What is zero stays as the policy has it.
type Override struct {
	ID `json:"-"`
	// Limit, Window and Burst replace those of the limit; Burst 0 replaces too, nil does not.
	Limit  int64  `json:"limit,omitempty"`
	Window string `json:"window,omitempty"`
	Burst  *int64 `json:"burst,omitempty"`
	// Unlimited lifts the limit; the three above are not set then.
	Unlimited bool `json:"unlimited,omitempty"`
	// ExpiresAt is when the override ends, in Unix milliseconds; 0 for never.
	ExpiresAt int64 `json:"expiresAt,omitempty"`
	// Reason, By and SetAt say why, who and when (in Unix milliseconds), for people.
	Reason string `json:"reason"`
	By     string `json:"by,omitempty"`
	SetAt  int64  `json:"setAt"`
}

// Live tells whether an override counts at a time.
func (o *Override) Live(now int64) bool { return o.ExpiresAt == 0 || now < o.ExpiresAt }

// Filter selects overrides for a list.
type Filter struct {
	// Policy selects those of one policy; all unless set.
	Policy string
	// After is where the page begins behind.
	After ID
	// Max is how many overrides a page holds.
	Max int
}

// Changes is what happened to the overrides since a revision.
type Changes struct {
	// Revision is that of the last change.
	Revision int64
	// All says that Overrides are all there are; else they are those that were set since.
	All       bool
	Overrides []Override
}

// ChangesAfter begins the changes since a revision, for a [Store] whose last change has the given one, and whose last removal
// removed. It lacks the overrides that were set after the revision from.
func ChangesAfter(since, revision, removed int64) (c Changes, from int64) {
	// A revision from before a backup was restored may be above the last one.
	c = Changes{Revision: revision, All: since < removed || since > revision}
	if c.All {
		since = -1
	}
	return c, since
}

// Store keeps overrides. Each change gets the next revision, in the order of commits.
type Store interface {
	// PutOverride adds an override or replaces the one with its id. The error is [ErrFull] when there are most others.
	PutOverride(ctx context.Context, o Override, most int) error
	// DeleteOverride removes an override, if there is one.
	DeleteOverride(ctx context.Context, id ID) (found bool, err error)
	// ListOverrides gives overrides in byte order of policy, name and subject.
	ListOverrides(ctx context.Context, f Filter) ([]Override, error)
	// OverrideChanges gives what happened since a revision; all there are since revision -1.
	OverrideChanges(ctx context.Context, since int64) (Changes, error)
}

// ErrFull says that there are as many overrides as a worker keeps in memory.
var ErrFull = errors.New("there are too many overrides")
