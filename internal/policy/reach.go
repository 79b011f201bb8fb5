package policy

import (
	"slices"

	"github.com/seed503877ad/limits/internal/yamlfile"
)

// maxReachWork bounds the comparisons of patterns. In a larger file unreachable policies are not found.
const maxReachWork = 10_000_000

// groupMember is a policy of a group, with what is known of the attributes of a request that it takes.
type groupMember struct {
	*policy
	path string
	// keyed are the attributes that its keys have in any tier or at any time.
	keyed []string
	// present are the attributes that exist in every request that it takes, and nonEmpty those that are not empty then.
	present, nonEmpty []string
}

// checkReachable reports policies of a group that never apply, because an earlier one always takes their requests.
func (c *compiler) checkReachable(policies []*policy) {
	groups, work := map[int][]groupMember{}, 0
	for i, p := range policies {
		path := yamlfile.Index("policies", i)
		if p.group < 0 || c.Has(path) { // a policy with a mistake, such as a missing match
			continue
		}
		keyed, always := p.keyAttributes()
		if len(p.exempt) > 0 { // an exempt request is taken without a key
			always = nil
		}
		m := groupMember{p, path, keyed, append(p.match.attributes(), always...), append(p.match.nonEmpty(), always...)}
		for _, earlier := range groups[p.group] {
			if earlier.shadow && !p.shadow { // it takes nothing from an enforced one
				continue
			}
			work += earlier.match.patternCount() * m.match.patternCount()
			if work < maxReachWork && earlier.takesAllOf(&m) {
				c.Add(path, "never applies: %s, %s, of the same group takes all of its requests; put this one first, or narrow the other",
					earlier.path, yamlfile.Quote(earlier.name))
				break
			}
		}
		groups[p.group] = append(groups[p.group], m)
	}
}

// takesAllOf reports whether m takes every request that later would take: m matches it, and its attributes suffice for the
// keys of m.
func (m *groupMember) takesAllOf(later *groupMember) bool {
	return later.match.implies(m.match, later.present) &&
		!slices.ContainsFunc(m.keyed, func(a string) bool { return !slices.Contains(later.nonEmpty, a) })
}

// keyAttributes returns the attributes that keys have in any tier or at any time, and those that they have in every tier
// and at all times.
func (p *policy) keyAttributes() (anywhere, always []string) {
	first := true
	for limits := range p.variants {
		var here []string
		for _, l := range limits {
			if !l.unlimited {
				for _, part := range l.key.parts {
					here = append(here, part.attribute)
				}
			}
		}
		if anywhere = append(anywhere, here...); first {
			always, first = slices.Clone(here), false
		}
		always = slices.DeleteFunc(always, func(a string) bool { return !slices.Contains(here, a) })
	}
	slices.Sort(anywhere)
	return slices.Compact(anywhere), always
}
