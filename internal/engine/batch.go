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
	// limitCount counts the limits of requests; closing lets tell store denials that are not due yet.
	limitCount int
	closing    bool
	// renewal is the engine's own request to renew leases, if there are any to renew.
	renewal Request
	// turn is that of the first transaction, where the store gave one; began is when it was first waited for.
	turn  Turn
	began time.Time

	// ids and counters are the distinct counters of pending, in the order in which requests name them; slots finds one.
	ids      []CounterID
	counters []counter
	leases   []batchLease
	slots    map[CounterID]int
	// receiptIDs and receipts are the distinct ids of pending, in order.
	receiptIDs []string
	receipts   []*Receipt

	// The outcome of decide. The store's clock was at most ahead of now.
	now, ahead    int64
	changes       []CounterChange
	newReceipts   []Receipt
	staleReceipts []string
	events        []Event
	stateBuf      []byte
	states        []*State
	saved         []savedCounter
	// stored and until are the states and the latest moment of the snapshot.
	stored [][]byte
	until  int64
	clock  *clockReading
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
	refunded, voidsLeases, freed bool
	// denied says that a request was denied that has this counter among its limits; denials counts the times
	// that this one refused, first a request of cost by the limit first.
	denied             bool
	denials, firstCost int64
	firstDenied        *Limit
	// otherDefinition is the counter under another definition than the stored one, under which a request was denied; nil for none.
	otherDefinition *cachedCounter
	// exceededEvent is the place of the exceeded event in the batch's events, -1 for none; recalled is how many
	// denials remembered by the worker it tells of.
	exceededEvent int
	cachedDenials int64
	// notDue says that denials are to be told though their event is not due: another worker raised one, or this one did before the
	// tell had its turn. They are left in the state, so that the next event tells of those of all workers.
	notDue bool
}

func newBatch() *batch { return &batch{slots: make(map[CounterID]int)} }

func (b *batch) add(r *Request) {
	b.requests = append(b.requests, r)
	b.limitCount += len(r.Limits)
}

// clear makes the batch ready to be used again.
func (b *batch) clear() {
	clear(b.requests)
	clear(b.pending)
	b.requests, b.pending = b.requests[:0], b.pending[:0]
	b.limitCount, b.closing = 0, false
}

// failLate fails the requests that waited longer than most, with why, and tells when the oldest of the others came; now when
// there are none. They wait since awake at the earliest: before that the process did not run.
func (b *batch) failLate(now, awake time.Time, most time.Duration, why error) (oldest time.Time) {
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

// failUnrepeatable fails the pending requests that must not be written twice. Of the others a receipt that is found now may be
// that of this very request.
func (b *batch) failUnrepeatable(err error) {
	for _, r := range b.pending {
		if r.ID == "" {
			r.err = err
		}
		r.maybeCommitted = r.maybeCommitted || !r.replayed
	}
}

// clearDecisions takes the answers back of a transaction that failed: another may find other receipts and counters.
func (b *batch) clearDecisions() {
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
	b.pending, b.ids, b.leases, b.receiptIDs = b.pending[:0], b.ids[:0], b.leases[:0], b.receiptIDs[:0]
	clear(b.slots)
	for _, r := range b.requests {
		if r.err != nil {
			continue
		}
		b.pending = append(b.pending, r)
		b.addCounters(r)
		if r.hasReceipt() {
			b.receiptIDs = append(b.receiptIDs, r.ID)
		}
		if r.Verb == Settle {
			b.receiptIDs = append(b.receiptIDs, r.consumeID())
		}
	}
	slices.Sort(b.receiptIDs)
	b.receiptIDs = slices.Compact(b.receiptIDs)
}

// addCounters gives the request's counters slots, and notes what may be asked for in leases.
func (b *batch) addCounters(r *Request) {
	leasable := r.Verb == Consume && r.leasable()
	r.slots = r.slotBuf[:0]
	for i := range r.Limits {
		id := r.Limits[i].CounterID
		slot, ok := b.slots[id]
		if !ok {
			slot = len(b.ids)
			b.slots[id] = slot
			b.ids = append(b.ids, id)
			b.leases = append(b.leases, batchLease{})
		}
		h := &b.leases[slot]
		if h.ref == nil {
			h.ref = r.Limits[i].Ref
		}
		if leasable {
			h.asked += r.Cost
		}
		h.wanted = h.wanted || leasable || r.Verb == renewLeases
		r.slots = append(r.slots, slot)
	}
}

// decide answers the pending requests, in order of arrival, over the snapshot. It may be called again with
// another snapshot.
func (b *batch) decide(snap Snapshot, denials *denialCounts, newID func() string) Changes {
	b.load(snap)
	for _, r := range b.pending {
		if r.hasReceipt() {
			b.decideOnce(r, newID)
		} else {
			b.decideRequest(r, newID)
		}
	}
	changes := b.finish(denials)
	b.stored = nil
	changes.Unsure = snap.Until > 0 && !b.validUntil(snap.Until)
	return changes
}

// validUntil tells whether the decisions are right for any moment from now to until, over states that the store will
// confirm by writing them. A denial is never sure: at the store's moment the cost may fit. Nor is a refund: workers are
// told of it while nobody else can write, so that none remembers it as exhausted once more before the commit.
func (b *batch) validUntil(until int64) bool {
	for i := range b.counters {
		if c := &b.counters[i]; !c.dirty || c.denials > 0 || c.refunded || c.voidsLeases || c.freed || c.state.timeSensitive || c.state.counting().steadyUntil() < until {
			return false
		}
	}
	return true
}

// load reads the snapshot.
func (b *batch) load(snap Snapshot) {
	b.now, b.ahead = snap.Now, max(0, snap.Latest-snap.Now)
	b.stored, b.until = snap.States, snap.Until
	b.changes, b.newReceipts, b.staleReceipts, b.events, b.stateBuf = b.changes[:0], b.newReceipts[:0], b.staleReceipts[:0], b.events[:0], b.stateBuf[:0]
	b.counters = slices.Grow(b.counters[:0], len(b.ids))[:len(b.ids)]
	for i := range b.counters {
		c := &b.counters[i]
		*c = counter{state: c.state, stored: snap.States[i] != nil, exceededEvent: -1}
		if c.err = c.state.Decode(snap.States[i]); c.err != nil {
			c.err = fmt.Errorf("counter %q %q: %w", b.ids[i].Key, b.ids[i].Name, c.err)
		}
		c.spec, c.state.until = c.state.spec, snap.Until
		h := &b.leases[i]
		h.newGrant = grant{} // of another call
		if h.grant.amount > 0 && c.err == nil {
			b.settleLease(c, h)
		}
	}
	b.receipts = append(b.receipts[:0], snap.Receipts...)
}

// settleLease ends the lease that this worker had, so that the requests are decided over what was really used.
func (b *batch) settleLease(c *counter, h *batchLease) {
	l := &h.lease.limit
	same := c.state.spec == h.lease.spec
	if !same && (c.state.since == 0 || c.state.since != h.lease.stateSince) {
		return // reset or redefined since
	}
	c.state.advanceInPlace(l, b.now)
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
	if !b.bindStates(r) {
		return
	}
	switch r.Verb {
	case reportDenials:
		b.decideReport(r, newID)
		return
	case returnLeases, renewLeases, noop:
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
			b.countDenial(c, result, r.Cost, newID)
		}
	}
	b.restoreSaved(r)
}

// bindStates finds the states of a request's limits, and keeps those that it may leave under another definition. It is false where one of its
// counters cannot be read.
func (b *batch) bindStates(r *Request) bool {
	b.states, b.saved = b.states[:0], b.saved[:0]
	for i, slot := range r.slots {
		c := &b.counters[slot]
		if c.err != nil {
			r.err = c.err
			if r.Verb == reportDenials {
				continue // the others can be told
			}
			return false
		}
		other := c.state.spec != 0 && c.state.spec != r.Limits[i].hash()
		if other && !c.dirty {
			// Requests before may have brought it to now, which nobody writes: what is used is carried over from the moment that is stored.
			unsteady := c.state.timeSensitive
			_ = c.state.Decode(b.stored[slot]) // read before
			c.state.until, c.state.timeSensitive = b.until, unsteady
		}
		if other && (r.Verb <= Check || r.Verb == Refund) {
			b.saved = append(b.saved, c.save(i))
		}
		if !r.Verb.internal() && r.Verb != Settle || c.limit == nil {
			c.limit = &r.Limits[i]
		}
		b.states = append(b.states, &c.state)
		// Leases were given under what the counter was before.
		lent := c.state.lent.newer.amount > 0
		c.voidsLeases = c.voidsLeases || lent && (r.Verb == Record || r.Verb == Settle && r.costDelta() > 0 ||
			other && r.Verb < Settle && r.Verb != Check)
	}
	return true
}

// restoreSaved gives the counters that a request charged nothing to their definitions back.
func (b *batch) restoreSaved(r *Request) {
	for i := range b.saved {
		d := &b.saved[i]
		if r.charges(&r.decision, d.at) {
			continue
		}
		c := &b.counters[r.slots[d.at]]
		if !r.decision.Allowed && c.otherDefinition == nil {
			c.otherDefinition = newCachedCounter(c.limit, &c.state)
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

// savedCounter is the counter of the at-th limit as it was before a request under another definition. If that charges nothing, it
// changes nothing: to leave its definition would be to carry what is used over into it, from where it may be gone the sooner.
type savedCounter struct {
	at     int
	state  State
	limit  *Limit
	denied bool
}

func (c *counter) save(at int) savedCounter {
	return savedCounter{at: at, state: c.state.clone(), limit: c.limit, denied: c.denied}
}

// restore leaves of the request the denials that it counted, whose event needs a limit.
func (d *savedCounter) restore(c *counter) {
	c.state, c.denied = d.state, d.denied
	if d.limit != nil {
		c.limit = d.limit
	}
}

// decideReport raises the exceeded events of denials that were counted in memory.
func (b *batch) decideReport(r *Request, newID func() string) {
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
		result.fill(l, &state, b.now, r.deniedCosts[i])
		if r.deniedCosts[i] <= result.Remaining {
			result.RetryAfter = 1
		}
		switch {
		case !exceededDue(c.state.exceededAt, b.now):
			c.notDue = true
		case c.exceededEvent < 0:
			c.exceededEvent = len(b.events)
			b.events = append(b.events, b.event(EventExceeded, l, &result, newID))
		}
	}
}

// countDenial counts a denial, and raises the event for it and for those counted before if one is due.
func (b *batch) countDenial(c *counter, result *Result, cost int64, newID func() string) {
	if c.denials++; c.denials == 1 {
		c.firstDenied, c.firstCost = c.limit, cost
	}
	if c.exceededEvent < 0 && exceededDue(c.state.exceededAt, b.now) {
		c.exceededEvent = len(b.events)
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
func (b *batch) finish(denials *denialCounts) Changes {
	silent := 0
	for slot := range b.counters {
		c := &b.counters[slot]
		if c.limit == nil || c.err != nil {
			continue
		}
		charged := c.dirty
		b.completeEvent(c, b.ids[slot], denials)
		if charged { // what encodeDenied writes has no lease
			b.grantLease(slot, c)
		}
		if c.exceededEvent >= 0 && b.events[c.exceededEvent].Denied == 0 {
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
	slices.SortFunc(b.newReceipts, func(x, y Receipt) int { return strings.Compare(x.ID, y.ID) })
	return Changes{Counters: b.changes, Receipts: b.newReceipts, Stale: b.staleReceipts, Events: b.events}
}

// grantLease charges ahead for the requests to come, where that was asked for and all fitted.
func (b *batch) grantLease(slot int, c *counter) {
	h := &b.leases[slot]
	if !h.wanted || h.lease == nil || h.demand == 0 || !c.limit.Leased || c.denied || c.refunded || c.voidsLeases ||
		c.state.spec != c.limit.hash() {
		return
	}
	if amount, until, since := c.state.lease(c.limit, h.demand); amount > 0 {
		// The counter's moment is later than now where the clock was set back.
		until = min(until, b.now+maxLease)
		h.newGrant = grant{amount: amount, at: c.state.counting().moment(), until: until, since: since}
	}
}

// completeEvent settles how many denials the counter's event stands for.
func (b *batch) completeEvent(c *counter, id CounterID, denials *denialCounts) {
	if c.exceededEvent < 0 && !b.closing && !c.notDue {
		return
	}
	c.cachedDenials = denials.take(id)
	total := c.cachedDenials + c.state.denied + c.denials
	if total == 0 || c.notDue && total == c.state.denied {
		return
	}
	c.dirty = c.dirty || !c.absent
	if c.exceededEvent < 0 {
		// The worker goes, or another has told of its own: what this one remembers is kept for the event to come.
		c.state.denied = min(total, maxUsed)
		return
	}
	b.events[c.exceededEvent].Denied = total
	c.state.exceededAt, c.state.denied = b.now, 0
}

// encodeDenied encodes a counter of which its denials alone changed: at the moment that is stored, from which another definition carries
// over what is used, and has told when that is free. One of which nothing is stored begins under the limit that denied first.
func (b *batch) encodeDenied(slot int, c *counter) CounterChange {
	var s State
	_ = s.Decode(b.stored[slot]) // read before
	if s.spec == 0 {
		if c.firstDenied != nil {
			c.limit = c.firstDenied
		}
		s.advance(c.limit, b.now)
	}
	s.exceededAt, s.denied = c.state.exceededAt, c.state.denied
	return b.encode(slot, c, &s)
}

func (b *batch) encode(slot int, c *counter, s *State) CounterChange {
	from := len(b.stateBuf)
	b.stateBuf = s.Append(b.stateBuf)
	change := CounterChange{Slot: slot, State: b.stateBuf[from:len(b.stateBuf):len(b.stateBuf)], ExpiresAt: s.expiresAt(c.limit, b.now)}
	if !c.stored || c.spec != s.spec {
		change.Spec, _ = json.Marshal(c.limit.Spec()) // strings and numbers: cannot fail
	}
	return change
}
