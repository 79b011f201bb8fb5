// Package overrides holds the exceptions from policies: a different limit for some subjects, for a time and with a reason.
// The store has them, and every worker keeps all of them in memory (table.go), because each decision looks them up.
//
// The package knows nothing of policies, of the wire, or of SQL.
package overrides

import (
	"context"
	"errors"
	"time"
)

// ID identifies an override.
type ID struct {
	// Policy and Name identify the limit.
	Policy, Name string
	// Subject is the key that is limited, or a glob over keys, where * stands for any text.
	Subject string
}

// Override is a change of a limit. Fields that are zero stay as the policy has them.
type Override struct {
	ID `json:"-"`
	// Limit, Window and Burst replace those of the limit. A Burst of 0 replaces, nil does not.
	Limit  int64  `json:"limit,omitempty"`
	Window string `json:"window,omitempty"`
	Burst  *int64 `json:"burst,omitempty"`
	// Unlimited lifts the limit. Limit, Window and Burst are not set then.
	Unlimited bool `json:"unlimited,omitempty"`
	// ExpiresAt is when the override ends, in Unix milliseconds; 0 for never.
	ExpiresAt int64 `json:"expiresAt,omitempty"`
	// Reason, By and SetAt say why the override was set, by whom and when, in Unix milliseconds, for people.
	Reason string `json:"reason"`
	By     string `json:"by,omitempty"`
	SetAt  int64  `json:"setAt"`
}

// LimitID identifies a limit of a policy.
type LimitID struct{ Policy, Name string }

func (id ID) limit() LimitID { return LimitID{id.Policy, id.Name} }

// Live reports whether an override is in force at a time in Unix milliseconds.
func (o *Override) Live(now int64) bool { return o.ExpiresAt == 0 || now < o.ExpiresAt }

// Filter selects overrides for a list.
type Filter struct {
	// Policy selects the overrides of one policy; all policies by default.
	Policy string
	// After is the override after which the page begins.
	After ID
	// Max is how many overrides a page holds.
	Max int
}

// Changes are the changes of the overrides since a revision.
type Changes struct {
	// Revision is the revision of the last change.
	Revision int64
	// All says that the store cannot tell what has changed: all overrides have to be listed. The other fields are empty then.
	All bool
	// Removed are those that were removed since, also if they were set again. Overrides are those that were set since.
	Removed   []ID
	Overrides []Override
}

// Removal is the removal of an override, which the store keeps for [KeepRemovals].
type Removal struct {
	ID
	// Revision is that of the removal, and Previous that of the removal before, of whichever override.
	Revision, Previous int64
}

// KeepRemovals is how long removals are kept. A table reads the changes twice a second.
const KeepRemovals = time.Hour

// Source is how a store reads what has changed, each part in a read of its own.
type Source struct {
	// Revisions returns the revision of the last change, and that of the last removal.
	Revisions func() (changed, removed int64, err error)
	// Removals returns the removals after a revision that are kept, and Set the overrides that were set after it, in the order
	// of their revisions.
	Removals func(after int64) ([]Removal, error)
	Set      func(after int64) ([]Override, error)
}

// ChangesSince returns the changes since a revision, for [Store.OverrideChanges]. It reads the revision first, and removals
// before what was set: a change that is committed in between is returned twice rather than missed, and what is set again
// counts as set.
func ChangesSince(since int64, s Source) (c Changes, err error) {
	var removed int64
	if c.Revision, removed, err = s.Revisions(); err != nil {
		return c, err
	}
	// After a backup was restored, the known revision may be above the last one.
	if c.All = since < 0 || since > c.Revision; c.All || since == c.Revision {
		return c, nil
	}
	if removed > since {
		list, err := s.Removals(since)
		if err != nil {
			return c, err
		}
		ids, complete := removedSince(since, removed, list)
		if !complete {
			c.All = true
			return c, nil
		}
		c.Removed = ids
	}
	c.Overrides, err = s.Set(since)
	return c, err
}

// removedSince returns the overrides that were removed after a revision. list has the removals after it that are kept, in
// their order, and last is the revision of the last removal. complete is false if one of them is missing: it is no longer
// kept, or a limiter made it that is older than the list.
func removedSince(since, last int64, list []Removal) (removed []ID, complete bool) {
	known := since
	for _, r := range list {
		if r.Previous > known {
			return nil, false
		}
		known = r.Revision
		removed = append(removed, r.ID)
	}
	if known < last {
		return nil, false
	}
	return removed, true
}

// Store stores overrides. Each change gets the next revision, in the order of commits.
type Store interface {
	// PutOverride adds an override or replaces the one with its id. The error is [ErrFull] if there are max
	// others already.
	PutOverride(ctx context.Context, o Override, max int) error
	// DeleteOverride removes an override. found is false if there was none.
	DeleteOverride(ctx context.Context, id ID) (found bool, err error)
	// ListOverrides returns overrides in the byte order of policy, name and subject.
	ListOverrides(ctx context.Context, f Filter) ([]Override, error)
	// OverrideChanges returns the changes since a revision, -1 if none is known.
	OverrideChanges(ctx context.Context, since int64) (Changes, error)
}

// ErrFull says that there are as many overrides as a worker keeps in memory.
var ErrFull = errors.New("too many overrides")
