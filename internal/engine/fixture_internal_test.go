package engine

// decide asks over states.
func decide(v Verb, limits []Limit, states []*State, now, cost int64) Decision {
	r := Request{Verb: v, Limits: limits, Cost: cost}
	return r.decide(states, now)
}

// Law reports whether costs that were admitted at these moments keep what the limit promises.
func Law(l Limit, at, costs []int64) bool {
	log := make([]charged, len(at))
	for i := range log {
		log[i] = charged{at: at[i], cost: costs[i]}
	}
	return law(l, log)
}
