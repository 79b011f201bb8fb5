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
	// networks are those of them that are networks, which match all of their addresses.
	networks []netip.Prefix
}

func newMatcher(c Condition) matcher {
	var m matcher
	for attribute, patterns := range c {
		am := attributeMatcher{attribute: attribute, patterns: patterns}
		if attribute == ipAttribute {
			am.ipPatterns, am.networks = canonicalPatterns(patterns), networks(patterns)
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
	a, err := parseAddr(v)
	if err != nil {
		return v
	}
	return a.String()
}

func parseAddr(v string) (netip.Addr, error) {
	a, err := netip.ParseAddr(v)
	return a.Unmap().WithZone(""), err
}

// parsePrefix parses a network. ::ffff:203.0.113.0/120 is 203.0.113.0/24.
func parsePrefix(v string) (p netip.Prefix, ok bool) {
	p, err := netip.ParsePrefix(v)
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p.Masked(), err == nil
}

func networks(patterns []string) (all []netip.Prefix) {
	for _, pattern := range patterns {
		if p, ok := parsePrefix(pattern); ok {
			all = append(all, p)
		}
	}
	return all
}

// inNetwork reports whether a value is an address in one of the networks, or a part of one, such as the /64 of a client.
func inNetwork(networks []netip.Prefix, v string) bool {
	if len(networks) == 0 {
		return false
	}
	bits := 128
	a, err := parseAddr(v)
	if err != nil {
		p, ok := parsePrefix(v)
		if !ok {
			return false
		}
		a, bits = p.Addr(), p.Bits()
	}
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Bits() <= bits && n.Contains(a) })
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
	return glob.Any(m.patterns, v) || m.ipPatterns != nil && glob.Any(m.ipPatterns, canonicalAddress(v)) || inNetwork(m.networks, v)
}

// onlyPatterns reports whether values are compared with nothing but the patterns as they are written.
func (m *attributeMatcher) onlyPatterns() bool {
	return m.ipPatterns == nil || len(m.networks) == 0 && slices.Equal(m.ipPatterns, m.patterns)
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
// false yes. A star in narrow can only be covered by a star in wide, and a network by a network or a lone star.
func (wide *attributeMatcher) covers(narrow *attributeMatcher) bool {
	for i, p := range narrow.patterns {
		_, network := parsePrefix(p)
		network = network && narrow.ipPatterns != nil // of other attributes it is a text
		switch {
		case inNetwork(wide.networks, p):
		case network && !slices.Contains(wide.patterns, "*"),
			!coversText(wide.patterns, p),
			narrow.ipPatterns != nil && !coversText(wide.ipPatterns, narrow.ipPatterns[i]):
			return false
		}
	}
	return true
}

func coversText(wide []string, narrow string) bool {
	return slices.ContainsFunc(wide, func(w string) bool { return glob.Match(w, narrow) })
}

// implies reports whether attributes that match m also match wide, given that the attributes in present exist in any case.
func (m matcher) implies(wide matcher, present []string) bool {
	for _, w := range wide {
		i := slices.IndexFunc(m, func(am attributeMatcher) bool { return am.attribute == w.attribute })
		switch {
		case i >= 0 && w.covers(&m[i]):
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
