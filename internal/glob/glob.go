// Package glob matches patterns in which * stands for any number of bytes and nothing else is special.
package glob

import "strings"

// Is reports whether the text is a pattern, as opposed to a literal.
func Is(pattern string) bool { return strings.Contains(pattern, "*") }

// Match reports whether s matches the pattern. Each part between stars is looked for from the end of
// the part before. Its first occurrence is as good as any other, so there is no backtracking, and the
// time is at worst proportional to the product of the lengths.
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

// Any reports whether s matches one of the patterns.
func Any(patterns []string, s string) bool {
	for _, p := range patterns {
		if Match(p, s) {
			return true
		}
	}
	return false
}
