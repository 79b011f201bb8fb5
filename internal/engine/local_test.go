package engine

import (
	"fmt"
	"testing"
)

// TestLocalLimiterKeepsUnchargedCounters: a check or denial under another definition must not free what is used any sooner.
func TestLocalLimiterKeepsUnchargedCounters(t *testing.T) {
	t.Parallel()
	hour := limitOf(t, SlidingWindow, 100, "1h")
	second := hour
	second.Algorithm, second.Limit, second.Window = FixedWindow, 10, limitOf(t, FixedWindow, 1, "1s").Window
	for _, o := range []op{{verb: Check, cost: 1}, {verb: Consume, cost: 11}} {
		m := &localLimiter{}
		m.init()
		ask := func(now int64, l Limit, o op) Decision {
			return m.decide(&Request{Verb: o.verb, Limits: []Limit{l}, Cost: o.cost}, now)
		}
		if d := ask(noon, hour, op{verb: Consume, cost: 100}); !d.Allowed {
			t.Fatal(d)
		}
		ask(noon+1100, second, o)
		if d := ask(noon+2200, hour, op{verb: Check, cost: 1}); d.Results[0].Remaining != 0 {
			t.Errorf("%s under another definition left %d of 100, want 0", o.verb, d.Results[0].Remaining)
		}
	}
}

// TestLocalLimiterKeepsExhaustedKeysInFlood, and denied keys take no memory.
func TestLocalLimiterKeepsExhaustedKeysInFlood(t *testing.T) {
	t.Parallel()
	m := &localLimiter{}
	m.init()
	w, err := ParseWindow("10h")
	if err != nil {
		t.Fatal(err)
	}
	limit := func(key string, n int64) Limit {
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
	for i := range 2*maxLocal + 1000 {
		if !allowed(1, limit(fmt.Sprint("ip", i), 5)) {
			t.Fatal("a new one is denied")
		}
	}
	for id := range m.states {
		if id.Key != "global" {
			allowed(1, limit(id.Key, 5))
			break
		}
	}
	if len(m.states) != maxLocal || allowed(1, limit("global", 100)) {
		t.Errorf("forgotten among %d", len(m.states))
	}
}

// TestLocalLimiterForgetsFreeCountersFirst, however much was used of them.
func TestLocalLimiterForgetsFreeCountersFirst(t *testing.T) {
	t.Parallel()
	m := &localLimiter{}
	m.init()
	for _, l := range []Limit{limitOf(t, FixedWindow, 100, "1s"), limitOf(t, FixedWindow, 100, "1h")} {
		m.decide(&Request{Verb: Consume, Limits: []Limit{l}, Cost: 100 - l.Window.Millis/3_600_000}, noon)
	}
	for at, want := range map[int64]string{noon + 999: "1h", noon + 1000: "1s"} {
		if least := m.leastUsed(at); least.Name != want {
			t.Errorf("%d ms later, of 100 used in 1s and 99 in 1h, it forgets those in %s", at-noon, least.Name)
		}
	}
}
