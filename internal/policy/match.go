package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/seed503877ad/limits/internal/glob"
)

// matcher is a compiled Condition: one attributeMatcher for each attribute, sorted by name. All of them have to match.
type matcher []attributeMatcher

type attributeMatcher struct {
	attribute string
	patterns  []string
	// ipPatterns are the patterns of the attribute ip as canonical addresses; nil for other attributes.
	ipPatterns []string
}

func newMatcher(c Condition) matcher {
	var m matcher
	for attribute, patterns := range c {
		am := attributeMatcher{attribute: attribute, patterns: patterns}
		if attribute == ipAttribute {
			am.ipPatterns = canonicalPatterns(patterns)
		}
		m = append(m, am)
	}
	slices.SortFunc(m, func(a, b attributeMatcher) int { return cmp.Compare(a.attribute, b.attribute) })
	return m
}

// canonicalAddress returns the canonical text of an IP address or network, and any other text as it is. The same address
// can be written in many ways: ::ffff:203.0.113.9 is 203.0.113.9.
func canonicalAddress(v string) string {
	if p, err := netip.ParsePrefix(v); err == nil {
		return p.Masked().String()
	}
	a, err := netip.ParseAddr(v)
	if err != nil {
		return v
	}
	return a.Unmap().WithZone("").String()
}

// canonicalPatterns returns patterns as canonical addresses. A pattern with a star is only lower-cased.
func canonicalPatterns(patterns []string) []string {
	out := make([]string, len(patterns))
	for i, p := range patterns {
		out[i] = strings.ToLower(canonicalAddress(p))
	}
	return out
}

func (m matcher) matches(attributes map[string]string) bool { return m.mismatch(attributes) == nil }

// mismatch returns the first attribute that does not match; nil if all do.
func (m matcher) mismatch(attributes map[string]string) *attributeMatcher {
	for i := range m {
		if v, ok := attributes[m[i].attribute]; !ok || !m[i].matches(v) {
			return &m[i]
		}
	}
	return nil
}

// matches compares a value with the patterns. The attribute ip is compared both as it came and as a canonical address,
// which is how keys have it.
func (m *attributeMatcher) matches(v string) bool {
	return glob.Any(m.patterns, v) || m.ipPatterns != nil && glob.Any(m.ipPatterns, canonicalAddress(v))
}

// onlyPatterns reports whether values are compared with nothing but the patterns as they are written.
func (m *attributeMatcher) onlyPatterns() bool {
	return m.ipPatterns == nil || slices.Equal(m.ipPatterns, m.patterns)
}

// whyNot describes in words why the attributes do not match.
func (m *attributeMatcher) whyNot(attributes map[string]string) string {
	v, ok := attributes[m.attribute]
	if !ok {
		return fmt.Sprintf("the request has no attribute %s", m.attribute)
	}
	return fmt.Sprintf("%s %q matches none of %s", m.attribute, v, strings.Join(m.patterns, ", "))
}

// covers reports whether every value that matches narrow also matches wide. The answer may be a false no, but never a
// false yes. A star in narrow can only be covered by a star in wide.
func covers(wide, narrow []string) bool {
	for _, n := range narrow {
		if !slices.ContainsFunc(wide, func(w string) bool { return glob.Match(w, n) }) {
			return false
		}
	}
	return true
}

// implies reports whether attributes that match m also match wide, given that the attributes in present exist in any case.
func (m matcher) implies(wide matcher, present []string) bool {
	for _, w := range wide {
		i := slices.IndexFunc(m, func(am attributeMatcher) bool { return am.attribute == w.attribute })
		switch {
		case i >= 0 && covers(w.patterns, m[i].patterns) && covers(w.ipPatterns, m[i].ipPatterns):
		case i < 0 && slices.Contains(present, w.attribute) && slices.Contains(w.patterns, "*"):
		default:
			return false
		}
	}
	return true
}

func (m matcher) attributes() (names []string) {
	for _, am := range m {
		names = append(names, am.attribute)
	}
	return names
}

// nonEmpty returns the attributes whose value cannot be empty if m matches.
func (m matcher) nonEmpty() (names []string) {
	for _, am := range m {
		if !am.matches("") {
			names = append(names, am.attribute)
		}
	}
	return names
}

func (m matcher) patternCount() (n int) {
	for _, am := range m {
		n += len(am.patterns)
	}
	return n
}
