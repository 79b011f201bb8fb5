package engine

// decide asks over states.
func decide(v Verb, limits []Limit, states []*State, now, cost int64) Decision {
	r := Request{Verb: v, Limits: limits, Cost: cost}
	return r.decide(states, now)
}
