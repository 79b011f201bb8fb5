package policy

import (
	"slices"

	"github.com/seed503877ad/limits/internal/glob"
)

// index finds the policies that may match a request: a policy for each of a thousand users is found by the user, and not by
// comparing the request with all of them. A policy is listed under the values of one attribute, if its match names them
// without stars.
type index struct {
	// byValue has the numbers of policies by attribute and value, and others those of all other policies that have a match.
	// All are in the order of the file.
	byValue map[string]map[string][]int
	others  []int
}

func newIndex(policies []*policy) index {
	// Of several attributes the one is taken whose values the fewest policies name.
	uses := map[string]map[string]int{}
	for _, p := range policies {
		for i := range p.match {
			m := &p.match[i]
			if uses[m.attribute] == nil {
				uses[m.attribute] = map[string]int{}
			}
			for _, v := range m.patterns {
				uses[m.attribute][v]++
			}
		}
	}
	x := index{byValue: map[string]map[string][]int{}}
	for n, p := range policies {
		best, fewest := (*attributeMatcher)(nil), 0
		for i := range p.match {
			m := &p.match[i]
			sum := 0
			for _, v := range m.patterns {
				sum += uses[m.attribute][v]
			}
			if m.literal() && (best == nil || sum < fewest) {
				best, fewest = m, sum
			}
		}
		x.add(n, p, best)
	}
	return x
}

// add lists a policy under the values of by; nil if it has no attribute that it can be found by.
func (x *index) add(n int, p *policy, by *attributeMatcher) {
	if by == nil {
		if p.match != nil {
			x.others = append(x.others, n)
		}
		return
	}
	values := x.byValue[by.attribute]
	if values == nil {
		values = map[string][]int{}
		x.byValue[by.attribute] = values
	}
	for _, v := range by.patterns {
		if !slices.Contains(values[v], n) { // a file may give a value twice
			values[v] = append(values[v], n)
		}
	}
}

// candidates appends the numbers of the policies that may match to room, in the order of the file.
func (x *index) candidates(attributes map[string]string, room []int) []int {
	all := append(room, x.others...)
	for name, value := range attributes {
		if values := x.byValue[name]; values != nil {
			all = append(all, values[value]...)
		}
	}
	if len(all) > len(x.others) {
		slices.Sort(all)
	}
	return all
}

// literal reports whether exactly the patterns match, as values. An address can be written in many ways.
func (m *attributeMatcher) literal() bool {
	return m.ipPatterns == nil && !slices.ContainsFunc(m.patterns, glob.Is)
}
