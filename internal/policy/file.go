package policy

import (
	"strconv"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed503877ad/limits/internal/yamlfile"
)

// File is a policy file.
type File struct {
	// Attributes names the attributes that requests may have. With it, any other name in a match, an exempt or a key
	// is a mistake.
	Attributes []string `json:"attributes,omitempty"`
	// Policies in order: of a group, the first that matches applies.
	Policies []Policy `json:"policies"`
}

// Policy is a named set of limits.
type Policy struct {
	// Name is how requests and answers call it: 1 to 64 letters, digits and . _ - /.
	Name string `json:"name"`
	// Match lets the policy apply to requests that name no policy: every attribute has to be there and fit one of its
	// patterns. A policy without it applies only when it is named.
	Match Condition `json:"match,omitempty"`
	// Group lets only the first policy of that group apply that matches.
	Group string `json:"group,omitempty"`
	// Exempt lists conditions; a request that fits one has no limits of this policy. It counts as the group's match.
	Exempt Conditions `json:"exempt,omitempty"`
	// Mode "shadow" decides, counts and raises events, but never refuses. "enforce" unless said.
	Mode string `json:"mode,omitempty"`
	// OnError is what to answer when the store fails: "allow", "deny" or "local". That of the service unless said.
	OnError string `json:"on_error,omitempty"`
	// Warning is the part of a limit, 0 to 1, at or below which what remains raises a warning. That of the service
	// unless said.
	Warning *float64 `json:"warning,omitempty"`
	// Message words a denial, with {used}, {limit}, {remaining}, {cost}, {window}, {retry}, {name}, {key}, {policy} and
	// {unit}.
	Message string `json:"message,omitempty"`
	// Unit is what is counted, such as "requests" or "cents"; it is there for people.
	Unit string `json:"unit,omitempty"`
	// Limits are decided together: 1 to 16.
	Limits []LimitSpec `json:"limits"`
	// Tiers override fields of limits, by name of tier and limit. A request of another tier has the limits as they are.
	Tiers map[string]Changes `json:"tiers,omitempty"`
	// Schedule changes the limits by time of day. At most one entry may be in force at a time.
	Schedule []Slot `json:"schedule,omitempty"`
}

// Condition is attributes and the patterns that their values may fit: one or a list of texts, in which * stands for
// any number of characters.
type Condition map[string]Patterns

// Conditions is one condition or a list of them.
type Conditions []Condition

// Patterns is one pattern or a list of them.
type Patterns []string

// LimitSpec is a limit of a policy.
type LimitSpec struct {
	// Name tells the limits of the policy apart; the window as written unless said.
	Name string `json:"name,omitempty"`
	LimitFields
}

// LimitFields are the fields of a limit that tiers and schedules may override.
type LimitFields struct {
	// Key is the template of the key: text with attributes in braces, such as "user:{user}" or "mail:{email|lower|hash}".
	// The filters are lower, ip (the canonical address, IPv6 by /64; an attribute named ip always has it) and hash
	// (HMAC-SHA-256 with the hash key).
	Key string `json:"key,omitempty"`
	// Limit is the cost that one window admits, 1 to 1000000000, or "unlimited".
	Limit Amount `json:"limit,omitempty"`
	// Window is a duration from 100ms to 366d (units ms, s, m, h, d, w) or minute, hour, day, week, month.
	Window string `json:"window,omitempty"`
	// Algorithm is sliding_window unless said, and fixed_window for a calendar period.
	Algorithm string `json:"algorithm,omitempty"`
	// Burst is what a token bucket may hold on top of the limit.
	Burst *int64 `json:"burst,omitempty"`
	// Anchor "first_use" lets a fixed window start at its first charge; "aligned" unless said.
	Anchor string `json:"anchor,omitempty"`
	// Timezone is the IANA zone of a calendar period; UTC unless said.
	Timezone string `json:"timezone,omitempty"`
	// Consistency "leased" lets a worker charge a little ahead and answer from memory; "exact" unless said.
	Consistency string `json:"consistency,omitempty"`
}

// Amount is a limit: 0 when it is not given, Unlimited for none.
type Amount int64

// Unlimited is the amount of a limit that is lifted.
const Unlimited Amount = -1

// Changes are fields to override, by name of limit.
type Changes map[string]LimitFields

// Changed gives the limits of the policy that changes are for, as they are with them.
func (p *Policy) Changed(changes Changes) (limits []LimitSpec) {
	for _, l := range p.Limits {
		if f, ok := changes[l.Name]; ok {
			merge(&l.LimitFields, &f)
			limits = append(limits, l)
		}
	}
	return limits
}

// Slot is a time of day at which the limits are others.
type Slot struct {
	// From and To are local times of day, "HH:MM"; To may be 24:00. A slot that ends before it begins ends the next day.
	From string `json:"from"`
	To   string `json:"to"`
	// Days are those on which the slot begins: mon, tue, wed, thu, fri, sat, sun. All unless said.
	Days []string `json:"days,omitempty"`
	// Timezone is an IANA zone, the same for all entries of a schedule; UTC unless said.
	Timezone string `json:"timezone,omitempty"`
	// Factor multiplies limit and burst of every limit, rounded down, to 1 at least.
	Factor float64 `json:"factor,omitempty"`
	// Limits override fields of limits; they go before the factor.
	Limits Changes `json:"limits,omitempty"`
}

// MarshalJSON writes a number, or "unlimited".
func (a Amount) MarshalJSON() ([]byte, error) {
	if a == Unlimited {
		return []byte(`"unlimited"`), nil
	}
	return strconv.AppendInt(nil, int64(a), 10), nil
}

// String writes the same for people.
func (a Amount) String() string {
	if a == Unlimited {
		return "unlimited"
	}
	return strconv.FormatInt(int64(a), 10)
}

// ReadYAML reads a number, or "unlimited".
func (a *Amount) ReadYAML(p *yamlfile.Problems, n ast.Node, path string) {
	*a = amount(p, n, path)
}

func amount(p *yamlfile.Problems, n ast.Node, path string) Amount {
	if s, ok := n.(*ast.StringNode); ok {
		if s.Value == "unlimited" {
			return Unlimited
		}
		p.Add(path, "%s is no limit; want a whole number, 1 to 1000000000, or unlimited", yamlfile.Quote(s.Value))
		return 0
	}
	v := p.Integer(n, path, "a whole number, 1 to 1000000000, or unlimited")
	if v < 1 || v > maxAmount {
		p.Add(path, "%d is out of range; want 1 to 1000000000, or unlimited", v)
		return 0
	}
	return Amount(v)
}

// ReadYAML reads one condition, or a list.
func (c *Conditions) ReadYAML(p *yamlfile.Problems, n ast.Node, path string) { p.OneOrMany(n, c, path) }

// ReadYAML reads one pattern, or a list.
func (l *Patterns) ReadYAML(p *yamlfile.Problems, n ast.Node, path string) { p.OneOrMany(n, l, path) }
