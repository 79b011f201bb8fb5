package engine

import (
	"testing"
	"time"
)

// TestALeaseDoesNotReachTheWarning: the request that crosses the threshold raises an event, so the store decides it. Below the
// threshold leases are as anywhere.
func TestALeaseDoesNotReachTheWarning(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		for remaining, want := range map[int64]int64{200: 25, 120: 15, 112: 11, 102: 1, 101: 0, 100: 12, 80: 10} {
			h := history{limit: limitOf(t, a, 1000, "1h"), now: noon}
			h.limit.Threshold = 100
			h.ask(Consume, 1000-remaining)
			if amount, _, _ := h.state.chargeAhead(&h.limit, 1000); amount != want {
				t.Errorf("%d lent of %d, and the warning is at 100; want %d", amount, remaining, want)
			} else if amount == 0 && h.state.lent != (lent{}) {
				t.Errorf("nothing is lent, and counts as %+v", h.state.lent)
			}
		}
	})
}

// TestALeaseIsGivenBackWithinItsGrace, its last millisecond included, and not later.
func TestALeaseIsGivenBackWithinItsGrace(t *testing.T) {
	t.Parallel()
	for a, grace := range map[Algorithm]int64{SlidingWindow: 10_000, FixedWindow: 10_000, TokenBucket: 500} {
		for _, after := range []int64{0, 1} {
			h := history{limit: limitOf(t, a, 1_000_000, "1h"), now: noon}
			h.ask(Consume, 100_000)
			amount, until, since := h.state.chargeAhead(&h.limit, 1000)
			h.now = until + grace + after
			h.ask(Check, 1)
			used := h.state.counting().used()
			known := h.state.settleLease(amount, amount, noon, since)
			if back := used - h.state.counting().used(); known != (after == 0) || known && back != amount || !known && back != 0 {
				t.Errorf("%s: %d of %d given back %d ms after its grace; known: %t", a, back, amount, after, known)
			}
		}
	}
}

// TestARefundLeavesWhatIsLent in either generation, though it asks for all that is used, and so does a settle. Of a bucket it
// also leaves what is refilled before the last of the leases is over: otherwise the bucket would be full by then, and what is
// lent refilled too.
func TestARefundLeavesWhatIsLent(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		const charged = 10_000_000
		refund := func(s *State) { s.refund(s.counting().used()) }
		settle := func(s *State) { s.refundCharge(charged, charged, noon) }
		testGivingBackLeavesWhatIsLent(t, a, charged, refund, settle)
		testGivingBackLeavesWhatIsLent(t, a, charged, settle, refund)
	})
}

func testGivingBackLeavesWhatIsLent(t *testing.T, a Algorithm, charged int64, giveBack, again func(*State)) {
	h := history{limit: limitOf(t, a, 36_000_001, "1h"), now: noon} // refills 10 in a millisecond, and a little
	h.ask(Consume, charged)
	lent := int64(0)
	generation := maxLease + graceOf(a)
	for _, at := range []int64{0, generation - 100, generation + 1} {
		h.now = noon + at
		h.ask(Check, 1)
		amount, _, _ := h.state.chargeAhead(&h.limit, 1000)
		if lent += amount; amount != 1000 {
			t.Fatalf("%s: %d lent after %d ms", a, amount, at)
		}
	}
	if h.state.lent.older.amount == 0 {
		t.Fatalf("one generation: %+v", h.state.lent)
	}
	end := h.state.lent.until()
	if want := h.now + generation; end != want {
		t.Errorf("%s: the last lease ends %d ms after %d", a, end-want, want)
	}
	giveBack(&h.state)
	left := h.state.usage()
	if again(&h.state); h.state.usage() != left {
		t.Errorf("%s: %+v used when all is given back once more, and %+v before", a, h.state.usage(), left)
	}
	if used := h.state.counting().used(); a != TokenBucket && used != lent {
		t.Errorf("%s: %d used after all was given back, and %d are lent", a, used, lent)
	}
	if a == TokenBucket {
		h.now = end
		h.ask(Check, 1)
		if used := h.state.counting().used(); used < lent || used > lent+2 {
			t.Errorf("%d used when the leases are over, and %d are lent", used, lent)
		}
	}
}

// TestLoansThatEndLeaveNothing: neither their end nor their beginning counts for the next ones.
func TestLoansThatEndLeaveNothing(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*lent){
		"left the window": func(l *lent) { l.trim(noon, 0) },
		"over":            func(l *lent) { l.trim(noon+101, 5) },
	} {
		var l lent
		l.add(5, noon, noon+100, leaseGrace)
		if end(&l); l != (lent{}) {
			t.Errorf("%s: %+v is left", name, l)
		}
	}
}

// TestTheOlderLoansMayEndLast, as those of a bucket: the newer are empty only if both are, and what is stored is read as it was.
func TestTheOlderLoansMayEndLast(t *testing.T) {
	t.Parallel()
	const later = noon + maxLease + bucketGrace + 1
	var l lent
	l.add(5, noon, later+300, bucketGrace)
	l.add(7, later, later+100, bucketGrace)
	l.trim(later+100, 100)
	if l.older.amount != 5 || l.newer.amount != 7 {
		t.Fatalf("in their last millisecond: %+v", l)
	}
	l.trim(later+101, 100)
	if l.newer != (loans{5, later + 300, noon}) || l.older != (loans{}) {
		t.Errorf("after the newer are over: %+v", l)
	}
	var back lent
	if back.decode(&decoder{b: l.append(nil)}); back != l {
		t.Errorf("%+v is stored as %+v", l, back)
	}
}

// TestTheLastLeaseEndsAGeneration, whichever began last.
func TestTheLastLeaseEndsAGeneration(t *testing.T) {
	t.Parallel()
	var l lent
	l.add(1, noon, noon+100, leaseGrace)
	l.add(1, noon+10, noon+50, leaseGrace)
	if l.until() != noon+100 || l.amount() != 2 {
		t.Errorf("%+v", l)
	}
	if l.add(1, noon+20, noon+200, leaseGrace); l.until() != noon+200 || l.amount() != 3 {
		t.Errorf("%+v", l)
	}
}

// TestALeaseGivesBackNoMoreThanStillCounts: a higher limit refills what is lent before its lease is over, and what was charged
// since is another's.
func TestALeaseGivesBackNoMoreThanStillCounts(t *testing.T) {
	t.Parallel()
	h := history{limit: limitOf(t, TokenBucket, 1000, "1s"), now: noon}
	h.ask(Consume, 900)
	amount, _, since := h.state.chargeAhead(&h.limit, 12)
	h.limit.Limit = 2000
	h.now += 453
	if used := h.ask(Check, 1).Used; amount != 12 || used != 6 {
		t.Fatalf("%d lent, %d used", amount, used)
	}
	h.ask(Consume, 100)
	if !h.state.settleLease(amount, amount, noon, since) || h.state.counting().used() != 100 {
		t.Errorf("%d used, and 100 were charged since", h.state.counting().used())
	}
	if h.state.lent != (lent{}) {
		t.Errorf("%+v is left", h.state.lent)
	}
}

// TestARefundChargesNothing, even if all that is used is lent, or will be refilled before the lease is over.
func TestARefundChargesNothing(t *testing.T) {
	t.Parallel()
	h := history{limit: limitOf(t, TokenBucket, 1000, "1s"), now: noon}
	h.ask(Consume, 900)
	h.state.chargeAhead(&h.limit, 12)
	for range 2 {
		if used := h.ask(Refund, 900).Used; used != 912 {
			t.Errorf("%d used after a refund of what is needed until the lease is over; 912 were", used)
		}
	}
}

// TestOlderLoansStayLentWhenTheNewerAreGivenBack: they are the newer then.
func TestOlderLoansStayLentWhenTheNewerAreGivenBack(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		h := history{limit: limitOf(t, a, 1_000_000, "1h"), now: noon}
		h.ask(Consume, 100_000)
		var amount, since int64
		for _, after := range []int64{0, maxLease + graceOf(a) - 1, 2} {
			h.now += after
			h.ask(Check, 1)
			amount, _, since = h.state.chargeAhead(&h.limit, 1000)
		}
		older := h.state.lent.older
		if !h.state.settleLease(amount, amount, h.now, since) || older.amount != 2000 || h.state.lent != (lent{newer: older}) {
			t.Errorf("%s: of %+v is left %+v", a, older, h.state.lent)
		}
	})
}

// servedLease is a lease of that many tokens, of a counter that may be served.
func servedLease(e *Engine, l Limit, tokens int64) *lease {
	now := time.Now()
	clock := clockReading{sent: now, received: now}
	e.leases.init()
	e.clock.Store(&clock)
	home := e.leases.shard(l.CounterID)
	of := e.leases.add(home, l.CounterID)
	of.limit, of.grant, of.tokens, of.clock = l, grant{amount: tokens, until: 60_000}, tokens, &clock
	return of
}

// TestALeaseIsRenewedOnceItIsSpent: as soon as it has less than a third besides a request like the last, and once, however many
// it serves after that.
func TestALeaseIsRenewedOnceItIsSpent(t *testing.T) {
	t.Parallel()
	var e Engine
	l := limitOf(t, SlidingWindow, 1000, "1h")
	l.Leased = true
	of := servedLease(&e, l, 10)
	for i, c := range []struct{ cost, spent int64 }{{3, 0}, {1, 0}, {3, 1}, {2, 1}, {1, 1}} {
		_, ok := e.leases.serve(&Request{Limits: []Limit{l}, Cost: c.cost}, time.Now(), e.clock.Load())
		if !ok || int64(len(e.leases.spent)) != c.spent {
			t.Errorf("request %d: served: %t, and %d leases are spent, with %d left", i, ok, len(e.leases.spent), of.tokens)
		}
	}
	b := newBatch()
	if e.leases.addRenewals(b, 10); len(b.renewal.Limits) != 1 || len(b.requests) != 1 {
		t.Errorf("%d renewed", len(b.renewal.Limits))
	}
	if e.leases.addRenewals(newBatch(), 10); len(e.leases.spent) != 0 {
		t.Error("it is still spent")
	}
}

// TestOnlyALeaseThatIsHeldIsRenewed: another is settled already, or about to be.
func TestOnlyALeaseThatIsHeldIsRenewed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(of *lease)
		want   int
	}{
		"held":                   {func(*lease) {}, 1},
		"in another batch":       {func(of *lease) { of.grant = grant{} }, 0},
		"ended":                  {func(of *lease) { of.end() }, 0},
		"about to be given back": {func(of *lease) { of.queued = true }, 0},
	} {
		var e Engine
		of := servedLease(&e, limitOf(t, SlidingWindow, 1000, "1h"), 0)
		of.amount, of.spent = 10, true
		e.leases.noteSpent(of)
		c.change(of)
		b := newBatch()
		if e.leases.addRenewals(b, 10); len(b.requests) != c.want || of.spent {
			t.Errorf("%s: %d renewed, and it is spent: %t", name, len(b.requests), of.spent)
		}
	}
}

// TestABatchRenewsSomeLeases, and the next one others: what it has to read is bounded.
func TestABatchRenewsSomeLeases(t *testing.T) {
	t.Parallel()
	var x leases
	for range 5 {
		x.noteSpent(new(lease))
	}
	for i, want := range []int{2, 2, 1, 0} {
		if n := len(x.takeSpent(2)); n != want {
			t.Errorf("batch %d takes %d, want %d", i, n, want)
		}
	}
}

// TestOnlyCountersThatMayBeLeasedAreTracked: others would take memory for nothing.
func TestOnlyCountersThatMayBeLeasedAreTracked(t *testing.T) {
	t.Parallel()
	var e Engine
	l := limitOf(t, SlidingWindow, 1000, "1h")
	l.Leased = true
	servedLease(&e, l, 10)
	exact, other := l, l
	exact.Key, exact.Leased, other.Key = "exact", false, "other"
	b := newBatch()
	b.add(&Request{Limits: []Limit{exact}, Cost: 1})
	b.add(&Request{Verb: Check, Limits: []Limit{other}, Cost: 1})
	b.prepare()
	if e.leases.takeForBatch(b, 0); e.leases.count.Load() != 1 {
		t.Errorf("%d counters are tracked, want the one that is leased", e.leases.count.Load())
	}
	b.clear()
	b.add(&Request{Limits: []Limit{other}, Cost: 1})
	b.prepare()
	if e.leases.takeForBatch(b, 0); e.leases.count.Load() != 2 {
		t.Errorf("%d counters are tracked, want that one and what was asked for", e.leases.count.Load())
	}
}

// TestALeaseThatEndsDuringItsTransactionIsOnlyGivenBack: what it was granted over has changed. The next one may be served.
func TestALeaseThatEndsDuringItsTransactionIsOnlyGivenBack(t *testing.T) {
	t.Parallel()
	var e Engine
	l := limitOf(t, SlidingWindow, 1000, "1h")
	l.Leased = true
	servedLease(&e, l, 10)
	clock := e.clock.Load()
	for _, during := range []bool{true, false} {
		b := newBatch()
		b.add(&Request{Limits: []Limit{l}, Cost: 1})
		b.prepare()
		e.leases.takeForBatch(b, 0)
		if during {
			e.leases.endFor(Forget{Key: l.Key})
		}
		var s State
		s.advance(&l, 0)
		b.counters, b.clock = []counter{{state: s, limit: &l}}, clock
		b.leases[0].newGrant = grant{amount: 5, until: 60_000}
		e.leases.install(b)
		_, served := e.leases.serve(&Request{Limits: []Limit{l}, Cost: 1}, time.Now(), clock)
		if rs := e.leases.takeExpired(time.Now(), clock, false); served == during || (len(rs) > 0) != during {
			t.Errorf("ended during its transaction: %t, served: %t, and %d requests give it back", during, served, len(rs))
		}
	}
}

// TestOneRequestGivesBackSomeLeases: a batch with all of them would take too long.
func TestOneRequestGivesBackSomeLeases(t *testing.T) {
	t.Parallel()
	var rs []*Request
	for range 130 {
		rs = appendLimit(rs, returnLeases, &Limit{})
	}
	if len(rs) != 3 || len(rs[0].Limits) != 64 || len(rs[1].Limits) != 64 || len(rs[2].Limits) != 2 {
		t.Errorf("%d requests", len(rs))
	}
}

// TestDemandOfLongAgoDoesNotCount, though nobody has asked for it since.
func TestDemandOfLongAgoDoesNotCount(t *testing.T) {
	t.Parallel()
	var d demand
	d.add(0, 100)
	d.add(5*demandSpan, 3)
	if got := d.recent(5 * demandSpan); got != 3 {
		t.Errorf("%d asked for, want the last 3", got)
	}
}
