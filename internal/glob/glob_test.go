package glob_test

import (
	"testing"

	"github.com/seed503877ad/limits/internal/glob"
)

func TestGlobs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, s string
		want       bool
	}{
		{"*", "a", true}, {"a*", "a", true}, {"a*", "ba", false}, {"*a", "ba", true}, {"*a", "ab", false},
		{"a*c", "abc", true}, {"a*c", "ac", true}, {"a*c", "a", false}, {"a*a", "a", false}, {"a**", "a", true},
		{"*b*", "abc", true}, {"*b*", "ac", false}, {"a*b*c", "axbxc", true}, {"a*b*c", "axbx", false},
		{"*ab*ab", "abab", true}, {"*ab*ab", "aab", false}, {"ö*😀", "ö:😀", true}, {"[a]*", "a", false}, {"?*", "a", false}, {"", "", true}, {"", "a", false}, {"a", "a", true},
	} {
		if got := glob.Match(c.pattern, c.s); got != c.want {
			t.Errorf("%s over %s: %t", c.pattern, c.s, got)
		}
	}
}

func TestAnyLooksAtEveryPattern(t *testing.T) {
	t.Parallel()
	if patterns := []string{"a", "b*"}; !glob.Any(patterns, "a") || !glob.Any(patterns, "bc") || glob.Any(patterns, "c") || glob.Any(nil, "") {
		t.Error("Any is not true for exactly the texts that fit one of the patterns")
	}
}

func TestOnlyAStarMakesAPattern(t *testing.T) {
	t.Parallel()
	if !glob.Is("a*b") || glob.Is("a?[b]") || glob.Is("") {
		t.Error("Is is not true for exactly the texts with a *")
	}
}
