package engine

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// borrowed is a lease in a random history.
type borrowed struct {
	grant
	left int64
}

// lending is a history in which workers hold leases.
type lending struct {
	history
	leases []borrowed
	kept   []charged
}

// lend charges ahead, as a transaction does for a request that it allows.
func (h *lending) lend(t *rapid.T) {
	h.play(op{0, Check, 1}) // as a transaction does, bring the counter to its moment
	before := h.state.remaining(&h.limit)
	amount, until, since := h.state.chargeAhead(&h.limit, genAmount.Draw(t, "demand"))
	if amount == 0 {
		return
	}
	if amount > before/leaseFraction {
		t.Fatalf("lent %d of %d", amount, before)
	}
	if th := h.limit.Threshold; before > th && before-amount <= max(0, th) {
		t.Fatalf("lent %d of %d, past the threshold %d", amount, before, th)
	}
	h.leases = append(h.leases, borrowed{grant{amount, h.state.counting().moment(), until, since}, amount})
}

// serve takes from a lease that has not ended.
func (h *lending) serve(t *rapid.T) {
	b := h.pick(t)
	if b == nil || b.left == 0 || h.latest > b.until {
		return
	}
	cost := rapid.OneOf(rapid.Just(b.left), rapid.Int64Range(1, b.left)).Draw(t, "served")
	b.left -= cost
	h.kept = append(h.kept, charged{h.latest, cost, h.state.fixed.begin})
}

// settle gives back what is left of a lease.
func (h *lending) settle(t *rapid.T) {
	b := h.pick(t)
	if b == nil {
		return
	}
	h.play(op{0, Check, 1})
	h.state.settleLease(b.amount, b.left, b.at, b.since)
	*b = borrowed{}
}

func (h *lending) pick(t *rapid.T) *borrowed {
	if len(h.leases) == 0 {
		return nil
	}
	return &h.leases[rapid.IntRange(0, len(h.leases)-1).Draw(t, "lease")]
}

// brisk makes most limits refill or roll over within the time of a lease or two.
func (h *lending) brisk(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "brisk") > 0 && h.limit.Window.Period == 0 {
		h.limit.Limit = rapid.Int64Range(8, 200).Draw(t, "brisk limit")
		h.limit.Burst = min(h.limit.Burst, 20)
		h.limit.Window, _ = ParseWindow(rapid.SampledFrom([]string{"900ms", "2s", "7s", "1m"}).Draw(t, "brisk window"))
	}
	h.limit.Threshold = rapid.SampledFrom([]int64{-1, 0, h.limit.Limit / 10}).Draw(t, "threshold")
}

// pass lets some of a lease's time pass, or what the request says.
func (h *lending) pass(t *rapid.T, o op) {
	after := rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(0, 30), rapid.Int64Range(0, maxLease/2),
		rapid.Int64Range(0, maxLease+graceOf(h.limit.Algorithm)+50), rapid.Just(o.after)).Draw(t, "pass")
	h.play(op{after, Check, 1})
}

// step plays a request, or something that happens to a lease.
func (h *lending) step(t *rapid.T, o op) {
	h.pass(t, o)
	switch rapid.SampledFrom([]string{"lend", "serve", "settle", "take all", "ask"}).Draw(t, "step") {
	case "lend":
		h.lend(t)
	case "serve":
		h.serve(t)
	case "settle":
		h.settle(t)
	case "take all":
		if left := h.ask(Check, 1).Remaining; left > 0 && left <= MaxAmount {
			h.ask(Consume, left)
			h.kept = append(h.kept, charged{h.latest, left, h.state.fixed.begin})
		}
	default:
		if o.verb == Refund {
			giveBack(t, &h.history, h.kept, o.cost)
		} else if h.ask(o.verb, o.cost).Allowed {
			h.kept = append(h.kept, charged{h.latest, o.cost, h.state.fixed.begin})
		}
	}
}

// Invariant 1 with leases: what is charged directly and what is served from leases, until their last millisecond, keep
// the law together, whether leases are given back, late, or never.
func TestLeasesAdmitNoMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	for name, verbs := range map[string][]Verb{"consume": {Consume}, "refund": {Consume, Consume, Refund}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, a Algorithm) {
				check(t, cases/4, func(t *rapid.T) {
					h := &lending{history: begin(t, a)}
					h.brisk(t)
					for _, o := range genOps(h.limit, 24, verbs...).Draw(t, "ops") {
						h.step(t, o)
						if !keptLaw(h.limit, h.kept) {
							t.Fatalf("%+v admitted %v with leases %+v", h.limit.Spec(), h.kept, h.leases)
						}
					}
				})
			})
		})
	}
}

// If a lease is given back whole, without time or other requests in between, nothing has changed.
func TestUnusedLeaseGivenBackLeavesNoTrace(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, cases/10, func(t *rapid.T) {
			h := &lending{history: begin(t, a)}
			for _, o := range genOps(h.limit, 8, Consume).Draw(t, "ops") {
				h.play(o)
			}
			h.play(op{0, Check, 1})
			before := string(h.state.Append(nil))
			h.lend(t)
			if len(h.leases) == 0 {
				return
			}
			if string(h.state.Append(nil)) == before {
				t.Fatal("a lease charged nothing")
			}
			h.settle(t)
			if after := string(h.state.Append(nil)); after != before {
				t.Fatalf("before %x, after %x", before, after)
			}
		})
	})
}

// A lease of a counter that was reset is not given back to the counter that came after it.
func TestALeaseOfAResetCounterGivesNothingBack(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, a Algorithm) {
		check(t, 1000, func(t *rapid.T) {
			h := &lending{history: begin(t, a)}
			h.play(op{0, Consume, max(1, h.limit.Limit/2)})
			h.lend(t)
			h.state = State{}
			h.now += rapid.Int64Range(1, 50).Draw(t, "later")
			h.play(op{0, Consume, max(1, h.limit.Limit/2)})
			h.leases = append(h.leases, borrowed{})
			h.lend(t)
			used := h.state.counting().used()
			b := h.leases[0]
			if h.state.settleLease(b.amount, b.left, b.at, b.since); h.state.counting().used() < used {
				t.Fatalf("%d used before, %d after", used, h.state.counting().used())
			}
		})
	})
}

// TestALeaseIsGivenBackToItsGeneration, and to no other: if that is gone the counter was reset.
func TestALeaseIsGivenBackToItsGeneration(t *testing.T) {
	t.Parallel()
	var l lent
	const generation = maxLease + leaseGrace
	older := l.add(1, 0, generation, leaseGrace)
	newer := l.add(1, generation+1, 2*generation, leaseGrace)
	if l.generationOf(older) != &l.older || l.generationOf(newer) != &l.newer || l.generationOf(older+1) != nil {
		t.Errorf("%+v", l)
	}
}

// A bucket that would refill what was really used in 800 ms is leased for no longer than that,
// grace included, however much is lent already.
func TestOpenLeasesDoNotProlongBucketLeases(t *testing.T) {
	t.Parallel()
	const now = 1_700_000_000_000
	window, err := ParseWindow("2s")
	if err != nil {
		t.Fatal(err)
	}
	h := history{limit: Limit{CounterID: CounterID{"k", "n"}, Algorithm: TokenBucket, Limit: 100, Window: window, Threshold: -1}, now: now}
	h.ask(Consume, 40)
	for range 5 {
		amount, until, _ := h.state.chargeAhead(&h.limit, 100)
		if amount == 0 {
			t.Fatal("no lease")
		}
		if last := until + bucketGrace; last > now+800 {
			t.Fatalf("%d lent until %d ms, with its grace; the bucket is full at 800", h.state.lent.amount(), last-now)
		}
	}
}

// A counter that is leased all the time, by workers that die and give nothing back, must not seem
// to have ever more lent: its state could not be decoded, and nothing could be refunded.
func TestOpenLeasesNeverExceedUsage(t *testing.T) {
	t.Parallel()
	window, err := ParseWindow("1s")
	if err != nil {
		t.Fatal(err)
	}
	each(t, func(t *testing.T, a Algorithm) {
		h := history{limit: Limit{CounterID: CounterID{"k", "n"}, Algorithm: a, Limit: MaxAmount, Window: window, Threshold: -1}, now: 1_700_000_000_000}
		for range 100 {
			h.now += 400
			h.ask(Consume, 1)
			h.state.chargeAhead(&h.limit, MaxAmount)
			if lent, used := h.state.lent.amount(), h.state.counting().used(); lent > used {
				t.Fatalf("%d lent, %d used", lent, used)
			}
			if err := new(State).Decode(h.state.Append(nil)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A worker that died holds its lease for no longer than others do, though the counter is leased on:
// then what it lost can be refunded.
func TestLeaseOfDeadWorkerEnds(t *testing.T) {
	t.Parallel()
	window, err := ParseWindow("1h")
	if err != nil {
		t.Fatal(err)
	}
	each(t, func(t *testing.T, a Algorithm) {
		l := Limit{CounterID: CounterID{"k", "n"}, Algorithm: a, Limit: MaxAmount, Window: window, Threshold: -1}
		h := lending{history: history{limit: l, now: 1_700_000_040_000}}
		h.ask(Consume, 1000)
		h.state.chargeAhead(&h.limit, 500)
		var live borrowed
		const step = 400
		for range 2*(maxLease+graceOf(a))/step + 10 {
			h.now += step
			h.play(op{0, Check, 1})
			if live.amount > 0 && !h.state.settleLease(live.amount, live.left, live.at, live.since) {
				t.Fatalf("%+v is not known, of %+v", live, h.state.lent)
			}
			amount, until, since := h.state.chargeAhead(&h.limit, 100)
			live = borrowed{grant{amount, h.state.counting().moment(), until, since}, amount}
			stored(t, &h.state)
		}
		if lent := h.state.lent.amount(); lent != live.amount {
			t.Errorf("%d lent after two generations, want the %d of the last lease", lent, live.amount)
		}
	})
}

// A sweep may find the engine closed, and another goroutine return all leases before the sweep
// reports that it failed.
func TestCloseGivesBackWhatSweepCouldNot(t *testing.T) {
	t.Parallel()
	var x leases
	x.init()
	id := CounterID{"k", "n"}
	now := time.Now()
	clock := clockReading{now: 200, sent: now, received: now}
	hold(&x, id, grant{amount: 5, until: 100}, &clock)
	if rs := x.takeExpired(now, &clock, false); len(rs) != 1 {
		t.Fatalf("%d requests to settle a lease that is over", len(rs))
	}
	if rs := x.takeExpired(now, &clock, false); len(rs) != 0 {
		t.Errorf("%d requests while one is on its way", len(rs))
	}
	x.settleFailed(&Request{Limits: []Limit{{CounterID: id}, {CounterID: CounterID{"k", "not leased any more"}}}})
	if rs := x.takeExpired(now, &clock, false); len(rs) != 1 {
		t.Errorf("%d requests after that one failed, want another", len(rs))
	}
	if rs := x.takeExpired(now, &clock, true); len(rs) != 1 {
		t.Errorf("%d requests when the worker goes, want 1", len(rs))
	}
}

// hold has the worker hold a lease, at which the next sweep looks.
func hold(x *leases, id CounterID, g grant, clock *clockReading) {
	e := x.add(x.shard(id), id)
	e.grant, e.tokens, e.clock = g, g.amount, clock
	e.lookFrom(0)
}

// TestEverySweepLooksAtALeaseThatEndsSoon, also one that comes a little early: a later one would give it back later.
func TestEverySweepLooksAtALeaseThatEndsSoon(t *testing.T) {
	t.Parallel()
	var x leases
	x.init()
	now := time.Now()
	clock := clockReading{sent: now, received: now}
	hold(&x, CounterID{"k", "n"}, grant{amount: 5, until: maxLease}, &clock)
	end := now.Add(maxLease * time.Millisecond)
	for _, c := range []struct {
		at   time.Duration
		want int
	}{{-sweepEvery / 2, 0}, {sweepEvery/2 - time.Millisecond, 1}} {
		if rs := x.takeExpired(end.Add(c.at), &clock, false); len(rs) != c.want {
			t.Errorf("%d requests to settle it %s after its end", len(rs), c.at)
		}
	}
}

// A lease is not given back when it is too late for that.
func TestLongEndedLeaseIsNotGivenBack(t *testing.T) {
	t.Parallel()
	id := CounterID{"k", "n"}
	const end = leaseGrace + 100
	for at, want := range map[int64]int{end - 2: 1, end - 1: 0} { // latest adds 2 ms
		var x leases
		x.init()
		now := time.Now()
		clock := clockReading{now: at, sent: now, received: now}
		hold(&x, id, grant{amount: 5, until: end - leaseGrace}, &clock)
		rs := x.takeExpired(now, &clock, false)
		if e := x.shard(id).entries[id]; len(rs) != want || (e.amount > 0) != (want > 0) || (e.tokens > 0) != (want > 0) {
			t.Errorf("at %d: %d requests, and the lease is of %d with %d left", at, len(rs), e.amount, e.tokens)
		}
	}
}

// An idle counter takes no memory, but one with a lease is kept until that is settled.
func TestIdleDemandIsForgotten(t *testing.T) {
	t.Parallel()
	var x leases
	x.init()
	now := time.Now()
	clock := clockReading{sent: now, received: now}
	idle, lent := CounterID{"idle", "n"}, CounterID{"lent", "n"}
	x.add(x.shard(idle), idle).lookFrom(now.Sub(x.began) + idleFor)
	ref := new(Ref)
	_, e := x.lockAndFind(ref, idle)
	e.shard.mu.Unlock()
	hold(&x, lent, grant{amount: 5, until: 1000}, &clock)
	for _, after := range []time.Duration{0, idleFor - 1} {
		x.takeExpired(now.Add(after), &clock, false)
	}
	if x.shard(idle).entries[idle] == nil || x.count.Load() != 2 {
		t.Errorf("forgotten too soon; %d counters are known", x.count.Load())
	}
	x.takeExpired(now.Add(idleFor), &clock, false)
	if x.shard(idle).entries[idle] != nil || x.shard(lent).entries[lent] == nil || x.count.Load() != 1 {
		t.Errorf("after %s %d counters are known", idleFor, x.count.Load())
	}
	s, again := x.lockAndFind(ref, idle)
	s.mu.Unlock()
	if again != nil {
		t.Error("who names it by its reference still finds it")
	}
}

// A batch is gathered while requests arrive, so a request may be later than its beginning.
func TestEndedLeaseServesNoLaterRequest(t *testing.T) {
	t.Parallel()
	var e Engine
	e.leases.init()
	now := time.Now()
	clock := clockReading{sent: now, received: now}
	e.clock.Store(&clock)
	l := Limit{CounterID: CounterID{"k", "n"}, Limit: 100, Window: Window{Millis: 1000, text: "1s"}, Leased: true}
	hold(&e.leases, l.CounterID, grant{amount: 5, until: 100}, &clock)
	e.leases.lookup(&l).limit = l
	w := &writer{e: &e, now: now}
	for after, want := range map[time.Duration]bool{0: true, 200 * time.Millisecond: false} {
		if got := w.serve(&Request{Cost: 1, Limits: []Limit{l}, Received: now.Add(after)}); got != want {
			t.Errorf("served %v after the batch began: %t", after, got)
		}
	}
}

// Demand from before the clock was set back does not add up with the demand until it has caught up.
func TestDemandRestartsWhenClockStepsBack(t *testing.T) {
	t.Parallel()
	const hour = 3_600_000
	var d demand
	d.add(2*hour, 1)
	now := int64(hour)
	for range 1000 {
		now += 10
		d.add(now, 1)
	}
	if got := d.recent(now); got > 26 {
		t.Errorf("%d asked for in the last 250 ms, at 100 a second", got)
	}
}

func TestACounterDoesNotExpireBeforeItsNextEventIsDue(t *testing.T) {
	t.Parallel()
	l := Limit{CounterID: CounterID{"k", "n"}, Limit: 1, Window: Window{Millis: 1000, text: "1s"}}
	const now = 57_500
	var s State
	s.advance(&l, now)
	s.counting().charge(1)
	s.exceededAt = now
	if at := s.expiresAt(&l, now); at < now+exceededInterval {
		t.Errorf("expires at %d, and was told of at %d", at, s.exceededAt)
	}
	s.exceededAt, s.denied = 0, 3
	if at := s.expiresAt(&l, now); at < now+exceededInterval {
		t.Errorf("expires at %d with denials to tell", at)
	}
}

// A lease ends with the last millisecond of its fixed window, or of its sub-bucket. What is served counts as charged when it
// began: in the next one it would not count, or leave too early.
func TestALeaseEndsWithItsWindow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		algorithm Algorithm
		end       int64
	}{{FixedWindow, noon + 60_000}, {SlidingWindow, noon + 1_000}} {
		for _, left := range []int64{100, minLease + 1, minLease} {
			h := history{limit: limitOf(t, c.algorithm, 1000, "1m"), now: c.end - left}
			h.ask(Check, 1)
			amount, until, _ := h.state.chargeAhead(&h.limit, 10)
			if left > minLease && (amount != 10 || until != c.end-1) {
				t.Errorf("%s: leased %d ms before the end: %d until %d ms before", c.algorithm, left, amount, c.end-until)
			}
			if left <= minLease && amount != 0 {
				t.Errorf("%s: leased %d with %d ms left", c.algorithm, amount, left)
			}
		}
	}
}
