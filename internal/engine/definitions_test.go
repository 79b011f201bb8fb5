package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// A check changes nothing, whatever it takes the limit for: not what was charged, nor how long it counts.
func TestACheckUnderAnotherDefinitionLeavesTheCounterAsItIs(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]int64{"one that allows": 100_000, "one that denies": 10} {
		synctest.Test(t, func(t *testing.T) {
			store := openTap(t)
			e := start(t, engine.Config{Store: store})
			l := leased(t, "k", 100_000)
			n := warm(t, e, l)
			other := l
			other.Limit, other.Window, other.Algorithm, other.Leased = limit, window(t, "100ms"), engine.FixedWindow, false
			if d := ask(t, e, engine.Request{Verb: engine.Check, Limits: []engine.Limit{other}}); d.Allowed != (limit > 10) {
				t.Fatalf("%s: %+v", name, d)
			}
			time.Sleep(150 * time.Millisecond) // a window of the other
			if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}}); d.Results[0].Used < n+1 {
				t.Errorf("%s: %d used after %d requests", name, d.Results[0].Used, n+1)
			}
			var denied int64
			for _, event := range store.events(t) {
				denied += event.Denied
			}
			if want := map[bool]int64{true: 0, false: 1}[limit > 10]; denied != want {
				t.Errorf("%s: events tell of %d denials, want %d", name, denied, want)
			}
		})
	}
}

// TestADenialUnderAnotherDefinitionLeavesTheCounterAsItIs: what is used is not carried over into it, where it would be gone
// after its 100 ms.
func TestADenialUnderAnotherDefinitionLeavesTheCounterAsItIs(t *testing.T) {
	t.Parallel()
	l := per(t, "k", 100, "1h")
	other := l
	other.Limit, other.Window, other.Algorithm, other.Threshold = 10, window(t, "100ms"), engine.FixedWindow, -1
	beside := shadowed(other, "")
	for name, r := range map[string]engine.Request{
		"check":   {Verb: engine.Check, Limits: []engine.Limit{other}},
		"consume": {Verb: engine.Consume, Limits: []engine.Limit{other}},
		"shadow":  {Verb: engine.Consume, Limits: []engine.Limit{per(t, "another", 10, "1h"), beside}},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := start(t, engine.Config{Store: openTap(t)})
			ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 100})
			if d := ask(t, e, r); d.Allowed != (name == "shadow") || d.Allowed != d.Shadow {
				t.Fatalf("%s: %+v", name, d)
			}
			time.Sleep(150 * time.Millisecond)
			if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 100}); d.Allowed {
				t.Errorf("%s: 200 of 100 charged in one hour", name)
			}
		})
	}
}
