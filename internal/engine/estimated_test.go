package engine

import (
	"testing"

	"pgregory.net/rapid"
)

// A decision ahead of the turn is made at an estimated time: between a first, now, and a last
// moment, until.

// decideBetween decides consumes of a counter, one request for each cost.
func decideBetween(l *Limit, state []byte, snap Snapshot, costs ...int64) (Changes, []*Request) {
	var d denialCounts
	d.init()
	b := newBatch()
	for _, cost := range costs {
		b.add(&Request{Limits: []Limit{*l}, Cost: cost})
	}
	b.prepare()
	snap.States = [][]byte{state}
	return b.decide(snap, &d, func() string { return "id" }), b.requests
}

// TestBucketAtEstimatedTimeNeverOverAdmits: a bucket that is full by the last moment may be charged
// at any moment before, and may have refilled since. What a lease gives back later changes nothing of that.
func TestBucketAtEstimatedTimeNeverOverAdmits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := Limit{CounterID: CounterID{"k", "n"}, Algorithm: TokenBucket, Threshold: -1,
			Limit: rapid.Int64Range(1, 2000).Draw(t, "limit"), Burst: rapid.Int64Range(0, 100).Draw(t, "burst"),
			Window: Window{Millis: rapid.Int64Range(1000, 60_000).Draw(t, "window"), text: "w"}}
		var s State
		s.advance(&l, noon)
		want := rapid.Int64Range(0, 20).Draw(t, "want")
		refilled := l.Limit * rapid.Int64Range(0, 600).Draw(t, "refilled for") / l.Window.Millis // by the end of the lease
		s.counting().charge(min(l.capacity(), want+refilled+rapid.Int64Range(0, 3).Draw(t, "more used")))
		lent, _, since := s.chargeAhead(&l, want)
		now := max(noon, s.lent.until()+rapid.Int64Range(-100, 20).Draw(t, "now"))
		until := now + rapid.Int64Range(1, 60).Draw(t, "until")
		at := rapid.Int64Range(now, until).Draw(t, "at")
		costs := rapid.SliceOfN(rapid.Int64Range(1, l.capacity()), 1, 3).Draw(t, "costs")

		changes, requests := decideBetween(&l, s.Append(nil), Snapshot{Now: now, Latest: now, Until: until}, costs...)
		if changes.Unsure {
			return // of a denial
		}
		for i, r := range requests {
			s.advance(&l, at)
			if s.remaining(&l) < costs[i] {
				t.Fatalf("allowed %d, and %d fit at %d", costs[i], s.remaining(&l), at)
			}
			s.counting().charge(costs[i])
			if got, most := r.decision.Results[0].Remaining, s.remaining(&l); got > most {
				t.Errorf("said that %d remain, and %d do", got, most)
			}
		}
		var written State
		if err := written.Decode(changes.Counters[0].State); err != nil {
			t.Fatal(err)
		}
		later := until + rapid.Int64Range(0, 500).Draw(t, "later")
		unused := rapid.Int64Range(0, lent).Draw(t, "unused")
		for _, state := range []*State{&s, &written} {
			state.advance(&l, later)
			if lent > 0 {
				state.settleLease(lent, unused, noon, since)
			}
		}
		if got, most := written.remaining(&l), s.remaining(&l); got > most {
			t.Errorf("%d remain at %d, and %d do if it was charged at %d", got, later, most, at)
		}
	})
}

// TestBucketThatIsFullSoonNeedsNoTurn, unless it denies.
func TestBucketThatIsFullSoonNeedsNoTurn(t *testing.T) {
	t.Parallel()
	l := Limit{CounterID: CounterID{"k", "n"}, Algorithm: TokenBucket, Limit: 1000, Threshold: -1,
		Window: Window{Millis: 1000, text: "1s"}}
	var s State
	s.advance(&l, noon)
	s.counting().charge(20)
	for cost, unsure := range map[int64]bool{980: false, 981: true} {
		changes, requests := decideBetween(&l, s.Append(nil), Snapshot{Now: noon, Latest: noon + 1, Until: noon + 26}, cost)
		if changes.Unsure != unsure {
			t.Errorf("unsure of a cost of %d: %t", cost, changes.Unsure)
		}
		if left := requests[0].decision.Results[0].Remaining; !unsure && left != 0 {
			t.Errorf("%d remain of 980", left)
		}
	}
}

// TestCachedBucketHasWhatCameDuringItsDecision: its denials are described later.
func TestCachedBucketHasWhatCameDuringItsDecision(t *testing.T) {
	t.Parallel()
	l := Limit{Algorithm: TokenBucket, Limit: 1000, Window: Window{Millis: 1000, text: "1s"}}
	var s State
	s.advance(&l, noon)
	s.counting().charge(20)
	s.until = noon + 26
	s.advance(&l, noon)
	s.counting().charge(980)
	cached := newCachedCounter(&l, &s).state
	if cached.advance(&l, noon+26); cached.remaining(&l) != 20 {
		t.Errorf("%d remain, want 20", cached.remaining(&l))
	}
}

// TestDecisionHoldsUntilItsSubBucketEnds: one of a sliding window of a second lasts 17 ms.
func TestDecisionHoldsUntilItsSubBucketEnds(t *testing.T) {
	t.Parallel()
	l := Limit{CounterID: CounterID{"k", "n"}, Limit: 1000, Window: Window{Millis: 1020, text: "1020ms"}, Threshold: -1}
	const begin = noon / 17 * 17
	for after, want := range map[int64]struct {
		until  int64
		unsure bool
	}{0: {begin + 16, false}, 13: {begin + 16, false}, 14: {begin + 16, true}} {
		now := begin + after
		changes, _ := decideBetween(&l, nil, Snapshot{Now: now, Latest: now + 3, Until: now + 28}, 1)
		if changes.Until != want.until || changes.Unsure != want.unsure {
			t.Errorf("after %d ms: holds until %d, unsure %t; want %+v", after, changes.Until, changes.Unsure, want)
		}
	}
	l.Window = Window{Millis: 3_600_000, text: "1h"}
	changes, _ := decideBetween(&l, nil, Snapshot{Now: noon, Latest: noon + 3, Until: noon + 28}, 1)
	if changes.Until != 0 || changes.Unsure {
		t.Errorf("a long window: holds until %d, unsure %t", changes.Until, changes.Unsure)
	}
}
