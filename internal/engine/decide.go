package engine

// decide answers a request over the states of its limits. It advances them to now, and charges them
// if the verb does so; a settle and a lease charge elsewhere. Limits in shadow do not affect
// whether the request is allowed.
func (r *Request) decide(states []*State, now int64) Decision {
	verb, limits, cost := r.Verb, r.Limits, r.Cost
	d := Decision{Allowed: true, Results: r.makeResults()}
	for i := range limits {
		l, s := &limits[i], states[i]
		s.advance(l, now)
		d.judge(i, l, verb == Refund || cost <= s.remaining(l))
	}
	d.Shadow = d.Shadow && d.Allowed
	for i := range states {
		d.Results[i].Spared = verb != Refund && r.spares(states, i)
	}
	for i, s := range states {
		switch {
		case verb == Refund:
			s.refund(cost)
		case r.charges(&d, i):
			s.counting().charge(cost)
		}
	}
	for i, s := range states {
		d.Results[i].fill(&limits[i], s, now, cost)
	}
	return d
}

// judge records whether the i-th limit fits.
func (d *Decision) judge(i int, l *Limit, fits bool) {
	d.Results[i] = Result{Allowed: fits}
	d.Allowed = d.Allowed && (fits || l.Shadow)
	d.Shadow = d.Shadow || !fits && l.Shadow
}

// spares reports whether the i-th limit is spared the charge because its policy is in shadow and, enforced, would
// have refused the request. A record is for work that has begun, so there a policy would have refused it with nothing
// left. If it charged all the same, the limit would get into a debt, and denials, that enforcement never sees.
//
// Limits of one policy are spared together. Nothing may have been charged yet.
func (r *Request) spares(states []*State, i int) bool {
	if !r.Limits[i].Shadow {
		return false
	}
	least := r.Cost
	if r.Verb == Record {
		least = 1
	}
	for j, s := range states {
		if l := &r.Limits[j]; l.Policy == r.Limits[i].Policy && s.remaining(l) < least {
			return true
		}
	}
	return false
}

// charges reports whether the decision charges the i-th limit.
func (r *Request) charges(d *Decision, i int) bool {
	return (r.Verb == Record || r.Verb == Consume && d.Allowed) && !d.Results[i].Spared
}

// fill sets all of the result from the state after the decision, apart from Allowed and Spared, which must be set.
func (r *Result) fill(l *Limit, s *State, now, cost int64) {
	r.Key, r.Name, r.Policy, r.Window = l.Key, l.Label(), l.Policy, l.Window.text
	r.Algorithm, r.FirstUse, r.Limit, r.Burst, r.Shadow = l.Algorithm, l.FirstUse, l.Limit, l.Burst, l.Shadow
	r.Used = s.counting().used()
	r.Remaining = s.remaining(l)
	r.ResetAt = s.resetAt(now)
	r.RetryAfter, r.Message = 0, "" // of a decision that was not kept
	if !r.Allowed {
		r.RetryAfter, r.Message = s.retryAfter(l, now, cost), l.Message
	}
}
