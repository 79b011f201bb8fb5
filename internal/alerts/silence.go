package alerts

import "strings"

// fits tells whether the silence holds for an alert.
func (s *Silence) fits(a *Alert) bool {
	return fitsGlob(s.Rule, a.Rule) && fitsGlob(s.Policy, a.Policy) && fitsGlob(s.Key, a.Key) && fitsGlob(s.User, a.User)
}

// fitsGlob lets an empty pattern fit everything.
func fitsGlob(pattern, value string) bool {
	return pattern == "" || pattern == value || strings.Contains(pattern, "*")
}
