package policy

import (
	"errors"
	"fmt"
)

// Explanation says which policies apply to a request and why.
type Explanation struct {
	Policies []Explained `json:"policies"`
	// Error says why the request would be answered with an error.
	Error string `json:"error,omitempty"`
}

// Explained says whether one policy applies, and with which limits.
type Explained struct {
	Policy  string `json:"policy"`
	Applies bool   `json:"applies"`
	// Why says in words why it applies or not.
	Why   string `json:"why"`
	Group string `json:"group,omitempty"`
	Mode  string `json:"mode,omitempty"`
	// Tier is the tier of the request, if the policy has it. Schedule is the entry in force.
	Tier     string           `json:"tier,omitempty"`
	Schedule string           `json:"schedule,omitempty"`
	Limits   []ExplainedLimit `json:"limits,omitempty"`
}

// ExplainedLimit is a limit as it would be decided.
type ExplainedLimit struct {
	Name      string `json:"name"`
	Key       string `json:"key,omitempty"`
	Limit     Amount `json:"limit,omitempty"`
	Window    string `json:"window,omitempty"`
	Algorithm string `json:"algorithm,omitempty"`
	Burst     int64  `json:"burst,omitempty"`
	// Timezone is the time zone of a calendar period: UTC if left out. Anchor is "aligned" and Consistency "exact" if left
	// out.
	Timezone    string `json:"timezone,omitempty"`
	Anchor      string `json:"anchor,omitempty"`
	Consistency string `json:"consistency,omitempty"`
	// Override is the subject of the override that was used. LeftOut is that of an override that was not used, because the
	// limit would not be valid with it. Reason is the reason of either.
	Override string `json:"override,omitempty"`
	LeftOut  string `json:"leftOut,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Error says why the key cannot be made, because of which the request is answered with an error, or a policy in shadow
	// left out. All other fields are left out then.
	Error string `json:"error,omitempty"`
}

// Explain describes what [Set.Resolve] does with a request, and why. Nothing is charged.
func (s *Set) Explain(q Question) Explanation {
	e := Explanation{Policies: []Explained{}}
	err := q.check()
	var resolved Resolved
	if err == nil {
		resolved, err = s.Resolve(q)
	}
	switch {
	case errors.Is(err, ErrUnknownPolicy):
		e.Error = s.unknown(q.Policy).Error()
	case err != nil:
		e.Error = err.Error()
	}
	r := s.resolver(&q)
	for _, p := range s.policies {
		if q.Policy == "" || q.Policy == p.name {
			x := r.explain(p)
			if why := resolved.leftOut[p.name]; why != nil {
				x.Applies, x.Why = false, fmt.Sprintf("it is in shadow and left out: %s", why)
			}
			e.Policies = append(e.Policies, x)
		}
	}
	return e
}

func (r *resolver) explain(p *policy) Explained {
	x := Explained{Policy: p.name, Group: p.spec.Group, Mode: p.spec.Mode}
	v := r.judge(p)
	x.Applies, x.Why = v == applies, r.why(p, v)
	if !x.Applies {
		return x
	}
	if p.tiers[r.Tier] != nil {
		x.Tier = r.Tier
	}
	limits, slot := p.limits(r.Question)
	if slot != nil {
		x.Schedule = slot.text
	}
	for i := range limits {
		x.Limits = append(x.Limits, r.explainLimit(p, &limits[i]))
	}
	return x
}

func (r *resolver) why(p *policy, v verdict) string {
	switch v {
	case noMatch:
		return p.match.mismatch(r.Attributes).whyNot(r.Attributes)
	case namedOnly:
		return "it has no match, so it applies only to requests that name it"
	case groupTaken:
		return fmt.Sprintf("an earlier policy of group %s took the request", p.spec.Group)
	case exempted:
		return "the request is exempt"
	case missingAttribute:
		limits, _ := p.limits(r.Question)
		l := r.firstWithoutKey(limits)
		return fmt.Sprintf("attribute %s is missing or empty; the key of limit %s needs it", l.key.missing(r.Attributes), l.name)
	}
	if r.Policy != "" {
		return "the request names it"
	}
	return "it matches"
}

func (r *resolver) explainLimit(p *policy, l *limit) ExplainedLimit {
	out, limited, by, err := r.resolveLimit(p, l)
	if err != nil {
		return ExplainedLimit{Name: l.name, Error: err.Error()}
	}
	x := ExplainedLimit{Name: l.name, Limit: Unlimited}
	if by.Override != nil {
		x.Reason = by.Reason
		if by.used {
			x.Override = by.Subject
		} else {
			x.LeftOut = by.Subject
		}
	}
	x.Key = out.Key
	if !limited {
		return x
	}
	x.Limit, x.Window, x.Algorithm, x.Burst = Amount(out.Limit), out.Window.String(), out.Algorithm.String(), out.Burst
	if out.Zone != nil {
		x.Timezone = out.Zone.String()
	}
	if out.FirstUse {
		x.Anchor = "first_use"
	}
	if out.Leased {
		x.Consistency = "leased"
	}
	return x
}
