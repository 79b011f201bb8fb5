package policy

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/week"
)

// Question is a request, as far as policies need it.
type Question struct {
	// Policy is the policy to apply; empty for all that match.
	Policy, Tier string
	Attributes   map[string]string
	// Now is the time for schedules and for the expiry of overrides.
	Now time.Time
	// Overrides finds overrides for single subjects; nil for none.
	Overrides Finder
}

// Resolved is the limits of a request.
type Resolved struct {
	// Limits are the limits to decide, each with a counter of its own. Without any the request is allowed.
	Limits []engine.Limit
	// OnError is the strictest setting of the policies that are enforced.
	OnError engine.OnError
	// Until is when a schedule or the expiry of an override may change the limits, in Unix milliseconds, at the earliest:
	// from Now to then they are the same, as long as policies and overrides are. math.MaxInt64 if time changes nothing.
	Until int64

	// hasOnError says that OnError is the setting of a policy, and not the default.
	hasOnError bool
	// leftOut says why policies in shadow that apply are left out, by their names. nil for none.
	leftOut map[string]error
}

// ErrUnknownPolicy says that there is no policy with the name.
var ErrUnknownPolicy = errors.New("unknown policy")

// ErrTooManyLimits says that the policies that match have more limits together than a request may have.
var ErrTooManyLimits = fmt.Errorf("the matching policies have more than %d limits in total", maxLimits)

// AttributeError says that a key cannot be made of an attribute: the attribute is missing although the policy was named,
// or its value is not valid.
type AttributeError struct {
	Policy, Limit, Attribute, Problem string
}

// Error names the attribute, the problem, the policy and the limit.
func (e *AttributeError) Error() string {
	return fmt.Sprintf("attribute %s %s (policy %s, limit %s)", e.Attribute, e.Problem, e.Policy, e.Limit)
}

// verdict says whether a policy applies to a request, and if not, why.
type verdict uint8

const (
	applies verdict = iota
	noMatch
	namedOnly        // it has no match, and the request does not name it
	groupTaken       // an earlier policy of its group applies
	exempted         // the request fits an exempt condition
	missingAttribute // a key needs an attribute that the request does not have
)

// resolver resolves one request.
type resolver struct {
	*Question
	set *Set
	// taken says of each group which of its policies have taken the request.
	taken []taken
	// until is Resolved.Until as far as the request is resolved.
	until int64
}

func (s *Set) resolver(q *Question) resolver {
	return resolver{Question: q, set: s, taken: make([]taken, s.groups), until: math.MaxInt64}
}

// taken says whether an enforced policy of a group has taken the request, and whether one in shadow has. Enforced policies
// are chosen as if those in shadow were not there, and those in shadow as if all were enforced.
type taken struct{ enforced, shadow bool }

func (t taken) from(p *policy) bool { return t.enforced || t.shadow && p.shadow }

func (t *taken) by(p *policy) {
	if p.shadow {
		t.shadow = true
	} else {
		t.enforced = true
	}
}

// judge says whether a policy applies, and if not, why.
//
// The attributes of a policy's keys are part of its match: a policy does not apply if the request lacks one of them, and
// the next policy of its group gets its turn. A policy that exempts the request takes it from its group.
func (r *resolver) judge(p *policy) verdict {
	if r.Policy == "" {
		switch {
		case p.match == nil:
			return namedOnly
		case !p.match.matches(r.Attributes):
			return noMatch
		case p.group >= 0 && r.taken[p.group].from(p):
			return groupTaken
		}
	}
	v := applies
	if len(p.slots) > 0 { // they begin and end with a minute
		r.until = min(r.until, r.Now.Truncate(time.Minute).Add(time.Minute).UnixMilli())
	}
	if p.exempts(r.Attributes) {
		v = exempted
	} else if limits, _ := p.limits(r.Question); r.firstWithoutKey(limits) != nil {
		return missingAttribute
	}
	if p.group >= 0 {
		r.taken[p.group].by(p)
	}
	return v
}

// firstWithoutKey returns the first limit whose key needs an attribute that the request lacks; nil if there is none.
func (r *resolver) firstWithoutKey(limits []limit) *limit {
	for i := range limits {
		if l := &limits[i]; !l.unlimited && l.key.missing(r.Attributes) != "" {
			return l
		}
	}
	return nil
}

func (p *policy) exempts(attributes map[string]string) bool {
	return slices.ContainsFunc(p.exempt, func(e matcher) bool { return e.matches(attributes) })
}

// limits returns the limits for the request's tier and time, and the schedule entry in force, nil for none.
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
				return v.bySlot[i], &p.slots[i]
			}
		}
	}
	return v.usual, nil
}

// Resolve returns the limits of a request. The error is ErrUnknownPolicy, ErrTooManyLimits or an *[AttributeError].
func (s *Set) Resolve(q Question) (Resolved, error) {
	r := s.resolver(&q)
	out := Resolved{OnError: s.options.OnError}
	if q.Policy != "" {
		p := s.byName[q.Policy]
		if p == nil {
			return out, ErrUnknownPolicy
		}
		err := r.addPolicy(&out, p)
		out.Until = r.until
		return out, err
	}
	var room [32]int
	for _, n := range s.index.candidates(q.Attributes, room[:0]) {
		if err := r.addPolicy(&out, s.policies[n]); err != nil {
			return Resolved{}, err
		}
	}
	out.Until = r.until
	return out, nil
}

// addPolicy adds the limits of a policy, if it applies.
func (r *resolver) addPolicy(out *Resolved, p *policy) error {
	v := r.judge(p)
	if v != applies && !(v == missingAttribute && r.Policy != "") {
		return nil
	}
	limits, _ := p.limits(r.Question)
	if v == missingAttribute {
		l := r.firstWithoutKey(limits)
		return &AttributeError{Policy: p.name, Limit: l.name, Attribute: l.key.missing(r.Attributes),
			Problem: "is missing or empty; the key of the limit needs it"}
	}
	if !p.shadow {
		out.OnError, out.hasOnError = p.strictestOnError(out), true
	}
	for i := range limits {
		err := r.addLimit(out, p, limits[i:])
		if err != nil && p.shadow && r.Policy == "" { // it must not refuse what others allow
			out.leaveOut(p.name, err)
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addLimit adds the first of the limits of a policy that are yet to be added, if it limits the request.
func (r *resolver) addLimit(out *Resolved, p *policy, limits []limit) error {
	l, limited, _, err := r.resolveLimit(p, &limits[0])
	if err != nil || !limited {
		return err
	}
	if len(out.Limits) == maxLimits && !p.shadow {
		out.leaveOutShadow()
	}
	if len(out.Limits) == maxLimits {
		return ErrTooManyLimits
	}
	if out.Limits == nil {
		out.Limits = make([]engine.Limit, 0, len(limits))
	}
	out.Limits = append(out.Limits, l)
	return nil
}

// leaveOut removes a policy in shadow.
func (out *Resolved) leaveOut(policy string, why error) {
	if out.leftOut == nil {
		out.leftOut = map[string]error{}
	}
	out.leftOut[policy] = why
	out.Limits = slices.DeleteFunc(out.Limits, func(l engine.Limit) bool { return l.Policy == policy })
}

// leaveOutShadow removes all policies in shadow, to make room.
func (out *Resolved) leaveOutShadow() {
	for _, l := range slices.Clone(out.Limits) {
		if l.Shadow {
			out.leaveOut(l.Policy, ErrTooManyLimits)
		}
	}
}

// strictestOnError returns the setting of the policy, or that of earlier enforced policies if it is stricter.
func (p *policy) strictestOnError(out *Resolved) engine.OnError {
	strictness := [...]int{engine.OnErrorAllow: 0, engine.OnErrorLocal: 1, engine.OnErrorDeny: 2}
	if out.hasOnError && strictness[out.OnError] > strictness[p.onError] {
		return out.OnError
	}
	return p.onError
}

// foundOverride is the override of a limit, nil if it has none, and whether it was used.
type foundOverride struct {
	*overrides.Override
	used bool
}

// resolveLimit renders the key of a limit and applies its override, if it has one. limited is false if the limit is lifted.
func (r *resolver) resolveLimit(p *policy, l *limit) (out engine.Limit, limited bool, by foundOverride, err error) {
	if l.unlimited && l.key.missing(r.Attributes) != "" {
		return out, false, by, nil
	}
	out = l.Limit
	var identifier int
	if out.Key, identifier, err = l.key.render(r.Attributes, r.set.options.HashKey); err != nil {
		if l.unlimited { // without a key no override can apply
			return out, false, by, nil
		}
		var ae *AttributeError
		if errors.As(err, &ae) {
			ae.Policy, ae.Limit = p.name, l.name
		}
		return out, false, by, err
	}
	out.User = cmp.Or(l.key.user(r.Attributes, r.set.options.HashKey), identifierFrom(out.Key, identifier))
	limited = !l.unlimited
	if r.Overrides == nil {
		return out, limited, by, nil
	}
	if o, found := r.Overrides.Find(p.name, l.name, out.Key, r.Now.UnixMilli()); found {
		if o.ExpiresAt != 0 {
			r.until = min(r.until, o.ExpiresAt)
		}
		before := out.Limit
		by.Override = &o
		limited, by.used = applyOverride(&o, &out)
		if out.Limit != before {
			out.Threshold = p.threshold.Of(out.Limit)
		}
	}
	return out, limited, by, nil
}
