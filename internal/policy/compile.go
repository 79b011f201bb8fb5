package policy

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/glob"
	"github.com/seed503877ad/limits/internal/yamlfile"
	"github.com/seed503877ad/limits/internal/zone"
)

// Bounds of a policy file.
const (
	maxAmount    = engine.MaxAmount
	maxPolicies  = 1000
	maxLimits    = 16
	maxTiers     = 64
	maxSlots     = 32
	maxPatterns  = 100
	maxUnitBytes = 32
	// maxCompiled bounds limits × tiers × schedule entries, summed over all policies.
	maxCompiled = 100_000
)

// policy is a compiled policy.
type policy struct {
	name   string
	spec   *Policy
	match  matcher
	exempt []matcher
	// group is the number of its group; -1 for none.
	group     int
	shadow    bool
	onError   engine.OnError
	threshold Threshold
	message   string

	base  *variant            // for requests without a tier, and for tiers that it does not have
	tiers map[string]*variant // by name of the tier
	slots []slot
	zone  *time.Location // of the slots
}

// variant is the limits of a policy for one tier.
type variant struct {
	// usual are the limits while no entry of the schedule is in force, and bySlot those in each entry.
	usual  []limit
	bySlot [][]limit
}

// limit is a compiled limit. Its engine.Limit lacks the key, which each request renders.
type limit struct {
	engine.Limit
	name string
	key  *template
	// unlimited says that the limit is lifted. The other fields are for overrides, which may impose one.
	unlimited bool
}

type compiler struct {
	*yamlfile.Problems
	options  Options
	declared []string
	// isDeclared has the names in declared; nil if there are none.
	isDeclared map[string]bool
	groups     []string
	compiled   int
	warning    Threshold
	// templates are the parsed templates by their text. The tiers and slots of a policy mostly have the same ones.
	templates map[string]*template
}

// template parses a template, or returns the one that was parsed before.
func (c *compiler) template(text string) (t *template, err error) {
	if t = c.templates[text]; t != nil {
		return t, nil
	}
	if t, err = parseTemplate(text); err == nil {
		if c.templates == nil {
			c.templates = map[string]*template{}
		}
		c.templates[text] = t
	}
	return t, err
}

func (c *compiler) compile(f *File) (*Set, error) {
	var err error
	if c.warning, err = NewThreshold(c.options.Warning); err != nil {
		return nil, err
	}
	c.declareAttributes(f)
	s := &Set{byName: map[string]*policy{}, options: c.options, version: versions.Add(1)}
	if len(f.Policies) == 0 && !c.Any() {
		c.Add("policies", "is missing; want a list of policies, each with name and limits")
	}
	if len(f.Policies) > maxPolicies {
		c.Add(yamlfile.Index("policies", maxPolicies), "more than %d policies; combine similar ones into one with an attribute in its key", maxPolicies)
		return s, nil
	}
	for i := range f.Policies {
		spec, path := &f.Policies[i], yamlfile.Index("policies", i)
		p := c.compilePolicy(spec, path)
		if other := s.byName[p.name]; other != nil {
			c.Add(path+".name", "%s is already the name of policies[%d]; choose another name", yamlfile.Quote(p.name), slices.Index(s.policies, other))
		}
		s.policies, s.byName[p.name] = append(s.policies, p), p
	}
	c.checkReachable(s.policies)
	s.groups, s.index = len(c.groups), newIndex(s.policies)
	return s, nil
}

func (c *compiler) declareAttributes(f *File) {
	if c.declared = f.Attributes; len(c.declared) > 0 {
		c.isDeclared = make(map[string]bool, len(c.declared))
	}
	for i, name := range f.Attributes {
		path := yamlfile.Index("attributes", i)
		if err := checkAttribute(name); err != nil {
			c.Add(path, "%s", err)
		}
		if c.isDeclared[name] {
			c.Add(path, "%s is given twice; remove one", yamlfile.Quote(name))
		}
		c.isDeclared[name] = true
	}
}

var (
	namePattern      = regexp.MustCompile(`^[A-Za-z0-9._/-]{1,64}$`)
	attributePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,63}$`)
)

func checkAttribute(name string) error {
	if !attributePattern.MatchString(name) {
		return fmt.Errorf("%s is not a valid attribute name; want a letter or _, then letters, digits and _ . -, at most 64 characters", yamlfile.Quote(name))
	}
	return nil
}

// checkDeclared validates the name of an attribute that is used, and that it is declared, if the file declares any.
func (c *compiler) checkDeclared(name, path string) {
	if err := checkAttribute(name); err != nil {
		c.Add(path, "%s", err)
		return
	}
	if c.isDeclared != nil && !c.isDeclared[name] {
		c.Add(path, "unknown attribute %s%s; add it to attributes, or use one of %s", yamlfile.Quote(name),
			yamlfile.DidYouMean(name, c.declared), yamlfile.FirstNames(c.declared, func(name string) string { return name }))
	}
}

// checkName validates the name of a policy, limit, tier or group.
func (c *compiler) checkName(name, path string) {
	switch {
	case name == "":
		c.Add(path, "is missing; want 1 to 64 letters, digits and . _ - /")
	case !namePattern.MatchString(name):
		c.Add(path, "%s is not a valid name; want 1 to 64 letters, digits and . _ - /", yamlfile.Quote(name))
	}
}

func (c *compiler) compilePolicy(spec *Policy, path string) *policy {
	c.checkName(spec.Name, path+".name")
	p := &policy{name: spec.Name, spec: spec, group: -1, onError: c.options.OnError, threshold: c.warning, tiers: map[string]*variant{}}
	p.match = c.compileCondition(spec.Match, path+".match")
	for i, e := range spec.Exempt {
		at := c.Item(path+".exempt", i)
		p.exempt = append(p.exempt, c.compileCondition(e, at))
		c.checkExemption(p, p.exempt[i], at)
	}
	c.compileSettings(p, path)
	c.compileLimits(p, path)
	return p
}

func (c *compiler) compileCondition(cond Condition, path string) matcher {
	for _, attribute := range slices.Sorted(maps.Keys(cond)) { // sorted, so that the same file always gives the same mistakes
		patterns, at := cond[attribute], yamlfile.Join(path, attribute)
		c.checkDeclared(attribute, at)
		if len(patterns) > maxPatterns {
			c.Add(at, "has %d patterns; want at most %d", len(patterns), maxPatterns)
			return nil
		}
		for i, pattern := range patterns {
			if j := slices.Index(patterns, pattern); j < i {
				c.Add(yamlfile.Index(at, i), "%s is given twice; remove one", yamlfile.Quote(pattern))
			}
		}
	}
	return newMatcher(cond)
}

// checkExemption reports an exemption that fits every request that matches, or none.
func (c *compiler) checkExemption(p *policy, e matcher, path string) {
	if len(e) == 0 || c.Has(path) {
		return
	}
	if p.match.implies(e, nil) {
		c.Add(path, "matches every request that match does, so the policy never applies; narrow it")
	}
	for _, m := range p.match {
		i := slices.IndexFunc(e, func(am attributeMatcher) bool { return am.attribute == m.attribute })
		if i >= 0 && m.onlyPatterns() && e[i].onlyPatterns() && !slices.ContainsFunc(m.patterns, func(v string) bool { return mayOverlap(e[i].patterns, v) }) {
			c.Add(path, "can never match, because match requires %s to be one of %s; change one of them", m.attribute, strings.Join(m.patterns, ", "))
		}
	}
}

// mayOverlap reports whether a value could match pattern and one of the others.
func mayOverlap(others []string, pattern string) bool {
	return slices.ContainsFunc(others, func(o string) bool {
		return glob.Is(pattern) && glob.Is(o) || glob.Match(o, pattern) || glob.Match(pattern, o)
	})
}

// compileSettings compiles the fields of a policy other than its conditions and limits.
func (c *compiler) compileSettings(p *policy, path string) {
	spec := p.spec
	if c.OneOf(spec.Mode, path+".mode", "enforce", "shadow"); spec.Mode == "shadow" {
		p.shadow = true
	}
	if c.OneOf(spec.OnError, path+".on_error", "allow", "deny", "local") && spec.OnError != "" {
		p.onError, _ = engine.ParseOnError(spec.OnError)
	}
	if spec.Group != "" {
		c.checkName(spec.Group, path+".group")
		if p.match == nil && !c.Has(path+".match") {
			c.Add(path+".group", "needs a match: only the first matching policy of a group applies")
		}
		if p.group = slices.Index(c.groups, spec.Group); p.group < 0 {
			p.group, c.groups = len(c.groups), append(c.groups, spec.Group)
		}
	}
	if w := spec.Warning; w != nil {
		if t, err := NewThreshold(*w); err != nil {
			c.Add(path+".warning", "%v is out of range; want 0 to 1", *w)
		} else {
			p.threshold = t
		}
	}
	if len(spec.Unit) > maxUnitBytes {
		c.Add(path+".unit", "has %d bytes; want at most %d", len(spec.Unit), maxUnitBytes)
	}
	p.message = c.message(spec, path+".message")
}

// buildLimit builds a limit from merged fields. The error is about field, or is an *[engine.FieldError], which names its field
// itself.
func (c *compiler) buildLimit(p *policy, name string, f *LimitFields) (l limit, field string, err error) {
	l = limit{name: name, unlimited: f.Limit == Unlimited}
	if f.Key == "" {
		return l, "key", errors.New(`is missing; want a template such as key: "user:{user}"`)
	}
	if l.key, err = c.template(f.Key); err != nil {
		return l, "key", err
	}
	if l.key.needsHash() && len(c.options.HashKey) == 0 {
		return l, "key", fmt.Errorf("%s needs a hash key; start with --hash-key or HASH_KEY, the same on all workers", yamlfile.Quote(f.Key))
	}
	if f.Limit == 0 {
		return l, "limit", errors.New(`is missing; want the cost allowed per window, such as limit: 100, or unlimited`)
	}
	e := &l.Limit
	e.Name, e.Policy, e.Shadow, e.Message = engine.PolicyName(p.name, name), p.name, p.shadow, p.message
	e.FirstUse, e.Leased = f.Anchor == "first_use", f.Consistency == "leased" && !p.shadow
	e.Limit = max(0, int64(f.Limit))
	e.Threshold = p.threshold.Of(e.Limit)
	if f.Burst != nil {
		e.Burst = *f.Burst
	}
	if f.Window == "" && l.unlimited {
		return l, "", c.finishWithoutWindow(&l, f)
	}
	if e.Window, err = engine.ParseWindow(f.Window); err != nil {
		if f.Window == "" {
			err = errors.New("is missing; want a duration such as 1m, or minute, hour, day, week, month")
		}
		return l, "window", err
	}
	err = c.finishLimit(&l, f)
	return l, "", err
}

// finishWithoutWindow is finishLimit for an unlimited limit, whose window an override may bring.
func (c *compiler) finishWithoutWindow(l *limit, f *LimitFields) error {
	likely := "1h"
	if f.Timezone != "" {
		likely = "day" // no other window goes with it
	}
	l.Window, _ = engine.ParseWindow(likely)
	err := c.finishLimit(l, f)
	l.Window = engine.Window{}
	return err
}

// finishLimit sets the fields that depend on the window, and validates the limit by the rules of the engine.
func (c *compiler) finishLimit(l *limit, f *LimitFields) (err error) {
	e := &l.Limit
	switch {
	case f.Algorithm != "":
		if e.Algorithm, err = engine.ParseAlgorithm(f.Algorithm); err != nil {
			return &engine.FieldError{Field: "algorithm", Message: err.Error()}
		}
	case e.Window.Period != 0:
		e.Algorithm = engine.FixedWindow
	}
	if f.Timezone != "" {
		var ok bool
		if e.Zone, ok = zone.Load(f.Timezone); !ok {
			return &engine.FieldError{Field: "timezone", Message: "unknown time zone " + yamlfile.Quote(f.Timezone) + "; want an IANA name such as Europe/Berlin or UTC"}
		}
		if e.Zone == time.UTC {
			e.Zone = nil
		}
	}
	checked := *e
	if l.unlimited {
		checked.Limit = 1 // any valid amount, to validate the other fields
	}
	return checked.Validate()
}
