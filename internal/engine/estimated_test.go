package engine

import "testing"

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
			t.Errorf("after %d ms: holds until %d, unsure %t; want %d, %t", after, changes.Until, changes.Unsure, want.until, want.unsure)
		}
	}
	l.Window = Window{Millis: 3_600_000, text: "1h"}
	if changes, _ := decideBetween(&l, nil, Snapshot{Now: noon, Latest: noon + 3, Until: noon + 28}, 1); changes.Until != 0 || changes.Unsure {
		t.Errorf("a long window: holds until %d, unsure %t", changes.Until, changes.Unsure)
	}
}
