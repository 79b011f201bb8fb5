package alerts

import "github.com/seed503877ad/limits/internal/glob"

// fits tells whether the silence holds for an alert.
func (s *Silence) fits(a *Alert) bool {
	return fitsOr(s.Rule, a.Rule) && fitsOr(s.Policy, a.Policy) && fitsOr(s.Key, a.Key) && fitsOr(s.User, a.User)
}

// fitsOr lets an empty pattern fit everything.
func fitsOr(pattern, value string) bool { return pattern == "" || glob.Match(pattern, value) }
