package engine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// batch is the requests that one transaction answers. Batches and their slices are reused.
type batch struct {
	// requests are all that were gathered, in order of arrival; pending are those that the store
	// still has to answer.
	requests, pending []*Request
	// limitCount counts the limits of requests.
	limitCount int
	// closing says that the engine stops: denials are reported though their event is not due yet.
	closing bool
	// renewal is the engine's own request to renew leases, if any are spent.
	renewal Request
	// turn is for the first transaction, if the store gave one; began is when the engine began to
	// wait for it.
	turn  Turn
	began time.Time

	// ids are the distinct counters of pending, in the order in which requests name them. counters
	// and leases have the same order; slots maps an id to its index in all three.
	ids      []CounterID
	counters []counter
	leases   []batchLease
	slots    map[CounterID]int
	// receiptIDs are the distinct ids of pending, in byte order; receipts are theirs, nil if there
	// is none.
	receiptIDs []string
	receipts   []*Receipt
	// consumeIDs are the distinct ids of the consumes that pending settles; consumes are their
	// receipts, empty if the store has not read them.
	consumeIDs []string
	consumes   []*Receipt

	// newID makes ids of events.
	newID func() string

	// The outcome of decide. The store's clock was between now and now + ahead. unsure says that it
	// depends on a consume's receipt that was not read.
	unsure        bool
	now, ahead    int64
	changes       []CounterChange
	newReceipts   []Receipt
	staleReceipts []string
	events        []Event
	stateBuf      []byte
	states        []*State
	saved         []savedCounter
	clock         *clockReading
	took          time.Duration // of the transaction
	// generations are those of the cache when the snapshot was read.
	generations generations
}

// counter is one counter of a batch.
type counter struct {
	state State
	// limit is the limit that it was last decided under.
	limit *Limit
	// stored is the encoded state that the store has, nil for none, less what requests have given
	// back; spec is the hash of its definition.
	stored []byte
	spec   uint64
	err    error

	// dirty says that the counter must be written: state if charged is set, otherwise stored.
	dirty, charged bool
	// before is what was used before the refund or settle that is decided.
	before usage
	// absent says that denials were reported for a counter that is no longer stored: it was reset or
	// has expired. The report must not store it again.
	absent bool
	// These say what the workers must forget. refunded: cost came back. voidsLeases: what their
	// leases rely on has changed. freed: the counter has room again.
	refunded, voidsLeases, freed bool
	// denied says that a request with this counter was denied. denials counts how often this counter
	// was the reason; the first time it was for firstCost under the limit firstDenied.
	denied             bool
	denials, firstCost int64
	firstDenied        *Limit
	// otherDefinition is the counter as a denied request saw it under another definition than the
	// stored one; nil for none.
	otherDefinition *cachedCounter
	// exceededEvent is the index of the exceeded event in the batch's events, -1 for none.
	// cachedDenials is how many denials this batch took over from denialCounts.
	exceededEvent int
	cachedDenials int64
	// notDue says that a report came before its event is due: another worker has raised an event,
	// or this one has since the report was queued. The denials go into the state, so that the next
	// event counts those of all workers.
	notDue bool
}

func newBatch() *batch { return &batch{slots: make(map[CounterID]int)} }

func (b *batch) add(r *Request) {
	b.requests = append(b.requests, r)
	b.limitCount += len(r.Limits)
}

// clear prepares the batch for reuse.
func (b *batch) clear() {
	clear(b.requests)
	clear(b.pending)
	b.requests, b.pending = b.requests[:0], b.pending[:0]
	b.limitCount, b.closing = 0, false
}

// failUnrepeatable fails the pending requests that must not be written twice: those without an id.
// The others are written again, and may then find their own receipt.
func (b *batch) failUnrepeatable(err error) {
	for _, r := range b.pending {
		if r.ID == "" {
			r.err = err
		}
		r.maybeCommitted = r.maybeCommitted || !r.replayed
	}
}

// clearDecisions drops the answers of a transaction that failed: the next one may find other
// receipts and counters.
func (b *batch) clearDecisions() {
	for _, r := range b.pending {
		r.decision, r.err = Decision{}, nil
	}
}

// endTurn ends a turn that no transaction took over.
func (b *batch) endTurn() {
	if b.turn != nil {
		b.turn.End()
		b.turn = nil
	}
}

// fail fails the pending requests that have no error yet.
func (b *batch) fail(err error) {
	for _, r := range b.pending {
		if r.err == nil {
			r.err = err
		}
	}
}

// prepare collects what the transaction has to read.
func (b *batch) prepare() {
	b.pending, b.ids, b.leases = b.pending[:0], b.ids[:0], b.leases[:0]
	b.receiptIDs, b.consumeIDs = b.receiptIDs[:0], b.consumeIDs[:0]
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
			b.consumeIDs = append(b.consumeIDs, r.ConsumeID())
		}
	}
	for _, ids := range [...]*[]string{&b.receiptIDs, &b.consumeIDs} {
		slices.Sort(*ids)
		*ids = slices.Compact(*ids)
	}
}

// addCounters assigns the request's counters to slots, and notes which of them may be leased.
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
		bl := &b.leases[slot]
		if bl.ref == nil {
			bl.ref = r.Limits[i].Ref
		}
		if leasable {
			bl.asked += r.Cost
		}
		bl.wanted = bl.wanted || leasable || r.Verb == renewLeases
		r.slots = append(r.slots, slot)
	}
}

// decide answers the pending requests over the snapshot, in order of arrival. It may be called
// again with another snapshot.
func (b *batch) decide(snap Snapshot, denials *denialCounts, newID func() string) Changes {
	b.newID = newID
	b.load(snap)
	for _, r := range b.pending {
		if r.hasReceipt() {
			b.decideOnce(r)
		} else {
			b.decideRequest(r)
		}
	}
	changes := b.finish(denials)
	if snap.Until > 0 {
		until := b.validUntil()
		if changes.Unsure = b.unsure || until < snap.Latest; until < snap.Until {
			changes.Until = until
		}
	}
	return changes
}

// validUntil is the last moment up to which the decisions hold, over states that the store confirms
// when it writes them; 0 if there is none. A denial does not: by then the cost may fit. Nor does a
// refund: it must be broadcast while nobody else can write, so that no worker caches the counter as
// exhausted again before the commit.
func (b *batch) validUntil() int64 {
	until := int64(farFuture)
	for i := range b.counters {
		c := &b.counters[i]
		broadcasts := c.refunded || c.voidsLeases || c.freed
		if !c.dirty || c.denials > 0 || broadcasts {
			return 0
		}
		until = min(until, c.state.counting().steadyUntil())
	}
	return until
}

// load decodes the snapshot, and settles the leases of its counters.
func (b *batch) load(snap Snapshot) {
	b.now, b.ahead = snap.Now, max(0, snap.Latest-snap.Now)
	b.changes, b.events, b.stateBuf = b.changes[:0], b.events[:0], b.stateBuf[:0]
	b.newReceipts, b.staleReceipts, b.unsure = b.newReceipts[:0], b.staleReceipts[:0], false
	b.counters = slices.Grow(b.counters[:0], len(b.ids))[:len(b.ids)]
	for i := range b.counters {
		c := &b.counters[i]
		*c = counter{state: c.state, stored: snap.States[i], exceededEvent: -1}
		if c.err = c.state.Decode(snap.States[i]); c.err != nil {
			c.err = fmt.Errorf("counter %q %q: %w", b.ids[i].Key, b.ids[i].Name, c.err)
		}
		c.spec, c.state.until = c.state.spec, snap.Until
		bl := &b.leases[i]
		bl.newGrant = grant{} // decide may have been called before
		if bl.grant.amount > 0 && c.err == nil {
			b.settleLease(c, bl)
		}
	}
	b.receipts, b.consumes = append(b.receipts[:0], snap.Receipts...), append(b.consumes[:0], snap.ConsumeReceipts...)
}

// settleLease ends this worker's lease of the counter, so that requests are decided over what was
// really used.
func (b *batch) settleLease(c *counter, bl *batchLease) {
	l := &bl.lease.limit
	same := c.state.spec == bl.lease.spec
	if !same && (c.state.since == 0 || c.state.since != bl.lease.stateSince) {
		return // reset or redefined since
	}
	c.state.advanceInPlace(l, b.now)
	before := c.state.remaining(l)
	if !c.state.settleLease(bl.grant.amount, bl.unused, bl.grant.at, bl.grant.since) {
		c.rewind() // also to its definition
		return
	}
	b.keepCharged(c)
	c.limit = l
	// Under another amount of the limit it is not known here whether the counter was exhausted.
	c.freed = !same && bl.unused > 0 || before == 0 && c.state.remaining(l) > 0
}

// decideRequest decides over the counters as the earlier requests of the batch left them.
func (b *batch) decideRequest(r *Request) {
	if !b.bindStates(r) {
		return
	}
	switch r.Verb {
	case reportDenials:
		b.decideReport(r)
		return
	case returnLeases, renewLeases, noop:
		return
	case Settle:
		b.decideSettle(r)
		return
	}
	r.decision, r.err = r.decide(b.states, b.now), nil
	if r.look {
		b.restoreSaved(r)
		return
	}
	for i, slot := range r.slots {
		c, result := &b.counters[slot], &r.decision.Results[i]
		charged := r.charges(&r.decision, i)
		c.dirty, c.charged = c.dirty || charged, c.charged || charged
		c.refunded = c.refunded || r.Verb == Refund
		c.denied = c.denied || !r.decision.Allowed || !result.Allowed
		if charged && c.state.warn(c.limit, b.now, result.Remaining) {
			b.raise(EventWarning, c.limit, result)
		}
		if !result.Allowed && !(r.Verb == Record && result.Spared) { // its check counted the denial
			b.countDenial(c, result, r.Cost)
		}
	}
	b.restoreSaved(r)
	if r.Verb == Refund {
		for _, slot := range r.slots {
			b.keepGivenBack(&b.counters[slot])
		}
	}
}

// bindStates collects the states of a request's limits, and saves those that the request may have
// to restore. It is false if one of its counters cannot be read.
func (b *batch) bindStates(r *Request) bool {
	b.states, b.saved = b.states[:0], b.saved[:0]
	for i, slot := range r.slots {
		c := &b.counters[slot]
		if c.err != nil {
			r.err = c.err
			if r.Verb == reportDenials {
				continue // the other counters can be reported
			}
			return false
		}
		other := c.state.spec != 0 && c.state.spec != r.Limits[i].hash()
		if other && !c.charged {
			c.rewind()
		}
		if other && r.Verb <= Refund {
			b.saved = append(b.saved, c.save(i))
		}
		if !r.Verb.internal() && r.Verb != Settle || c.limit == nil {
			c.limit = &r.Limits[i]
		}
		b.states = append(b.states, &c.state)
		c.voidsLeases = c.voidsLeases || c.state.lent.newer.amount > 0 && r.voidsLeases(other)
		if r.Verb == Refund {
			c.state.advance(&r.Limits[i], b.now)
			c.before = c.state.usage()
		}
	}
	return true
}

// voidsLeases reports whether the request makes leases of its counters wrong, which were granted
// over what the counters were before; other says that it has another definition.
func (r *Request) voidsLeases(other bool) bool {
	switch r.Verb {
	case Record:
		return true
	case Settle:
		return r.costDelta() > 0
	case Consume, Refund:
		return other
	}
	return false
}

// restoreSaved puts counters back under their own definition if the request did not charge them.
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
			// The refund applies to the stored definition at the stored moment: another definition
			// carries over from there what is used, and the retryAfter of earlier denials relies on
			// it. Leases that have ended by now no longer hold back a refund.
			//
			// If the window is the same, nothing is carried over: then what has left it must not be given
			// back in place of what counts.
			stored, l := c.state.counting(), &r.Limits[d.at]
			if c.state.sameWindow(l) {
				stored.advance(l, b.now)
			}
			c.before = c.state.usage()
			c.state.lent.trim(max(b.now, stored.moment()), stored.used())
			c.state.refund(r.Cost)
		}
	}
}

// savedCounter is a counter before a request decided it under another definition. A request that
// charges nothing must leave the definition alone: another one carries over what is used, and may
// free it sooner.
type savedCounter struct {
	at     int
	state  State
	limit  *Limit
	denied bool
}

func (c *counter) save(at int) savedCounter {
	return savedCounter{at: at, state: c.state.clone(), limit: c.limit, denied: c.denied}
}

// restore undoes the request, apart from the denials that it counted. Their event needs a limit, so
// it stays if there was none before.
func (d *savedCounter) restore(c *counter) {
	c.state, c.denied = d.state, d.denied
	if d.limit != nil {
		c.limit = d.limit
	}
}

// finish completes the events and encodes the changed counters.
func (b *batch) finish(denials *denialCounts) Changes {
	for slot := range b.counters {
		c := &b.counters[slot]
		if c.limit == nil || c.err != nil {
			continue
		}
		b.completeEvent(c, b.ids[slot], denials)
		if c.charged { // encodeStored would not write a new lease
			b.grantLease(slot, c)
		}
		switch {
		case c.charged:
			b.changes = append(b.changes, b.encode(slot, c, &c.state))
		case c.dirty:
			b.changes = append(b.changes, b.encodeStored(slot, c))
		}
	}
	// Of some exceeded events no denial is left to report.
	b.events = slices.DeleteFunc(b.events, func(e Event) bool { return e.Type == EventExceeded && e.Denied == 0 })
	slices.SortFunc(b.newReceipts, func(x, y Receipt) int { return strings.Compare(x.ID, y.ID) })
	return Changes{Counters: b.changes, Receipts: b.newReceipts, Stale: b.staleReceipts, Events: b.events}
}

// grantLease charges ahead for later requests, if they may be leased and everything in this batch
// fitted.
func (b *batch) grantLease(slot int, c *counter) {
	bl := &b.leases[slot]
	if !bl.wanted || bl.demand == 0 || !c.limit.Leased || c.denied || c.refunded || c.voidsLeases ||
		c.state.spec != c.limit.hash() {
		return
	}
	if amount, until, since := c.state.chargeAhead(c.limit, bl.demand); amount > 0 {
		// The counter's moment is later than now if the store's clock was set back.
		until = min(until, b.now+maxLease)
		bl.newGrant = grant{amount: amount, at: c.state.counting().moment(), until: until, since: since}
	}
}

// encodeState encodes a state into the batch's buffer.
func (b *batch) encodeState(s *State) []byte {
	from := len(b.stateBuf)
	b.stateBuf = s.Append(b.stateBuf)
	return slices.Clip(b.stateBuf[from:])
}

func (b *batch) encode(slot int, c *counter, s *State) CounterChange {
	change := CounterChange{Slot: slot, State: b.encodeState(s), ExpiresAt: s.expiresAt(c.limit, b.now)}
	if c.stored == nil || c.spec != s.spec {
		change.Spec, _ = json.Marshal(c.limit.Spec()) // strings and numbers: cannot fail
	}
	return change
}
