package policy

import (
	"errors"
	"fmt"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/week"
)

// Question is what a request says of itself.
type Question struct {
	// Policy is the policy to apply; empty for all that match.
	Policy, Tier string
	Attributes   map[string]string
	// Now is the time that schedules and overrides are looked up by.
	Now time.Time
	// Overrides finds the limits that subjects have of their own; nil for none.
	Overrides Finder
}

// Resolved is the limits of a request.
type Resolved struct {
	// Limits has a counter each; none allows the request.
	Limits []engine.Limit
	// OnError is the strictest of the policies that are enforced.
	OnError engine.OnError
	// Policies are those that apply, exempt ones left out.
	Policies []string

	// enforced says that OnError is that of a policy.
	enforced bool
}

// ErrUnknownPolicy says that there is no policy of that name.
var ErrUnknownPolicy = errors.New("there is no policy of that name")

// ErrTooManyLimits says that the policies that match have more limits together than a request may have.
var ErrTooManyLimits = fmt.Errorf("the policies that match have more than %d limits together", maxLimits)

// AttributeError is an attribute that a key cannot be made of: one that is missing where the policy was named, or a
// value that it cannot take.
type AttributeError struct {
	Policy, Limit, Attribute, Problem string
}

// Error says which, where, and the way out.
func (e *AttributeError) Error() string {
	return fmt.Sprintf("attribute %s %s (policy %s, limit %s)", e.Attribute, e.Problem, e.Policy, e.Limit)
}

// verdict is what becomes of a policy.
type verdict uint8

const (
	applies verdict = iota
	fails
	byNameOnly
	lostGroup
	exempted
	lacks
)

// asking is a question on its way through the policies.
type asking struct {
	*Question
	set *Set
	// won are the groups whose policy is found.
	won []bool
}

// judge tells whether a policy applies.
//
// A policy that matches and whose key has an attribute that the request lacks does not apply: the attributes of its
// keys are part of its match. It leaves its group to the next. An exempt request is not charged by the next.
func (a *asking) judge(p *policy) verdict {
	if a.Policy == "" {
		switch {
		case p.match == nil:
			return byNameOnly
		case !p.match.fits(a.Attributes):
			return fails
		case p.group >= 0 && a.won[p.group]:
			return lostGroup
		}
	}
	v := applies
	if p.exempts(a.Attributes) {
		v = exempted
	} else if limits, _ := p.limits(a.Question); a.lacks(limits) != nil {
		return lacks
	}
	if p.group >= 0 {
		a.won[p.group] = true
	}
	return v
}

// lacks gives the first limit whose key cannot be made.
func (a *asking) lacks(limits []limit) *limit {
	for i := range limits {
		if l := &limits[i]; !l.unlimited && l.key.missing(a.Attributes) != "" {
			return l
		}
	}
	return nil
}

func (p *policy) exempts(attributes map[string]string) bool {
	for _, e := range p.exempt {
		if e.fits(attributes) {
			return true
		}
	}
	return false
}

// limits gives the limits of the tier at the time, and the entry of the schedule in force, nil for none.
func (p *policy) limits(q *Question) ([]limit, *slot) {
	v := p.base
	if q.Tier != "" {
		if t := p.tiers[q.Tier]; t != nil {
			v = t
		}
	}
	if len(p.slots) > 0 {
		minute := week.Minute(q.Now.In(p.zone))
		for i := range p.slots {
			if p.slots[i].Holds(minute) {
				return v.slotted[i], &p.slots[i]
			}
		}
	}
	return v.usual, nil
}

// Resolve gives the limits of a request. The error is ErrUnknownPolicy, ErrTooManyLimits or an *[AttributeError].
func (s *Set) Resolve(q Question) (Resolved, error) {
	a := asking{Question: &q, set: s, won: make([]bool, s.groups)}
	r := Resolved{OnError: s.options.OnError}
	if q.Policy != "" {
		p := s.byName[q.Policy]
		if p == nil {
			return r, ErrUnknownPolicy
		}
		err := a.one(p, &r, true)
		return r, err
	}
	for _, p := range s.policies {
		if err := a.one(p, &r, false); err != nil {
			return Resolved{}, err
		}
	}
	return r, nil
}

// one adds the limits of a policy, if it applies.
func (a *asking) one(p *policy, r *Resolved, named bool) error {
	v := a.judge(p)
	if v != applies && !(v == lacks && named) {
		return nil
	}
	limits, _ := p.limits(a.Question)
	if v == lacks {
		l := a.lacks(limits)
		return &AttributeError{Policy: p.name, Limit: l.name, Attribute: l.key.missing(a.Attributes),
			Problem: "is missing or empty; the key of the limit is made of it"}
	}
	if !p.shadow {
		r.OnError, r.enforced = p.stricter(r), true
	}
	r.Policies = append(r.Policies, p.name)
	for i := range limits {
		l, ok, _, err := a.resolve(p, &limits[i])
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if len(r.Limits) == maxLimits {
			return ErrTooManyLimits
		}
		if r.Limits == nil {
			r.Limits = make([]engine.Limit, 0, len(limits))
		}
		r.Limits = append(r.Limits, l)
	}
	return nil
}

// stricter gives what to answer without the store: the first enforced policy says it, and a later one may only be
// stricter.
func (p *policy) stricter(r *Resolved) engine.OnError {
	strictness := [...]int{engine.OnErrorAllow: 0, engine.OnErrorLocal: 1, engine.OnErrorDeny: 2}
	if r.enforced && strictness[r.OnError] > strictness[p.onError] {
		return r.OnError
	}
	return p.onError
}

// overriding is the override of a limit, if it has one, and whether it was used.
type overriding struct {
	*overrides.Override
	used bool
}

// resolve makes a limit of the request, with its override if it has one; not ok is one that is lifted.
func (a *asking) resolve(p *policy, l *limit) (out engine.Limit, ok bool, by overriding, err error) {
	if l.unlimited && (l.key == nil || l.key.missing(a.Attributes) != "") {
		return out, false, by, nil
	}
	out = l.Limit
	if out.Key, err = l.key.render(a.Attributes, a.set.options.HashKey); err != nil {
		if l.unlimited { // no override can be for a key that cannot be made
			return out, false, by, nil
		}
		var ae *AttributeError
		if errors.As(err, &ae) {
			ae.Policy, ae.Limit = p.name, l.name
		}
		return out, false, by, err
	}
	out.User = l.key.user(a.Attributes, a.set.options.HashKey)
	ok = !l.unlimited
	if a.Overrides == nil {
		return out, ok, by, nil
	}
	if o, found := a.Overrides.Find(p.name, l.name, out.Key, a.Now.UnixMilli()); found {
		before := out.Limit
		by.Override = &o
		ok, by.used = apply(&o, &out)
		if out.Limit != before {
			out.Threshold = p.threshold.Of(out.Limit)
		}
	}
	return out, ok, by, nil
}
