package engine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// batch is the requests that one transaction answers, with room that is used again for the next.
type batch struct {
	// requests are all that were gathered, in order of arrival; pending are those that the store is to answer.
	requests, pending []*Request
	// limits counts the limits of requests; closing lets tell store denials that are not due yet.
	limits  int
	closing bool
	// renewal is the engine's own request to renew leases, if there are any to renew.
	renewal Request
	// turn is that of the first transaction, where the store gave one; began is when it was first waited for.
	turn  Turn
	began time.Time

	// ids and counters are the distinct counters of pending, in the order in which requests name them; slots finds one.
	ids      []CounterID
	counters []counter
	holds    []hold
	slots    map[CounterID]int
	// receiptIDs and receipts are the distinct ids of pending, in order.
	receiptIDs []string
	receipts   []*Receipt

	// The outcome of decide. The store's clock was at most ahead of now.
	now, ahead int64
	changes    []CounterChange
	fresh      []Receipt
	stale      []string
	events     []Event
	arena      []byte
	states     []*State
	kept       []definition
	// stored and until are the states and the latest moment of the snapshot.
	stored [][]byte
	until  int64
	clock  *reading
	// generations are those of what is remembered, when the snapshot was read.
	generations generations
}

// counter is one counter of a batch.
type counter struct {
	state State
	// limit is the limit it was last decided under.
	limit *Limit
	// stored tells whether the store has it, with a spec of hash spec.
	stored bool
	spec   uint64
	err    error

	dirty bool
	// absent says that denials are told of a counter that was reset since, or expired: that does not bring it back.
	absent bool
	// refunded, void and freed tell what the workers are to forget: a refund or what else ends their leases, or that
	// something remains again.
	refunded, void, freed bool
	// denied says that a request was denied that has this counter among its limits; denials counts the times
	// that this one refused, first a request of cost by the limit first.
	denied        bool
	denials, cost int64
	first         *Limit
	// other is the counter under another definition than the stored one, under which a request was denied; nil for none.
	other *memo
	// exceeded is the place of the exceeded event in the batch's events, -1 for none; recalled is how many
	// denials remembered by the worker it tells of.
	exceeded int
	recalled int64
	// early says that denials are to be told though their event is not due: another worker raised one, or this one did before the
	// tell had its turn. They are left in the state, so that the next event tells of those of all workers.
	early bool
}

func newBatch() *batch { return &batch{slots: make(map[CounterID]int)} }

func (b *batch) add(r *Request) {
	b.requests = append(b.requests, r)
	b.limits += len(r.Limits)
}

// clear makes the batch ready to be used again.
func (b *batch) clear() {
	clear(b.requests)
	clear(b.pending)
	b.requests, b.pending = b.requests[:0], b.pending[:0]
	b.limits, b.closing = 0, false
}

// dropLate fails the requests that waited longer than most, with why, and tells when the oldest of the others came; now when
// there are none. They wait since awake at the earliest: before that the process did not run.
func (b *batch) dropLate(now, awake time.Time, most time.Duration, why error) (oldest time.Time) {
	oldest = now
	for _, r := range b.requests {
		if r.Verb.internal() {
			continue
		}
		since := later(r.Received, awake)
		if waited := now.Sub(since); waited > most {
			r.err = fmt.Errorf("waited %s: %w", waited.Round(time.Millisecond), why)
			continue
		}
		oldest = earlier(oldest, since)
	}
	return oldest
}

// keepRepeatable fails the pending requests that must not be written twice. Of the others a receipt that is found now may be
// that of this very request.
func (b *batch) keepRepeatable(err error) {
	for _, r := range b.pending {
		if r.ID == "" {
			r.err = err
		}
		r.unsure = r.unsure || !r.replayed
	}
}

// undecide takes the answers back of a transaction that failed: another may find other receipts and counters.
func (b *batch) undecide() {
	for _, r := range b.pending {
		r.decision, r.err = Decision{}, nil
	}
}

// fail fails the pending requests.
func (b *batch) fail(err error) {
	for _, r := range b.pending {
		if r.err == nil {
			r.err = err
		}
	}
}

// prepare works out what the transaction is to read.
func (b *batch) prepare() {
	b.pending, b.ids, b.holds, b.receiptIDs = b.pending[:0], b.ids[:0], b.holds[:0], b.receiptIDs[:0]
	clear(b.slots)
	for _, r := range b.requests {
		if r.err != nil {
			continue
		}
		b.pending = append(b.pending, r)
		b.meet(r)
		if r.repeatable() {
			b.receiptIDs = append(b.receiptIDs, r.ID)
		}
		if r.Verb == Settle {
			b.receiptIDs = append(b.receiptIDs, r.settles())
		}
	}
	slices.Sort(b.receiptIDs)
	b.receiptIDs = slices.Compact(b.receiptIDs)
}

// meet gives the request's counters slots, and notes what may be asked for in leases.
func (b *batch) meet(r *Request) {
	leasable := r.Verb == Consume && r.leasable()
	r.slots = r.slotRoom[:0]
	for i := range r.Limits {
		id := r.Limits[i].CounterID
		slot, ok := b.slots[id]
		if !ok {
			slot = len(b.ids)
			b.slots[id] = slot
			b.ids = append(b.ids, id)
			b.holds = append(b.holds, hold{})
		}
		h := &b.holds[slot]
		if h.ref == nil {
			h.ref = r.Limits[i].Ref
		}
		if leasable {
			h.asked += r.Cost
		}
		h.wanted = h.wanted || leasable || r.Verb == renew
		r.slots = append(r.slots, slot)
	}
}

// decide answers the pending requests, in order of arrival, over the snapshot. It may be called again with
// another snapshot.
func (b *batch) decide(snap Snapshot, denials *denials, newID func() string) Changes {
	b.begin(snap)
	for _, r := range b.pending {
		if r.repeatable() {
			b.decideOnce(r, newID)
		} else {
			b.decideRequest(r, newID)
		}
	}
	changes := b.finish(denials)
	b.stored = nil
	changes.Unsure = snap.Until > 0 && !b.holdsUntil(snap.Until)
	return changes
}

// holdsUntil tells whether the decisions are right for any moment from now to until, over states that the store will
// confirm by writing them. A denial is never sure: at the store's moment the cost may fit. Nor is a refund: workers are
// told of it while nobody else can write, so that none remembers it as exhausted once more before the commit.
func (b *batch) holdsUntil(until int64) bool {
	for i := range b.counters {
		if c := &b.counters[i]; !c.dirty || c.denials > 0 || c.refunded || c.void || c.freed || c.state.unsteady || c.state.counting().steadyUntil() < until {
			return false
		}
	}
	return true
}

// begin reads the snapshot.
func (b *batch) begin(snap Snapshot) {
	b.now, b.ahead = snap.Now, max(0, snap.Latest-snap.Now)
	b.stored, b.until = snap.States, snap.Until
	b.changes, b.fresh, b.stale, b.events, b.arena = b.changes[:0], b.fresh[:0], b.stale[:0], b.events[:0], b.arena[:0]
	b.counters = slices.Grow(b.counters[:0], len(b.ids))[:len(b.ids)]
	for i := range b.counters {
		c := &b.counters[i]
		*c = counter{state: c.state, stored: snap.States[i] != nil, exceeded: -1}
		if c.err = c.state.Decode(snap.States[i]); c.err != nil {
			c.err = fmt.Errorf("counter %q %q: %w", b.ids[i].Key, b.ids[i].Name, c.err)
		}
		c.spec, c.state.until = c.state.spec, snap.Until
		h := &b.holds[i]
		h.next = grant{} // of another call
		if h.grant.amount > 0 && c.err == nil {
			b.settle(c, h)
		}
	}
	b.receipts = append(b.receipts[:0], snap.Receipts...)
}

// settle ends the lease that this worker had, so that the requests are decided over what was really used.
func (b *batch) settle(c *counter, h *hold) {
	l := &h.lease.limit
	same := c.state.spec == h.lease.spec
	if !same && (c.state.since == 0 || c.state.since != h.lease.begun) {
		return // reset or redefined since
	}
	c.state.arrive(l, b.now)
	before := c.state.remaining(l)
	if c.state.settle(h.grant.amount, h.unused, h.grant.at, h.grant.since) {
		c.dirty = true
		c.limit = l
		// What remains under another amount is not known here.
		c.freed = !same && h.unused > 0 || before == 0 && c.state.remaining(l) > 0
	}
}

// decideRequest decides over the counters as the requests before left them.
func (b *batch) decideRequest(r *Request, newID func() string) {
	if !b.gather(r) {
		return
	}
	switch r.Verb {
	case tell:
		b.decideTell(r, newID)
		return
	case handBack, renew, look:
		return
	case Settle:
		b.decideSettle(r, newID)
		return
	}
	r.decision, r.err = r.decide(b.states, b.now), nil
	for i, slot := range r.slots {
		c, result := &b.counters[slot], &r.decision.Results[i]
		charged := r.charges(&r.decision, i)
		c.dirty = c.dirty || charged || r.Verb == Refund && c.stored
		c.refunded = c.refunded || r.Verb == Refund
		c.denied = c.denied || !r.decision.Allowed || !result.Allowed
		if charged && c.state.warn(c.limit, b.now, result.Remaining) {
			b.events = append(b.events, b.event(EventWarning, c.limit, result, newID))
		}
		if !result.Allowed {
			b.refused(c, result, r.Cost, newID)
		}
	}
	b.restoreKept(r)
}

// gather finds the states of a request's limits, and keeps those that it may leave under another definition. It is false where one of its
// counters cannot be read.
func (b *batch) gather(r *Request) bool {
	b.states, b.kept = b.states[:0], b.kept[:0]
	for i, slot := range r.slots {
		c := &b.counters[slot]
		if c.err != nil {
			r.err = c.err
			if r.Verb == tell {
				continue // the others can be told
			}
			return false
		}
		other := c.state.spec != 0 && c.state.spec != r.Limits[i].hash()
		if other && !c.dirty {
			// Requests before may have brought it to now, which nobody writes: what is used is carried over from the moment that is stored.
			unsteady := c.state.unsteady
			_ = c.state.Decode(b.stored[slot]) // read before
			c.state.until, c.state.unsteady = b.until, unsteady
		}
		if other && (r.Verb <= Check || r.Verb == Refund) {
			b.kept = append(b.kept, c.definition(i))
		}
		if !r.Verb.internal() && r.Verb != Settle || c.limit == nil {
			c.limit = &r.Limits[i]
		}
		b.states = append(b.states, &c.state)
		// Leases were given under what the counter was before.
		lent := c.state.lent.newer.amount > 0
		c.void = c.void || lent && (r.Verb == Record || r.Verb == Settle && r.delta() > 0 ||
			other && r.Verb < Settle && r.Verb != Check)
	}
	return true
}

// restoreKept gives the counters that a request charged nothing to their definitions back.
func (b *batch) restoreKept(r *Request) {
	for i := range b.kept {
		d := &b.kept[i]
		if r.charges(&r.decision, d.at) {
			continue
		}
		c := &b.counters[r.slots[d.at]]
		if !r.decision.Allowed && c.other == nil {
			c.other = newMemo(c.limit, &c.state)
		}
		d.restore(c)
		if r.Verb == Refund {
			// Under the definition that stands, and at the moment that is stored: from there another definition carries over what is
			// used, and has told when that is free. Leases that are over by now are spared no more.
			stored := c.state.counting()
			c.state.lent.trim(max(b.now, stored.moment()), stored.used())
			c.state.refund(r.Cost)
		}
	}
}

// definition is the counter of the at-th limit as it was before a request under another definition. If that charges nothing, it
// changes nothing: to leave its definition would be to carry what is used over into it, from where it may be gone the sooner.
type definition struct {
	at     int
	state  State
	limit  *Limit
	denied bool
}

func (c *counter) definition(at int) definition {
	return definition{at: at, state: c.state.clone(), limit: c.limit, denied: c.denied}
}

// restore leaves of the request the denials that it counted, whose event needs a limit.
func (d *definition) restore(c *counter) {
	c.state, c.denied = d.state, d.denied
	if d.limit != nil {
		c.limit = d.limit
	}
}

// decideTell raises the exceeded events of denials that were counted in memory.
func (b *batch) decideTell(r *Request, newID func() string) {
	for i, slot := range r.slots {
		c, l := &b.counters[slot], &r.Limits[i]
		if c.err != nil {
			continue
		}
		// A copy tells. What is used stays where it is stored, under its definition and at its moment: from there another definition
		// carries it over, and has told when that is free.
		state := c.state.clone()
		state.advance(l, b.now)
		c.absent = !c.stored
		result := Result{}
		result.fill(l, &state, b.now, r.denied[i])
		if r.denied[i] <= result.Remaining {
			result.RetryAfter = 1
		}
		switch {
		case !exceededDue(c.state.exceededAt, b.now):
			c.early = true
		case c.exceeded < 0:
			c.exceeded = len(b.events)
			b.events = append(b.events, b.event(EventExceeded, l, &result, newID))
		}
	}
}

// refused counts a denial, and raises the event for it and for those counted before if one is due.
func (b *batch) refused(c *counter, result *Result, cost int64, newID func() string) {
	if c.denials++; c.denials == 1 {
		c.first, c.cost = c.limit, cost
	}
	if c.exceeded < 0 && exceededDue(c.state.exceededAt, b.now) {
		c.exceeded = len(b.events)
		b.events = append(b.events, b.event(EventExceeded, c.limit, result, newID))
	}
}

func (b *batch) event(t EventType, l *Limit, r *Result, newID func() string) Event {
	return Event{
		ID: newID(), Type: t, Time: b.now, Key: l.Key, Name: l.Label(), Policy: l.Policy, Limit: l.Limit,
		Window: l.Window.text, Remaining: r.Remaining, Threshold: max(0, l.Threshold), ResetAt: r.ResetAt,
		RetryAfter: r.RetryAfter, User: l.User,
	}
}

// finish completes the events and encodes what changed.
func (b *batch) finish(denials *denials) Changes {
	silent := 0
	for slot := range b.counters {
		c := &b.counters[slot]
		if c.limit == nil || c.err != nil {
			continue
		}
		charged := c.dirty
		b.count(c, b.ids[slot], denials)
		if charged { // what encodeDenied writes has no lease
			b.lease(slot, c)
		}
		if c.exceeded >= 0 && b.events[c.exceeded].Denied == 0 {
			silent++
		}
		switch {
		case charged:
			b.changes = append(b.changes, b.encode(slot, c, &c.state))
		case c.dirty:
			b.changes = append(b.changes, b.encodeDenied(slot, c))
		}
	}
	if silent > 0 {
		b.events = slices.DeleteFunc(b.events, func(e Event) bool { return e.Type == EventExceeded && e.Denied == 0 })
	}
	slices.SortFunc(b.fresh, func(x, y Receipt) int { return strings.Compare(x.ID, y.ID) })
	return Changes{Counters: b.changes, Receipts: b.fresh, Stale: b.stale, Events: b.events}
}

// lease charges ahead for the requests to come, where that was asked for and all fitted.
func (b *batch) lease(slot int, c *counter) {
	h := &b.holds[slot]
	if !h.wanted || h.lease == nil || h.demand == 0 || !c.limit.Leased || c.denied || c.refunded || c.void ||
		c.state.spec != c.limit.hash() {
		return
	}
	if amount, until, since := c.state.lease(c.limit, h.demand); amount > 0 {
		// The counter's moment is later than now where the clock was set back.
		until = min(until, b.now+leaseFor)
		h.next = grant{amount: amount, at: c.state.counting().moment(), until: until, since: since}
	}
}

// count settles how many denials the counter's event stands for.
func (b *batch) count(c *counter, id CounterID, denials *denials) {
	if c.exceeded < 0 && !b.closing && !c.early {
		return
	}
	c.recalled = denials.cut(id)
	total := c.recalled + c.state.denied + c.denials
	if total == 0 || c.early && total == c.state.denied {
		return
	}
	c.dirty = c.dirty || !c.absent
	if c.exceeded < 0 {
		// The worker goes, or another has told of its own: what this one remembers is kept for the event to come.
		c.state.denied = min(total, maxUsed)
		return
	}
	b.events[c.exceeded].Denied = total
	c.state.exceededAt, c.state.denied = b.now, 0
}

// encodeDenied encodes a counter of which its denials alone changed: at the moment that is stored, from which another definition carries
// over what is used, and has told when that is free. One of which nothing is stored begins under the limit that denied first.
func (b *batch) encodeDenied(slot int, c *counter) CounterChange {
	var s State
	_ = s.Decode(b.stored[slot]) // read before
	if s.spec == 0 {
		if c.first != nil {
			c.limit = c.first
		}
		s.advance(c.limit, b.now)
	}
	s.exceededAt, s.denied = c.state.exceededAt, c.state.denied
	return b.encode(slot, c, &s)
}

func (b *batch) encode(slot int, c *counter, s *State) CounterChange {
	from := len(b.arena)
	b.arena = s.Append(b.arena)
	change := CounterChange{Slot: slot, State: b.arena[from:len(b.arena):len(b.arena)], ExpiresAt: s.expiresAt(c.limit, b.now)}
	if !c.stored || c.spec != s.spec {
		change.Spec, _ = json.Marshal(c.limit.Spec()) // strings and numbers: cannot fail
	}
	return change
}
