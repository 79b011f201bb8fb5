package engine

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFloodOfKeysUsesBoundedMemory(t *testing.T) {
	t.Parallel()
	var x denialCache
	var d denialCounts
	var m localLimiter
	var held leases
	held.init()
	x.init()
	d.init()
	m.init()
	const flood = 100_000
	for i := range flood {
		l := Limit{CounterID: CounterID{Key: "flood:" + strconv.Itoa(i), Name: "1h"}, Limit: 1, Window: Window{Millis: 3_600_000, text: "1h"}}
		x.put(newCachedCounter(&l, new(State)), true, new(generations))
		d.add(&cachedCounter{ownDenials: unreported{limit: l}}, &l, 1, 1)
		m.decide(&Request{Limits: []Limit{l}, Cost: 1}, 1)
		held.add(held.shard(l.CounterID), l.CounterID)
	}
	remembered, tracked := 0, 0
	for i := range x.shards {
		remembered += len(x.shards[i].entries)
		tracked += len(held.shards[i].entries)
	}
	for name, n := range map[string]int{"exhausted": remembered, "leases": tracked, "denials": len(d.pending), "local": len(m.states)} {
		if n == 0 || n > 65536 {
			t.Errorf("%s holds %d counters after a flood of %d; want at most 65536", name, n, flood)
		}
	}
}

// TestDenialsAreCountedOnceDuringReport has two cache entries of one counter, as when it is
// cached again, count denials while they are reported.
func TestDenialsAreCountedOnceDuringReport(t *testing.T) {
	t.Parallel()
	var d denialCounts
	d.init()
	l := Limit{CounterID: CounterID{Key: "k", Name: "1h"}, Limit: 1, Window: Window{Millis: 3_600_000, text: "1h"}}
	memos := [2]cachedCounter{{ownDenials: unreported{limit: l}}, {ownDenials: unreported{limit: l}}}
	const each = 20_000
	var asking sync.WaitGroup
	for i := range 4 {
		asking.Go(func() {
			for range each {
				d.add(&memos[i%2], &l, 1, 1)
			}
		})
	}
	asked := make(chan struct{})
	go func() { asking.Wait(); close(asked) }()
	told := int64(0)
	for open := true; open; {
		select {
		case <-asked:
			open = false
		default:
		}
		n := d.take(l.CounterID)
		if n%2 == 0 { // the transaction failed, and is run again
			n = d.take(l.CounterID)
		}
		d.afterCommit(&counter{limit: &l, cachedDenials: n, exceededEvent: 0}, 1)
		told += n
	}
	if told != 4*each || len(d.pending) != 0 {
		t.Errorf("told of %d denials, with %d counters left; want %d and none", told, len(d.pending), 4*each)
	}
}

func TestStateReadBeforeInvalidationIsNotCached(t *testing.T) {
	t.Parallel()
	var x denialCache
	x.init()
	l := Limit{CounterID: CounterID{Key: "k", Name: "1h"}, Limit: 1, Window: Window{Millis: 3_600_000, text: "1h"}}
	var s State
	s.advance(&l, 1)
	s.counting().charge(1)
	s.exceededAt = 1 // or the store would tell of the denial
	read := x.generations()
	x.invalidate(Forget{Key: "k"}) // another worker's refund, after the row was read
	x.put(newCachedCounter(&l, &s), true, &read)
	deny := func() bool {
		clock := clockReading{now: 1, sent: time.Now(), received: time.Now()}
		var d denialCounts
		d.init()
		_, ok := x.deny(&Request{Limits: []Limit{l}, Cost: 1, Received: time.Now()}, &clock, &d)
		return ok
	}
	if deny() {
		t.Error("denied from a state that was read before the refund")
	}
	now := x.generations()
	x.put(newCachedCounter(&l, &s), true, &now)
	if !deny() {
		t.Error("not denied from a state that was read after it")
	}
}

// TestRefDetectsStaleEntry: a limit with a Ref is denied like one without, whatever happens to the
// entry that the Ref holds.
func TestRefDetectsStaleEntry(t *testing.T) {
	t.Parallel()
	var x denialCache
	var d denialCounts
	x.init()
	d.init()
	l := Limit{CounterID: CounterID{Key: "k", Name: "1h"}, Limit: 1, Window: Window{Millis: 3_600_000, text: "1h"}, Ref: new(Ref)}
	retry := func() int64 {
		t.Helper()
		now := time.Now()
		r := &Request{Limits: []Limit{l}, Cost: 1, Received: now}
		decision, ok := x.deny(r, &clockReading{now: 1, sent: now, received: now}, &d)
		if !ok {
			return 0
		}
		return decision.Results[0].RetryAfter
	}
	exhaust := func(at int64) {
		var s State
		s.advance(&l, at)
		s.counting().charge(1)
		s.exceededAt = 1 // or the store would tell of the denial
		now := x.generations()
		x.put(newCachedCounter(&l, &s), true, &now)
	}
	for name, forget := range map[string]func(){
		"a broadcast":       func() { x.invalidate(Forget{Key: "k"}) },
		"the store":         func() { x.invalidateOthers(&Others{IDs: []CounterID{l.CounterID}}) },
		"the store, of all": func() { x.invalidateOthers(&Others{All: true}) },
		"a charge":          func() { now := x.generations(); x.update(&counter{limit: &l}, &now) },
		"a full memory": func() {
			s := &x.shards[x.shardIndex(l.CounterID)]
			for i := 0; s.entries[l.CounterID] != nil; i++ {
				other := Limit{CounterID: CounterID{Key: "flood:" + strconv.Itoa(i)}}
				now := x.generations()
				x.put(newCachedCounter(&other, new(State)), true, &now)
			}
		},
	} {
		exhaust(1)
		for range 2 { // the second time through the Ref
			if retry() == 0 {
				t.Fatalf("%s: not denied before", name)
			}
		}
		if forget(); retry() != 0 {
			t.Errorf("%s: denied after it", name)
		}
	}
	exhaust(1)
	first := retry()
	exhaust(1_000_000)
	if second := retry(); second <= first {
		t.Errorf("retryAfter %d, and %d after it was replaced", first, second)
	}
}

// TestCachedDenialMatchesStore, to the millisecond, and is only counted for the limit that
// denied.
func TestCachedDenialMatchesStore(t *testing.T) {
	t.Parallel()
	var x denialCache
	var d denialCounts
	x.init()
	d.init()
	full, roomy := limitOf(t, FixedWindow, 5, "1m"), limitOf(t, TokenBucket, 10, "1h")
	full.Policy, full.Message, full.FirstUse = "p", "later", true
	roomy.Key, roomy.Burst = "other", 3
	states := map[CounterID]*State{}
	for _, l := range []Limit{full, roomy} {
		s := new(State)
		s.advance(&l, noon)
		s.counting().charge(5)
		s.exceededAt = noon // or the store would tell of the denial
		x.put(newCachedCounter(&l, s), true, new(generations))
		states[l.CounterID] = s
	}
	deny := func(at, cost int64, limits ...Limit) bool {
		received := time.Now()
		clock := &clockReading{now: at, sent: received, received: received}
		r := &Request{Limits: limits, Cost: cost, Received: received}
		got, denied := x.deny(r, clock, &d)
		asked, over := Request{Verb: Check, Limits: limits, Cost: cost}, []*State{}
		for i := range limits {
			s := states[limits[i].CounterID].clone()
			over = append(over, &s)
		}
		if diff := cmp.Diff(asked.decide(over, at), got); denied && diff != "" {
			t.Errorf("%d at %d (-store +memory)\n%s", cost, at, diff)
		}
		return denied
	}
	last := int64(noon + 60_000 - 3) // the store's clock may be 2 ms ahead of this
	for _, c := range []struct {
		at, cost int64
		limits   []Limit
		denied   bool
	}{
		{noon, 1, []Limit{full}, true}, {noon, 5, []Limit{full}, true}, {last, 1, []Limit{full}, true}, {last + 1, 1, []Limit{full}, false},
		{noon, 1, []Limit{full, roomy}, true}, {noon, 1, []Limit{roomy, full}, true}, {noon, 9, []Limit{roomy, full}, true}, {noon, 9, []Limit{roomy}, false},
	} {
		if denied := deny(c.at, c.cost, c.limits...); denied != c.denied {
			t.Errorf("%d at %d of %d limits: denied %v", c.cost, c.at, len(c.limits), denied)
		}
	}
	if n, other := d.take(full.CounterID), d.take(roomy.CounterID); n != 6 || other != 1 {
		t.Errorf("%d and %d denials are counted", n, other)
	}
}

// TestDenialUnderOtherDefinitionIsUnsure: the batch must be decided again in turn, with the
// requests before it.
func TestDenialUnderOtherDefinitionIsUnsure(t *testing.T) {
	t.Parallel()
	const now, latest, until = 1_000_000, 1_000_300, 1_000_325
	stored := Limit{CounterID: CounterID{"k", "n"}, Algorithm: TokenBucket, Limit: 1000, Window: Window{Millis: 1000, text: "1s"}, Threshold: -1}
	lowered := stored
	lowered.Limit = 10
	var s State
	s.advance(&stored, now)
	s.counting().charge(900)
	var d denialCounts
	d.init()
	b := newBatch()
	for _, r := range []Request{{Verb: Check, Limits: []Limit{lowered}, Cost: 1}, {Limits: []Limit{stored}, Cost: 1}} {
		b.add(&r)
	}
	b.prepare()
	snap := Snapshot{Now: now, Latest: latest, Until: until, States: [][]byte{s.Append(nil)}}
	if changes := b.decide(snap, &d, func() string { return "id" }); !changes.Unsure {
		t.Error("sure")
	}
}
