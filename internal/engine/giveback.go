package engine

// rewind brings a counter that nobody has charged back to its stored moment: earlier requests may
// have advanced it, and what is used is carried over to another definition from the moment that is
// stored.
func (c *counter) rewind() {
	until := c.state.until
	_ = c.state.Decode(c.stored) // load has decoded it without an error
	c.state.until = until
}

// keepGivenBack takes what the last request gave back from the stored state too, which keeps its
// moment if nobody has charged the counter: another definition carries over from there what is
// used, and the retryAfter of earlier denials relies on it.
func (b *batch) keepGivenBack(c *counter) {
	if c.charged || c.state.spec != c.spec || c.state.usage() == c.before {
		return
	}
	var s State
	_ = s.Decode(c.stored) // load has decoded it without an error
	s.giveBackLike(&c.state, c.before)
	b.keep(c, &s)
}

// keep has the counter written as s, unless it is charged later.
func (b *batch) keep(c *counter, s *State) {
	c.stored, c.dirty, c.charged = b.encodeState(s), true, false
}

// keepCharged has the counter written as it is after a charge in place. That may be in a fixed
// window that has ended, which a later request under its definition would leave.
func (b *batch) keepCharged(c *counter) {
	if c.dirty, c.charged = true, true; c.state.counting().moment() < b.now {
		b.keep(c, &c.state)
	}
}

// giveBackLike gives back what was given back of later, the same state advanced in place, of which
// before was used. Advanced to the moment of later, it is later. But it keeps its own moment and
// what has left the window since, which counts under a longer window, or if the store's clock is
// set back.
func (s *State) giveBackLike(later *State, before usage) {
	s.lent = later.lent
	given := before.used - later.counting().used()
	switch s.algorithm {
	case FixedWindow:
		s.fixed.refund(given)
	case TokenBucket:
		s.bucket.giveBackLike(&later.bucket, given, later.bucket.fraction-before.fraction)
	default:
		s.sliding.giveBackLike(&later.sliding, given)
	}
}
