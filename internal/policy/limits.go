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

// change is fields and where they stand.
type change struct {
	fields *LimitFields
	path   string
}

// limits reads the limits of a policy for all tiers and times.
func (c *compiler) limits(p *policy, spec *Policy, path string) {
	at := path + ".limits"
	switch n := len(spec.Limits); {
	case n == 0:
		c.Add(at, "is missing; want a list of limits, each with key, limit and window")
	case n > maxLimits:
		c.Add(yamlfile.Index(at, maxLimits), "a policy has at most %d limits; a request is decided under no more", maxLimits)
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
	c.schedule(p, spec, path)
	p.base = c.variant(p, spec, nil, path)
	for _, name := range slices.Sorted(maps.Keys(spec.Tiers)) { // so that the same file has the same mistakes
		changes, tier := spec.Tiers[name], yamlfile.Join(path+".tiers", name)
		c.checkName(name, tier)
		c.changes(spec, changes, tier)
		p.tiers[name] = c.variant(p, spec, &tierChange{changes, tier}, path)
	}
	for i := range spec.Schedule {
		c.changes(spec, spec.Schedule[i].Limits, yamlfile.Index(path+".schedule", i)+".limits")
	}
	if !c.Has(path) && !p.mayLimit() {
		c.Add(at, "every limit is unlimited, in every tier and at every time, and none has a window that an override could count by; "+
			"give one a limit or a window, or remove the policy")
	}
}

// nameLimits fills names in and holds them apart: name and key find the counter.
func (c *compiler) nameLimits(spec *Policy, path string) {
	for i := range spec.Limits {
		l, at := &spec.Limits[i], yamlfile.Index(path, i)
		switch {
		case l.Name != "":
			c.checkName(l.Name, at+".name")
		case c.Given(at + ".name"): // told of already
		case l.Window != "": // it will be held to what a window may be, which is always a name
			l.Name = l.Window
			c.StandsAt(at+".name", at)
		case l.Limit == Unlimited && !c.Has(at):
			c.Add(at+".name", "is missing; a limit without a window needs one")
		}
		for j := range i {
			if l.Name != "" && spec.Limits[j].Name == l.Name {
				c.Add(at+".name", "%s is the name of limits[%d] too, and both would charge one counter; give it another name", yamlfile.Quote(l.Name), j)
			}
		}
	}
}

// changes holds overridden fields to the limits there are.
func (c *compiler) changes(spec *Policy, changes Changes, path string) {
	var names []string
	for i := range spec.Limits {
		if name := spec.Limits[i].Name; name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for name, f := range changes {
		switch at := yamlfile.Join(path, name); {
		case len(names) == 0: // which was told of
		case !slices.Contains(names, name):
			c.Add(at, "unknown limit %s%s; want one of %s", yamlfile.Quote(name), yamlfile.DidYouMean(name, names), strings.Join(names, ", "))
		case f == LimitFields{} && !c.Has(at):
			c.Add(at, "changes nothing; give it a field such as limit, or remove it")
		}
	}
}

type tierChange struct {
	changes Changes
	path    string
}

// variant reads the limits for one tier, nil for those as they are.
func (c *compiler) variant(p *policy, spec *Policy, tier *tierChange, path string) *variant {
	v := &variant{usual: c.at(p, spec, tier, nil, "", path)}
	for i := range spec.Schedule {
		s := &spec.Schedule[i]
		v.slotted = append(v.slotted, c.at(p, spec, tier, s, yamlfile.Index(path+".schedule", i), path))
	}
	return v
}

// at gives the limits for one tier in one entry of the schedule.
func (c *compiler) at(p *policy, spec *Policy, tier *tierChange, s *Slot, slotPath, path string) []limit {
	var out []limit
	for i := range spec.Limits {
		l := &spec.Limits[i]
		changes := []change{{&l.LimitFields, yamlfile.Index(path+".limits", i)}}
		if tier != nil {
			if f, ok := tier.changes[l.Name]; ok {
				changes = append(changes, change{&f, yamlfile.Join(tier.path, l.Name)})
			}
		}
		if s != nil {
			if f, ok := s.Limits[l.Name]; ok {
				changes = append(changes, change{&f, yamlfile.Join(slotPath+".limits", l.Name)})
			}
		}
		if c.compiled++; c.compiled > maxCompiled {
			c.Add(path, "limits, tiers and schedules of the file make more than %d combinations; use fewer", maxCompiled)
			return nil
		}
		made := c.limit(p, l.Name, changes)
		if s != nil && s.Factor > 0 {
			c.multiply(p, &made, s.Factor, slotPath)
		}
		out = append(out, made)
	}
	return out
}

// limit merges the fields of a limit and reads them.
func (c *compiler) limit(p *policy, name string, changes []change) limit {
	fields, wrong := *changes[0].fields, false
	for _, ch := range changes {
		wrong = wrong || c.Has(ch.path)
		c.checkWords(ch)
		merge(&fields, ch.fields)
	}
	if wrong { // what else is wrong with it mostly follows from that
		return limit{name: name, unlimited: true}
	}
	l, field, err := c.build(p, name, &fields)
	var fe *engine.FieldError
	if errors.As(err, &fe) {
		field, err = fe.Field, errors.New(fe.Message)
	}
	if err != nil {
		c.blame(changes, field, err)
		return limit{name: name, unlimited: true}
	}
	for _, part := range l.key.parts {
		c.attribute(part.attribute, c.whereIs(changes, "key"))
	}
	return l
}

// wayOut is what takes back a field that is right where it stands, and wrong beside what a change gives.
var wayOut = map[string]string{"algorithm": "fixed_window", "burst": "0", "timezone": "UTC", "anchor": "aligned"}

// blame tells a mistake where the last change gives the field, or lacks it, or else at that change: without it the limit is
// right, or there is a mistake already.
func (c *compiler) blame(changes []change, field string, err error) {
	before, last := changes[:len(changes)-1], changes[len(changes)-1]
	path, message := last.path+"."+field, err.Error()
	if !c.Given(path) && !strings.HasPrefix(message, "is missing") {
		path = last.path
		if value, ok := wayOut[field]; ok && len(before) > 0 {
			message += "; add " + field + ": " + value
		}
	}
	if len(before) > 1 { // with the tier alone it is right
		message += " (under " + before[1].path + ")"
	}
	c.Add(path, "%s", message)
}

// whereIs is the path of the field in the last of the changes that has it, else in the first.
func (c *compiler) whereIs(changes []change, field string) string {
	for _, ch := range slices.Backward(changes) {
		if path := ch.path + "." + field; c.Given(path) {
			return path
		}
	}
	return changes[0].path + "." + field
}

func (c *compiler) checkWords(ch change) {
	c.OneOf(ch.fields.Anchor, ch.path+".anchor", "aligned", "first_use")
	c.OneOf(ch.fields.Consistency, ch.path+".consistency", "exact", "leased")
	c.OneOf(ch.fields.Algorithm, ch.path+".algorithm", "sliding_window", "fixed_window", "token_bucket")
}

// merge puts the fields that are given over those that are there.
func merge(to, from *LimitFields) {
	set(&to.Key, from.Key)
	set(&to.Limit, from.Limit)
	set(&to.Window, from.Window)
	set(&to.Algorithm, from.Algorithm)
	set(&to.Burst, from.Burst)
	set(&to.Anchor, from.Anchor)
	set(&to.Timezone, from.Timezone)
	set(&to.Consistency, from.Consistency)
}

func set[T comparable](to *T, from T) {
	var none T
	if from != none {
		*to = from
	}
}

// multiply applies the factor of a schedule.
func (c *compiler) multiply(p *policy, l *limit, factor float64, path string) {
	if l.unlimited { // an override may limit it
		l.Burst = min(times(l.Burst, factor), maxAmount)
		return
	}
	amount, burst := times(l.Limit.Limit, factor), times(l.Burst, factor)
	if amount > maxAmount || burst > maxAmount {
		c.Add(path+".factor", "makes limit %s of %v more than %d; make it smaller", l.name, l.Limit.Limit, maxAmount)
		return
	}
	l.Limit.Limit, l.Burst = max(1, amount), burst
	l.Threshold = p.threshold.Of(l.Limit.Limit)
}

// times multiplies, rounded down, by the decimal that the factor was written as: in floating point, 100 × 0.29 is less than
// 29. It gives maxAmount + 1 for all that is more.
func times(n int64, factor float64) int64 {
	exact, _ := new(big.Rat).SetString(strconv.FormatFloat(factor, 'f', -1, 64)) // files have finite numbers alone
	exact.Mul(exact, new(big.Rat).SetInt64(n))
	product := new(big.Int).Quo(exact.Num(), exact.Denom())
	if !product.IsInt64() {
		return maxAmount + 1
	}
	return min(product.Int64(), maxAmount+1)
}

// variants are all tiers at all times.
func (p *policy) variants(yield func([]limit) bool) {
	for _, v := range slices.AppendSeq([]*variant{p.base}, maps.Values(p.tiers)) {
		for _, limits := range append([][]limit{v.usual}, v.slotted...) {
			if !yield(limits) {
				return
			}
		}
	}
}

// mayLimit tells whether something is limited, or an override could limit it.
func (p *policy) mayLimit() bool {
	for limits := range p.variants {
		if slices.ContainsFunc(limits, func(l limit) bool { return !l.unlimited || !l.Window.IsZero() }) {
			return true
		}
	}
	return false
}
