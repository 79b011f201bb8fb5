package engine

import (
	"errors"
	"testing"
)

// TestAChargeCountsUntilItsCounterIsAnother: neither reset nor redefined since.
func TestAChargeCountsUntilItsCounterIsAnother(t *testing.T) {
	t.Parallel()
	l := limitOf(t, SlidingWindow, 10, "1m")
	for name, c := range map[string]struct {
		charge reservedLimit
		since  int64
		spec   uint64
		want   bool
	}{
		"the same":                              {reservedLimit{At: 7, Since: 5}, 5, l.hash(), true},
		"reset":                                 {reservedLimit{At: 7, Since: 5}, 6, l.hash(), false},
		"another amount":                        {reservedLimit{At: 7, Since: 5}, 5, 1, true},
		"an older release, the same":            {reservedLimit{At: 7}, 7, l.hash(), true},
		"an older release, reset":               {reservedLimit{At: 7}, 8, l.hash(), false},
		"an older release, another amount":      {reservedLimit{At: 7}, 7, 1, false},
		"an older release, which wrote it last": {reservedLimit{At: 7}, 0, l.hash(), true},
	} {
		if got := c.charge.stillCounts(&State{spec: c.spec, since: c.since}, &l); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestASettleKnowsWhoseReceiptItFinds, of those of settles of consumes that had the same id.
func TestASettleKnowsWhoseReceiptItFinds(t *testing.T) {
	t.Parallel()
	settle := &Request{Verb: Settle, ID: settleID("job"), consumeExpiry: 1000}
	for answer, other := range map[string]bool{`{"life":1000}`: false, `{"life":999}`: true, `{}`: false} {
		if got := (&Receipt{Answer: []byte(answer)}).forOtherConsume(settle); got != other {
			t.Errorf("%s is of another consume: %v", answer, got)
		}
	}
	b := &batch{consumeIDs: []string{"job"}}
	for name, c := range map[string]struct {
		consume  *Receipt
		replaced bool
	}{"there": {&Receipt{ExpiresAt: 1000}, false}, "another": {&Receipt{ExpiresAt: 1001}, true}, "over": {nil, false}} {
		b.consumes = []*Receipt{c.consume}
		if got := b.consumeReplaced(settle); got != c.replaced || b.unsure {
			t.Errorf("the consume's receipt is %s: replaced %v, unsure %v", name, got, b.unsure)
		}
	}
	if b.consumes = nil; b.consumeReplaced(settle) || !b.unsure {
		t.Error("it is sure of a receipt that was not read")
	}
	b = &batch{receiptIDs: []string{"job"}, receipts: []*Receipt{{ExpiresAt: 1001}}, consumeIDs: []string{"job"}}
	if !b.consumeReplaced(settle) || b.unsure {
		t.Error("the consume that took the id is in the same batch")
	}
}

// TestADamagedReceiptTellsNothing: neither what was settled, nor what its request was told.
func TestADamagedReceiptTellsNothing(t *testing.T) {
	t.Parallel()
	if d, err := (&Receipt{Answer: []byte(`{`)}).replay(&Request{ID: "x"}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("%+v, %v", d, err)
	}
	for _, answer := range []string{`{`, `{"reservation":{"cost":1,"limits":[{"key":"k","name":"n","spec":{"limit":1,"window":"a while"}}]}}`} {
		_, _, err := (&Receipt{Answer: []byte(answer)}).reserved()
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", answer, err)
		}
	}
}
