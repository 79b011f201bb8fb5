package engine

import (
	"fmt"
	"testing"
)

// TestAFloodDoesNotHaveTheLocalLimiterForgetWhatIsUsedUp, nor does one that is denied take any memory.
func TestAFloodDoesNotHaveTheLocalLimiterForgetWhatIsUsedUp(t *testing.T) {
	t.Parallel()
	m := &local{}
	m.init()
	limit := func(key string, n int64) Limit {
		w, err := ParseWindow("10h")
		if err != nil {
			t.Fatal(err)
		}
		return Limit{CounterID: CounterID{key, "n"}, Algorithm: SlidingWindow, Limit: n, Window: w}
	}
	allowed := func(cost int64, limits ...Limit) bool {
		r := Request{Verb: Consume, Limits: limits, Cost: cost}
		d := m.decide(&r, 1_700_000_000_000)
		return d.Allowed
	}
	if !allowed(100, limit("global", 100)) {
		t.Fatal("denied at first")
	}
	for i := range 1000 {
		if ip := limit(fmt.Sprint("denied", i), 5); allowed(1, limit("global", 100), ip) {
			t.Fatal("allowed beside a limit that is used up")
		}
	}
	if len(m.states) != 1 {
		t.Errorf("%d counters, of which one was charged", len(m.states))
	}
	for i := range 2*localMost + 1000 {
		if !allowed(1, limit(fmt.Sprint("ip", i), 5)) {
			t.Fatal("a new one is denied")
		}
	}
	if len(m.states) > localMost || allowed(1, limit("global", 100)) {
		t.Errorf("forgotten among %d", len(m.states))
	}
}
