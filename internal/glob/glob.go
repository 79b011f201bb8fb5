// Package glob has the one kind of pattern there is here: * stands for any number of bytes, and nothing else is special.
package glob

import "strings"

// Is tells a pattern from a text that is meant as it is.
func Is(pattern string) bool { return strings.Contains(pattern, "*") }

// Match tells whether s is as the pattern says. Each part between stars is found at its first place behind the one before,
// which is as good as any other, so the time is that of the product of the lengths at worst.
func Match(pattern, s string) bool {
	first, rest, found := strings.Cut(pattern, "*")
	if !strings.HasPrefix(s, first) {
		return false
	}
	s = s[len(first):]
	for found {
		var part string
		if part, rest, found = strings.Cut(rest, "*"); !found {
			return strings.HasSuffix(s, part)
		}
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s = s[i+len(part):]
	}
	return s == ""
}

// Any tells whether s is as one of the patterns says.
func Any(patterns []string, s string) bool {
	for _, p := range patterns {
		if Match(p, s) {
			return true
		}
	}
	return false
}
