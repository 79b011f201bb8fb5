package alerts

// Match selects events: each list that is not empty must have one that fits, exact or a glob with *.
type Match struct {
	Types, Policies, Keys, Users []string
}

func (m *Match) fits(*Event) bool { return true }
