package policy

import (
	"slices"

	"github.com/seed503877ad/limits/internal/yamlfile"
)

// reachWork bounds the comparisons of patterns; what a larger file has unreachable is not found.
const reachWork = 10_000_000

// member is a policy of a group, with the attributes that its keys have in some tier or at some time, all that are there
// whenever it takes a request, and those of them that are not empty then.
type member struct {
	*policy
	path                  string
	some, present, filled []string
}

// reachable tells of policies of a group that never apply, because an earlier one always matches where they do.
func (c *compiler) reachable(policies []*policy) {
	groups, work := map[int][]member{}, 0
	for i, p := range policies {
		path := yamlfile.Index("policies", i)
		if p.group < 0 || c.Has(path) { // such as one without a match
			continue
		}
		some, always := p.needs()
		if len(p.exempt) > 0 { // an exempt request is taken without a key
			always = nil
		}
		m := member{p, path, some, append(p.match.attributes(), always...), append(p.match.filled(), always...)}
		for _, earlier := range groups[p.group] {
			work += earlier.match.patterns() * m.match.patterns()
			if work < reachWork && earlier.takesFrom(&m) {
				c.Add(path, "never applies: %s, %s, of the same group matches whatever it matches; put it first, or narrow the other",
					earlier.path, yamlfile.Quote(earlier.name))
				break
			}
		}
		groups[p.group] = append(groups[p.group], m)
	}
}

// takesFrom tells whether q takes whatever p would: it matches, and a key can be made of what is not empty.
func (q *member) takesFrom(p *member) bool {
	return p.match.implies(q.match, p.present) &&
		!slices.ContainsFunc(q.some, func(a string) bool { return !slices.Contains(p.filled, a) })
}

// needs gives the attributes that keys have in some tier or at some time, and those that they always have.
func (p *policy) needs() (some, always []string) {
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
		if some = append(some, here...); first {
			always, first = slices.Clone(here), false
		}
		always = slices.DeleteFunc(always, func(a string) bool { return !slices.Contains(here, a) })
	}
	slices.Sort(some)
	return slices.Compact(some), always
}

func (ts tests) patterns() (n int) {
	for _, t := range ts {
		n += len(t.patterns)
	}
	return n
}
