package policy

import (
	"errors"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// change is the fields of a limit, and their path in the file.
type change struct {
	fields *LimitFields
	path   string
}

// compileLimits compiles the limits of a policy for all tiers and schedule entries.
func (c *compiler) compileLimits(p *policy, path string) {
	spec, at := p.spec, path+".limits"
	switch n := len(spec.Limits); {
	case n == 0:
		c.Add(at, "is missing; want a list of limits, each with key, limit and window")
	case n > maxLimits:
		c.Add(yamlfile.Index(at, maxLimits), "more than %d limits; a request can have no more", maxLimits)
		return
	}
	if len(spec.Tiers) > maxTiers {
		c.Add(path+".tiers", "has %d tiers; want at most %d", len(spec.Tiers), maxTiers)
		return
	}
	if len(spec.Schedule) > maxSlots {
		c.Add(path+".schedule", "has %d entries; want at most %d", len(spec.Schedule), maxSlots)
		return
	}
	c.nameLimits(spec, at)
	c.schedule(p, path)
	p.base = c.compileVariant(p, nil, path)
	for _, name := range slices.Sorted(maps.Keys(spec.Tiers)) { // sorted, so that the same file always gives the same mistakes
		changes, tier := spec.Tiers[name], yamlfile.Join(path+".tiers", name)
		c.checkName(name, tier)
		c.checkChanges(spec, changes, tier)
		p.tiers[name] = c.compileVariant(p, []changeSet{{changes: changes, path: tier}}, path)
	}
	for i := range spec.Schedule {
		c.checkChanges(spec, spec.Schedule[i].Limits, yamlfile.Index(path+".schedule", i)+".limits")
	}
	if !c.Has(path) && !p.mayLimit() {
		c.Add(at, "every limit is unlimited in every tier and at all times, and none has a window that an override could use; "+
			"give one a limit or a window, or remove the policy")
	}
}

// nameLimits fills in default names, and reports names that are not unique: name and key identify the counter.
func (c *compiler) nameLimits(spec *Policy, path string) {
	for i := range spec.Limits {
		l, at := &spec.Limits[i], yamlfile.Index(path, i)
		switch {
		case l.Name != "":
			c.checkName(l.Name, at+".name")
		case c.Given(at + ".name"): // it is empty, which was reported
		case l.Window != "": // the window is validated later, and every valid window is a valid name
			l.Name = l.Window
		case l.Limit == Unlimited && !c.Has(at):
			c.Add(at+".name", "is missing; a limit without a window needs one")
		}
		for j := range i {
			if l.Name != "" && spec.Limits[j].Name == l.Name {
				c.Add(at+".name", "%s is already the name of limits[%d], and both would charge the same counter; choose another name", yamlfile.Quote(l.Name), j)
			}
		}
	}
}

// checkChanges reports changes of a tier or schedule entry that are empty, or for a limit that does not exist.
func (c *compiler) checkChanges(spec *Policy, changes Changes, path string) {
	var names []string
	for i := range spec.Limits {
		if name := spec.Limits[i].Name; name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for name, f := range changes {
		switch at := yamlfile.Join(path, name); {
		case len(names) == 0: // which was reported
		case !slices.Contains(names, name):
			c.Add(at, "unknown limit %s%s; want one of %s", yamlfile.Quote(name), yamlfile.DidYouMean(name, names), strings.Join(names, ", "))
		case f == LimitFields{} && !c.Has(at):
			c.Add(at, "changes nothing; give it a field such as limit, or remove it")
		}
	}
}

// changeSet is the changes of a tier or of a schedule entry, and their path in the file.
type changeSet struct {
	changes Changes
	path    string
	// factor is that of a schedule entry, 0 for none, and factorPath its path.
	factor     float64
	factorPath string
}

// compileVariant compiles the limits for one tier, with and without each schedule entry. tier is empty for none.
func (c *compiler) compileVariant(p *policy, tier []changeSet, path string) *variant {
	v := &variant{usual: c.limitsWith(p, tier, path)}
	for i := range p.spec.Schedule {
		s, at := &p.spec.Schedule[i], yamlfile.Index(path+".schedule", i)
		entry := changeSet{changes: s.Limits, path: at + ".limits", factor: s.Factor, factorPath: at + ".factor"}
		v.bySlot = append(v.bySlot, c.limitsWith(p, append(slices.Clip(tier), entry), path))
	}
	return v
}

// limitsWith compiles the limits of a policy with some changes, of which later ones take precedence. Factors multiply the
// result.
func (c *compiler) limitsWith(p *policy, sets []changeSet, path string) (limits []limit) {
	for i := range p.spec.Limits {
		l := &p.spec.Limits[i]
		changes := []change{{&l.LimitFields, yamlfile.Index(path+".limits", i)}}
		for _, set := range sets {
			if f, ok := set.changes[l.Name]; ok {
				changes = append(changes, change{&f, yamlfile.Join(set.path, l.Name)})
			}
		}
		if c.compiled++; c.compiled > maxCompiled {
			c.Add(path, "limits, tiers and schedules of the file make more than %d combinations; use fewer", maxCompiled)
			return nil
		}
		merged := c.mergeLimit(p, l.Name, changes)
		for _, set := range sets {
			if set.factor > 0 {
				c.applyFactor(p, &merged, set.factor, set.factorPath)
			}
		}
		limits = append(limits, merged)
	}
	return limits
}

// mergeLimit merges the fields of a limit with its changes, and builds the limit. The limit is unlimited if there are
// mistakes.
func (c *compiler) mergeLimit(p *policy, name string, changes []change) limit {
	fields, wrong := *changes[0].fields, false
	for _, ch := range changes {
		wrong = wrong || c.Has(ch.path)
		c.checkEnums(ch)
		merge(&fields, ch.fields)
	}
	if wrong { // further mistakes would mostly follow from the reported ones
		return limit{name: name, unlimited: true}
	}
	l, field, err := c.buildLimit(p, name, &fields)
	var fe *engine.FieldError
	if errors.As(err, &fe) {
		field, err = fe.Field, errors.New(fe.Message)
	}
	if err != nil {
		c.reportMistake(changes, field, err)
		return limit{name: name, unlimited: true}
	}
	for _, part := range l.key.parts {
		c.checkDeclared(part.attribute, c.fieldPath(changes, "key"))
	}
	return l
}

// neutralValues are the values that undo a field. They are suggested if a field is valid in the limit itself, but not together
// with a change.
var neutralValues = map[string]string{"algorithm": "fixed_window", "burst": "0", "timezone": "UTC", "anchor": "aligned"}

// reportMistake reports a mistake at the last change: at the field, if the change has it or it is missing, or otherwise at the
// change as a whole. Without the last change the limit is valid, or its mistake has been reported already.
func (c *compiler) reportMistake(changes []change, field string, err error) {
	before, last := changes[:len(changes)-1], changes[len(changes)-1]
	path, message := last.path+"."+field, err.Error()
	if !c.Given(path) && !strings.HasPrefix(message, "is missing") {
		path = last.path
		if value, ok := neutralValues[field]; ok {
			message += "; add " + field + ": " + value
		}
	}
	if len(before) > 1 { // the mistake arises only in combination with the tier
		message += " (combined with " + before[1].path + ")"
	}
	c.Add(path, "%s", message)
}

// fieldPath returns the path of a field in the last change that has it, or else in the first.
func (c *compiler) fieldPath(changes []change, field string) string {
	for _, ch := range slices.Backward(changes) {
		if path := ch.path + "." + field; c.Given(path) {
			return path
		}
	}
	return changes[0].path + "." + field
}

func (c *compiler) checkEnums(ch change) {
	c.OneOf(ch.fields.Anchor, ch.path+".anchor", "aligned", "first_use")
	c.OneOf(ch.fields.Consistency, ch.path+".consistency", "exact", "leased")
	c.OneOf(ch.fields.Algorithm, ch.path+".algorithm", "sliding_window", "fixed_window", "token_bucket")
}

// merge overwrites the fields of to with the fields of from that are given.
func merge(to, from *LimitFields) {
	setIfGiven(&to.Key, from.Key)
	setIfGiven(&to.Limit, from.Limit)
	setIfGiven(&to.Window, from.Window)
	setIfGiven(&to.Algorithm, from.Algorithm)
	setIfGiven(&to.Burst, from.Burst)
	setIfGiven(&to.Anchor, from.Anchor)
	setIfGiven(&to.Timezone, from.Timezone)
	setIfGiven(&to.Consistency, from.Consistency)
}

func setIfGiven[T comparable](to *T, from T) {
	var zero T
	if from != zero {
		*to = from
	}
}

// applyFactor multiplies the limit and burst by the factor of a schedule entry, which is at the path.
func (c *compiler) applyFactor(p *policy, l *limit, factor float64, path string) {
	if l.unlimited { // an override may impose a limit, and then the burst counts
		l.Burst = min(scale(l.Burst, factor), maxAmount)
		return
	}
	amount, burst := scale(l.Limit.Limit, factor), scale(l.Burst, factor)
	switch {
	case amount > maxAmount:
		c.Add(path, "raises limit %s of %v above %d; use a smaller factor", l.name, l.Limit.Limit, maxAmount)
		return
	case burst > maxAmount:
		c.Add(path, "raises the burst of limit %s from %v to more than %d; use a smaller factor", l.name, l.Burst, maxAmount)
		return
	}
	l.Limit.Limit, l.Burst = max(1, amount), burst
	l.Threshold = p.threshold.Of(l.Limit.Limit)
}

// scale multiplies n by the factor as it is written in decimal, rounded down, because in floating point 100 × 0.29 is less
// than 29. Anything above maxAmount becomes maxAmount + 1.
func scale(n int64, factor float64) int64 {
	exact, _ := new(big.Rat).SetString(strconv.FormatFloat(factor, 'f', -1, 64)) // never fails: numbers in files are finite
	exact.Mul(exact, new(big.Rat).SetInt64(n))
	product := new(big.Int).Quo(exact.Num(), exact.Denom())
	if !product.IsInt64() {
		return maxAmount + 1
	}
	return min(product.Int64(), maxAmount+1)
}

// variants yields the limits of all tiers, with and without each schedule entry, those without a tier first.
func (p *policy) variants(yield func([]limit) bool) {
	for _, v := range slices.AppendSeq([]*variant{p.base}, maps.Values(p.tiers)) {
		for _, limits := range append([][]limit{v.usual}, v.bySlot...) {
			if !yield(limits) {
				return
			}
		}
	}
}

// mayLimit reports whether any limit is not unlimited, or could be limited by an override.
func (p *policy) mayLimit() bool {
	for limits := range p.variants {
		if slices.ContainsFunc(limits, func(l limit) bool { return !l.unlimited || !l.Window.IsZero() }) {
			return true
		}
	}
	return false
}
