package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// MaxAmount bounds limit, burst and cost.
const MaxAmount = 1_000_000_000

// Algorithm is how a counter counts.
type Algorithm uint8

// The algorithms. SlidingWindow is the default.
const (
	// SlidingWindow admits at most the limit in every interval of one window's length. It keeps
	// charges in sub-buckets of a 60th of the window, and drops one only when its end has left the
	// window.
	SlidingWindow Algorithm = iota
	// FixedWindow admits at most the limit in each window: aligned to the epoch, to the calendar,
	// or to the first charge.
	FixedWindow
	// TokenBucket holds limit + burst tokens and refills limit tokens a window, continuously.
	TokenBucket
)

var algorithmNames = [...]string{"sliding_window", "fixed_window", "token_bucket"}

// String returns the algorithm's name on the wire.
func (a Algorithm) String() string {
	if int(a) < len(algorithmNames) {
		return algorithmNames[a]
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// ParseAlgorithm reads an algorithm's name on the wire.
func ParseAlgorithm(s string) (Algorithm, error) {
	if i := slices.Index(algorithmNames[:], s); i >= 0 {
		return Algorithm(i), nil
	}
	return 0, fmt.Errorf("unknown algorithm %q; want %s", s, strings.Join(algorithmNames[:], ", "))
}

// CounterID names a counter.
type CounterID struct {
	Key, Name string
}

// Compare orders ids by key, then by name, byte by byte.
func (c CounterID) Compare(d CounterID) int {
	if n := strings.Compare(c.Key, d.Key); n != 0 {
		return n
	}
	return strings.Compare(c.Name, d.Name)
}

// policySeparator stands between the policy and the limit's name in a counter's stored name. It is
// not printable, and the names of inline limits are, so an inline limit never has the stored name
// of a policy's limit.
const policySeparator = "\x1f"

// PolicyName returns the stored name of a policy's counter. It holds the policy, so that two policies
// do not share a counter if they use one key and one limit name.
func PolicyName(policy, limit string) string { return policy + policySeparator + limit }

// Label is the name to show: the limit's, without its policy.
func (c CounterID) Label() string { return c.Name[strings.Index(c.Name, policySeparator)+1:] }

// PolicyPart is the policy in the stored name; empty for an inline limit.
func (c CounterID) PolicyPart() string {
	return c.Name[:max(0, strings.Index(c.Name, policySeparator))]
}

// Limit is one limit, fully resolved. It must have passed [Limit.Validate].
type Limit struct {
	CounterID
	// Policy is the policy that the limit comes from; empty for an inline limit.
	Policy    string
	Algorithm Algorithm
	// Limit is the cost that one window admits, 1 to MaxAmount.
	Limit int64
	// Burst is what a token bucket holds on top of Limit, 0 to MaxAmount.
	Burst  int64
	Window Window
	// Zone is the time zone of a calendar period; nil is UTC.
	Zone *time.Location
	// FirstUse lets a fixed window start at its first charge.
	FirstUse bool
	// Leased lets a worker charge ahead and serve requests from memory.
	Leased bool
	// Threshold is the remaining cost at or below which a warning is raised; negative raises none.
	Threshold int64
	// User is the user that the limit's events name.
	User string
	// Shadow has the limit decided and charged as if it were enforced, but it never denies.
	Shadow bool
	// Message is the policy's text for a denial; empty for the default.
	Message string
	// Ref, if set, saves lookups for a limit that is asked for repeatedly.
	Ref *Ref
}

// Ref caches what was last looked up for one limit; copies of the limit may share it. Each cached
// value carries its own mark that it is stale. The zero Ref is ready for use.
type Ref struct {
	cached atomic.Pointer[cachedCounter]
	lease  atomic.Pointer[lease]
	// Tally is for [Config.Tally].
	Tally Tally
}

// Prefetch loads the memory that a decision on the limit reads first. A caller that has several
// decisions to make calls it for all of them first, so that their cache misses overlap.
func (r *Ref) Prefetch() {
	if m := r.cached.Load(); m != nil {
		m.stale.Load()
	}
	if e := r.lease.Load(); e != nil && e.shard != nil {
		e.line2.Load()
		e.line3.Load()
	}
}

// Tally counts the decisions on a limit for [Config.Tally]; Listed says that it has counts and is
// on the list of tallies to collect. It is part of the Ref because a lookup would cost more than
// the counting.
type Tally struct {
	Allowed, Denied, Cost atomic.Int64
	Listed                atomic.Bool
}

// Validate reports what is wrong with the limit; the error is a *[FieldError].
func (l *Limit) Validate() error {
	switch {
	case l.Limit < 1 || l.Limit > MaxAmount:
		return fieldErrorf("limit", "limit %d is out of range; want 1 to %d", l.Limit, MaxAmount)
	case l.Burst < 0 || l.Burst > MaxAmount:
		return fieldErrorf("burst", "burst %d is out of range; want 0 to %d", l.Burst, MaxAmount)
	case l.Burst > 0 && l.Algorithm != TokenBucket:
		return fieldErrorf("burst", "burst needs algorithm token_bucket; this limit has %s", l.Algorithm)
	case l.Window.IsZero():
		return fieldErrorf("window", "window is missing; want a duration such as 1m or a period such as day")
	case l.Window.Period != 0 && l.Algorithm != FixedWindow:
		return fieldErrorf("algorithm", "a calendar period needs algorithm fixed_window; this limit has %s", l.Algorithm)
	case l.Zone != nil && l.Window.Period == 0:
		return fieldErrorf("timezone", "timezone needs a calendar period (minute, hour, day, week, month); this limit has window %s", l.Window)
	case l.FirstUse && l.Algorithm != FixedWindow:
		return fieldErrorf("anchor", "anchor first_use needs algorithm fixed_window; this limit has %s", l.Algorithm)
	}
	return nil
}

// sameDefinition reports whether m has the same definition. It agrees with hash, and costs less.
func (l *Limit) sameDefinition(m *Limit) bool {
	return l.Limit == m.Limit && l.Algorithm == m.Algorithm && l.Window.text == m.Window.text && l.Burst == m.Burst &&
		l.FirstUse == m.FirstUse && l.Policy == m.Policy &&
		(l.Zone == m.Zone || l.Zone != nil && m.Zone != nil && l.Zone.String() == m.Zone.String())
}

// capacity is the most that can be charged at once.
func (l *Limit) capacity() int64 {
	if l.Algorithm == TokenBucket {
		return l.Limit + l.Burst
	}
	return l.Limit
}

func (l *Limit) zone() *time.Location { return cmp.Or(l.Zone, time.UTC) }

// Spec is what a store keeps of a limit beside its state, so that a counter can be shown without
// its policy.
type Spec struct {
	Policy    string `json:"policy,omitempty"`
	Algorithm string `json:"algorithm"`
	Limit     int64  `json:"limit"`
	Window    string `json:"window"`
	Burst     int64  `json:"burst,omitzero"`
	Timezone  string `json:"timezone,omitempty"`
	FirstUse  bool   `json:"firstUse,omitzero"`
}

// Spec describes the limit.
func (l *Limit) Spec() Spec {
	s := Spec{
		Policy: l.Policy, Algorithm: l.Algorithm.String(), Limit: l.Limit, Window: l.Window.String(),
		Burst: l.Burst, FirstUse: l.FirstUse,
	}
	if l.Zone != nil {
		s.Timezone = l.Zone.String()
	}
	return s
}

// Resolve returns the limit that the spec describes, with id as its counter.
func (s Spec) Resolve(id CounterID) (Limit, error) {
	l := Limit{CounterID: id, Policy: s.Policy, Limit: s.Limit, Burst: s.Burst, FirstUse: s.FirstUse, Threshold: -1}
	var err error
	if l.Algorithm, err = ParseAlgorithm(s.Algorithm); err != nil {
		return l, err
	}
	if l.Window, err = ParseWindow(s.Window); err != nil {
		return l, err
	}
	if s.Timezone != "" {
		if l.Zone, err = time.LoadLocation(s.Timezone); err != nil {
			return l, err
		}
	}
	return l, l.Validate()
}

// FieldError is a bad value in a limit; Field is its name on the wire.
type FieldError struct {
	Field, Message string
}

// Error returns the message.
func (e *FieldError) Error() string { return e.Message }

func fieldErrorf(field, format string, args ...any) error {
	return &FieldError{Field: field, Message: fmt.Sprintf(format, args...)}
}
