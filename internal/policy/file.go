package policy

import (
	"strconv"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed503877ad/limits/internal/yamlfile"
)

// File is a policy file.
type File struct {
	// Attributes declares the names of the attributes that requests may have. If it is given, any other name in a match, an
	// exempt or a key is a mistake.
	Attributes []string `json:"attributes,omitempty"`
	// Policies is the list of policies. In each group the first one that matches applies.
	Policies []Policy `json:"policies"`
}

// Policy is a named set of limits.
type Policy struct {
	// Name identifies the policy in requests and answers: 1 to 64 letters, digits and . _ - /.
	Name string `json:"name"`
	// Match selects the requests that the policy applies to if they name no policy: every attribute has to exist and fit
	// one of its patterns. Without a match the policy applies only to requests that name it.
	Match Condition `json:"match,omitempty"`
	// Group names a group of policies, of which only the first one that matches applies. One in shadow
	// takes no request from those that are enforced.
	Group string `json:"group,omitempty"`
	// Exempt lists conditions. A request that fits one of them has no limits of this policy, and none of later policies of
	// its group.
	Exempt Conditions `json:"exempt,omitempty"`
	// Mode is "enforce" (the default) or "shadow", which decides, counts and raises events, but never denies.
	Mode string `json:"mode,omitempty"`
	// OnError is what to answer if the store fails: "allow", "deny" or "local". The default is the setting of the service.
	OnError string `json:"on_error,omitempty"`
	// Warning is the fraction of a limit, 0 to 1, at or below which the remaining amount raises a warning. The default is the
	// setting of the service.
	Warning *float64 `json:"warning,omitempty"`
	// Message is the text of a denial, with the placeholders {used}, {limit}, {remaining}, {cost}, {window}, {retry}, {name},
	// {key}, {policy} and {unit}.
	Message string `json:"message,omitempty"`
	// Unit is what is counted, such as "requests" or "cents", for people.
	Unit string `json:"unit,omitempty"`
	// Limits are the limits, 1 to 16, that are decided together.
	Limits []LimitSpec `json:"limits"`
	// Tiers override fields of limits, by the names of the tier and the limit. Requests with any other tier have the limits
	// as they are.
	Tiers map[string]Changes `json:"tiers,omitempty"`
	// Schedule changes the limits by the time of day. At most one entry may be in force at a time.
	Schedule []Slot `json:"schedule,omitempty"`
}

// Condition maps attributes to the patterns that their values may fit: one text or a list of texts, in which * stands for any
// number of characters.
type Condition map[string]Patterns

// Conditions is one condition or a list of them.
type Conditions []Condition

// Patterns is one pattern or a list of them.
type Patterns []string

// LimitSpec is a limit of a policy.
type LimitSpec struct {
	// Name tells the limits of the policy apart. The default is the window as written.
	Name string `json:"name,omitempty"`
	LimitFields
}

// LimitFields are the fields of a limit that tiers and schedules may override.
type LimitFields struct {
	// Key is the template of the key: text with attributes in braces, such as "user:{user}" or "mail:{email|lower|hash}".
	// The filters are lower, ip (the canonical address, IPv6 by /64; an attribute named ip always has it) and hash
	// (HMAC-SHA-256 with the hash key).
	Key string `json:"key,omitempty"`
	// Limit is how much cost one window admits, 1 to 1000000000, or "unlimited".
	Limit Amount `json:"limit,omitempty"`
	// Window is a duration from 100ms to 366d (units ms, s, m, h, d, w), or a calendar period: minute, hour, day, week, month.
	Window string `json:"window,omitempty"`
	// Algorithm is sliding_window, fixed_window or token_bucket. The default is sliding_window, or fixed_window for a calendar
	// period.
	Algorithm string `json:"algorithm,omitempty"`
	// Burst is what a token bucket may hold on top of the limit.
	Burst *int64 `json:"burst,omitempty"`
	// Anchor says where a fixed window starts: "aligned" (the default), at a multiple of the window, or "first_use", at its
	// first charge.
	Anchor string `json:"anchor,omitempty"`
	// Timezone is the IANA time zone of a calendar period: UTC by default.
	Timezone string `json:"timezone,omitempty"`
	// Consistency is "exact" (the default) or "leased", which lets a worker charge a little ahead and answer from memory.
	Consistency string `json:"consistency,omitempty"`
}

// Amount is the amount of a limit: 0 if it is not given, or Unlimited.
type Amount int64

// Unlimited is the amount of a limit that is lifted.
const Unlimited Amount = -1

// Changes are fields to override, by the name of the limit.
type Changes map[string]LimitFields

// Changed returns the limits that changes are for, with the changes applied.
func (p *Policy) Changed(changes Changes) (limits []LimitSpec) {
	for _, l := range p.Limits {
		if f, ok := changes[l.Name]; ok {
			merge(&l.LimitFields, &f)
			limits = append(limits, l)
		}
	}
	return limits
}

// Slot is a time of day at which the limits differ.
type Slot struct {
	// From and To are local times of day, "HH:MM". To may be 24:00. If To is before From, the slot ends on the next day.
	From string `json:"from"`
	To   string `json:"to"`
	// Days are the days on which the slot begins: mon, tue, wed, thu, fri, sat, sun. The default is all days.
	Days []string `json:"days,omitempty"`
	// Timezone is an IANA time zone, the same for all entries of a schedule: UTC by default.
	Timezone string `json:"timezone,omitempty"`
	// Factor multiplies the limit and burst of every limit. The products are rounded down, the limit to at least 1.
	Factor float64 `json:"factor,omitempty"`
	// Limits override fields of limits, before the factor is applied.
	Limits Changes `json:"limits,omitempty"`
}

// MarshalJSON writes a number, or "unlimited".
func (a Amount) MarshalJSON() ([]byte, error) {
	if a == Unlimited {
		return []byte(`"unlimited"`), nil
	}
	return strconv.AppendInt(nil, int64(a), 10), nil
}

// String writes a number, or unlimited.
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
	if s, ok := n.(*ast.StringNode); ok && s.Value == "unlimited" {
		return Unlimited
	}
	v := p.Integer(n, path, "a whole number, 1 to 1000000000, or unlimited")
	if v < 1 || v > maxAmount {
		p.Add(path, "%d is out of range; want 1 to 1000000000, or unlimited", v)
		return 0
	}
	return Amount(v)
}

// ReadYAML reads one condition, or a list of them.
func (c *Conditions) ReadYAML(p *yamlfile.Problems, n ast.Node, path string) { p.OneOrMany(n, c, path) }

// ReadYAML reads one pattern, or a list of them.
func (l *Patterns) ReadYAML(p *yamlfile.Problems, n ast.Node, path string) { p.OneOrMany(n, l, path) }
