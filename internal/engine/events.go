package engine

// decideReport raises the exceeded events of denials that were counted in memory. A worker that stops
// does not wait until they are due: if nobody is denied again, no other worker would report them.
func (b *batch) decideReport(r *Request) {
	for i, slot := range r.slots {
		c, l := &b.counters[slot], &r.Limits[i]
		if c.err != nil {
			continue
		}
		// Report over a copy. The stored state keeps its definition and moment: another definition
		// carries over from there what is used, and the retryAfter of earlier denials relies on it.
		state := c.state.clone()
		state.advance(l, b.now)
		c.absent = c.stored == nil
		result := Result{}
		result.fill(l, &state, b.now, r.deniedCosts[i])
		if r.deniedCosts[i] <= result.Remaining {
			result.RetryAfter = 1 // the cost fits by now; 0 would mean that it never does
		}
		switch {
		case !b.closing && !exceededDue(c.state.exceededAt, b.now):
			c.notDue = true
		case c.exceededEvent < 0:
			c.exceededEvent = len(b.events)
			b.raise(EventExceeded, l, &result)
		}
	}
}

// countDenial counts a denial. If an event is due it raises it, for this denial and those counted
// before.
func (b *batch) countDenial(c *counter, result *Result, cost int64) {
	if c.denials++; c.denials == 1 {
		c.firstDenied, c.firstCost = c.limit, cost
	}
	if c.exceededEvent < 0 && exceededDue(c.state.exceededAt, b.now) {
		c.exceededEvent = len(b.events)
		b.raise(EventExceeded, c.limit, result)
	}
}

// raise adds an event about a limit and what was decided of it.
func (b *batch) raise(t EventType, l *Limit, r *Result) {
	b.events = append(b.events, Event{
		ID: b.newID(), Type: t, Time: b.now, Key: l.Key, Name: l.Label(), Policy: l.Policy, Limit: l.Limit,
		Window: l.Window.text, Remaining: r.Remaining, Threshold: max(0, l.Threshold), ResetAt: r.ResetAt,
		RetryAfter: r.RetryAfter, User: l.User,
	})
}

// completeEvent sets how many denials the counter's event stands for.
func (b *batch) completeEvent(c *counter, id CounterID, denials *denialCounts) {
	if c.exceededEvent < 0 && !c.notDue {
		return
	}
	c.cachedDenials = denials.take(id)
	total := c.cachedDenials + c.state.denied + c.denials
	if total == 0 || c.notDue && total == c.state.denied {
		return
	}
	c.dirty = c.dirty || !c.absent
	if c.exceededEvent < 0 {
		// The counter keeps this worker's denials for the next event.
		c.state.denied = min(total, maxUsed)
		return
	}
	b.events[c.exceededEvent].Denied = total
	c.state.exceededAt, c.state.denied = b.now, 0
}

// encodeStored encodes a counter that nobody has charged: only its denials changed, or cost was
// given back. It keeps the stored moment: another definition carries over from there what is used,
// and the retryAfter of earlier denials relies on it. A counter that is not stored yet begins under
// the limit that denied first.
func (b *batch) encodeStored(slot int, c *counter) CounterChange {
	var s State
	_ = s.Decode(c.stored) // load has decoded it without an error
	if s.spec == 0 {
		if c.firstDenied != nil {
			c.limit = c.firstDenied
		}
		s.advance(c.limit, b.now)
	}
	s.exceededAt, s.denied = c.state.exceededAt, c.state.denied
	return b.encode(slot, c, &s)
}
