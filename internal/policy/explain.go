package policy

import (
	"errors"
	"fmt"
)

// Explanation tells what becomes of a request, policy by policy. Nothing is charged.
type Explanation struct {
	Policies []Explained `json:"policies"`
	// Error says why the request would be refused as wrong.
	Error string `json:"error,omitempty"`
}

// Explained is what becomes of one policy.
type Explained struct {
	Policy  string `json:"policy"`
	Applies bool   `json:"applies"`
	// Why says in words why it applies or not.
	Why   string `json:"why"`
	Group string `json:"group,omitempty"`
	Mode  string `json:"mode,omitempty"`
	// Tier is the request's, where the policy has it; Schedule is the entry in force.
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
	// Timezone is that of a calendar period, UTC unless said; Anchor is "aligned" and Consistency "exact" unless said.
	Timezone    string `json:"timezone,omitempty"`
	Anchor      string `json:"anchor,omitempty"`
	Consistency string `json:"consistency,omitempty"`
	// Override is the subject of the override that was used, LeftOut of one that does not fit the limit and was not; Reason
	// is its.
	Override string `json:"override,omitempty"`
	LeftOut  string `json:"leftOut,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Error says why the key cannot be made, for which the request is refused; nothing else is known then.
	Error string `json:"error,omitempty"`
}

// Explain tells what [Set.Resolve] does with the question, and why.
func (s *Set) Explain(q Question) Explanation {
	e := Explanation{Policies: []Explained{}}
	switch _, err := s.Resolve(q); {
	case errors.Is(err, ErrUnknownPolicy):
		e.Error = s.unknown(q.Policy).Error()
	case err != nil:
		e.Error = err.Error()
	}
	a := asking{Question: &q, set: s, won: make([]bool, s.groups)}
	for _, p := range s.policies {
		if q.Policy == "" || q.Policy == p.name {
			e.Policies = append(e.Policies, a.explain(p))
		}
	}
	return e
}

func (a *asking) explain(p *policy) Explained {
	x := Explained{Policy: p.name, Group: p.spec.Group, Mode: p.spec.Mode}
	v := a.judge(p)
	x.Applies, x.Why = v == applies, a.why(p, v)
	if !x.Applies {
		return x
	}
	if p.tiers[a.Tier] != nil {
		x.Tier = a.Tier
	}
	limits, slot := p.limits(a.Question)
	if slot != nil {
		x.Schedule = slot.text
	}
	for i := range limits {
		x.Limits = append(x.Limits, a.explainLimit(p, &limits[i]))
	}
	return x
}

func (a *asking) why(p *policy, v verdict) string {
	switch v {
	case fails:
		return p.match.fails(a.Attributes).why(a.Attributes)
	case byNameOnly:
		return "it has no match, so it applies only when it is named"
	case lostGroup:
		return fmt.Sprintf("an earlier policy of group %s applies", p.spec.Group)
	case exempted:
		return "the request is exempt"
	case lacks:
		limits, _ := p.limits(a.Question)
		l := a.lacks(limits)
		return fmt.Sprintf("the request has no attribute %s, of which the key of limit %s is made", l.key.missing(a.Attributes), l.name)
	}
	if a.Policy != "" {
		return "it is named"
	}
	return "it matches"
}

func (a *asking) explainLimit(p *policy, l *limit) ExplainedLimit {
	out, ok, by, err := a.resolve(p, l)
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
	if !ok {
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
