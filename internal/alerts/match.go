package alerts

import "github.com/seed503877ad/limits/internal/glob"

// Match selects events: each list that is not empty must have one that fits, exact or a glob with *.
type Match struct {
	Types, Policies, Keys, Users []string
}

func (m *Match) fits(e *Event) bool {
	fits := func(patterns []string, s string) bool { return len(patterns) == 0 || glob.Any(patterns, s) }
	return fits(m.Types, e.Type) && fits(m.Policies, e.Policy) && fits(m.Keys, e.Key) && fits(m.Users, e.User)
}
