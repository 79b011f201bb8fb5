package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/seed503877ad/limits/internal/glob"
)

// tests is a Condition as it is asked: one test for each attribute, in order of name.
type tests []test

type test struct {
	attribute string
	patterns  []string
	// addresses are the patterns of an attribute ip, as addresses are written.
	addresses []string
}

func compileTests(c Condition) tests {
	var ts tests
	for attribute, patterns := range c {
		t := test{attribute: attribute, patterns: patterns}
		if attribute == ipAttribute {
			t.addresses = addresses(patterns)
		}
		ts = append(ts, t)
	}
	slices.SortFunc(ts, func(a, b test) int { return cmp.Compare(a.attribute, b.attribute) })
	return ts
}

// address gives an IP address or a /64 as its canonical text has it, and anything else as it is: one address can be written in many ways,
// and ::ffff:203.0.113.9 is 203.0.113.9.
func address(v string) string {
	if p, err := netip.ParsePrefix(v); err == nil {
		return p.Masked().String()
	}
	a, err := netip.ParseAddr(v)
	if err != nil {
		return v
	}
	return a.Unmap().WithZone("").String()
}

// addresses writes patterns as [address] does, and those with a star in lower case.
func addresses(patterns []string) []string {
	written := make([]string, len(patterns))
	for i, p := range patterns {
		written[i] = strings.ToLower(address(p))
	}
	return written
}

// fits tells whether the attributes have all that is asked for.
func (ts tests) fits(attributes map[string]string) bool { return ts.fails(attributes) == nil }

// fails gives the first test that the attributes fail.
func (ts tests) fails(attributes map[string]string) *test {
	for i := range ts {
		if v, ok := attributes[ts[i].attribute]; !ok || !ts[i].fits(v) {
			return &ts[i]
		}
	}
	return nil
}

// fits compares an attribute ip as it came, and by its address, as it is in keys.
func (t *test) fits(v string) bool {
	return glob.Any(t.patterns, v) || t.addresses != nil && glob.Any(t.addresses, address(v))
}

// asWritten tells whether what is compared are the patterns alone, and not also what they are as addresses.
func (t *test) asWritten() bool { return t.addresses == nil || slices.Equal(t.addresses, t.patterns) }

// why says in words how the attributes fail it.
func (t *test) why(attributes map[string]string) string {
	v, ok := attributes[t.attribute]
	if !ok {
		return fmt.Sprintf("the request has no attribute %s", t.attribute)
	}
	return fmt.Sprintf("%s %q fits none of %s", t.attribute, v, strings.Join(t.patterns, ", "))
}

// covers tells whether whatever fits b fits a. It may say no where that is so, never yes where it is not. A star of b
// can only be met by one of a.
func covers(a, b []string) bool {
	for _, narrow := range b {
		if !slices.ContainsFunc(a, func(wide string) bool { return glob.Match(wide, narrow) }) {
			return false
		}
	}
	return true
}

// implies tells whether attributes that fit ts fit wide too, given that those in present are there besides.
func (ts tests) implies(wide tests, present []string) bool {
	for _, w := range wide {
		i := slices.IndexFunc(ts, func(t test) bool { return t.attribute == w.attribute })
		switch {
		case i >= 0 && covers(w.patterns, ts[i].patterns) && covers(w.addresses, ts[i].addresses):
		case i < 0 && slices.Contains(present, w.attribute) && slices.Contains(w.patterns, "*"):
		default:
			return false
		}
	}
	return true
}

func (ts tests) attributes() (names []string) {
	for _, t := range ts {
		names = append(names, t.attribute)
	}
	return names
}

// filled are the attributes that are not empty in whatever fits.
func (ts tests) filled() (names []string) {
	for _, t := range ts {
		if !t.fits("") {
			names = append(names, t.attribute)
		}
	}
	return names
}
