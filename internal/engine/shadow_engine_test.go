package engine_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

func shadowed(l engine.Limit, policy string) engine.Limit {
	l.Policy, l.Shadow = policy, true
	return l
}

// TestShadowDenialIsReportedNotCharged plays it through the store, with what answers from memory
// beside it.
func TestShadowDenialIsReportedNotCharged(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		trial := shadowed(per(t, "k", 1, "1h"), "trial")
		trial.Leased = true // which shadow gives up on
		beside := per(t, "beside", 10, "1h")
		for i := range 3 {
			d := ask(t, e, engine.Request{Limits: []engine.Limit{trial, beside}})
			if !d.Allowed || d.Shadow != (i > 0) || d.Results[0].Used != 1 || d.Results[1].Used != int64(i+1) {
				t.Errorf("request %d: %+v", i, d)
			}
		}
		for range 3 { // alone, with nothing beside it that the store would have to be asked for
			if d := ask(t, e, engine.Request{Limits: []engine.Limit{trial}}); !d.Allowed || !d.Shadow {
				t.Errorf("alone: %+v", d)
			}
		}
		if events := store.events(t); len(events) != 2 || events[1].Type != engine.EventExceeded || events[1].Policy != "trial" {
			t.Errorf("events %+v; want a warning and a denial of the policy in shadow", events)
		}
	})
}

// TestWorkThatShadowWouldRefuseLeavesNoTrace: after a check that a policy in shadow would have denied, the record of the
// work charges nothing of that policy, counts no second denial, and answers a repeat the same. A record that is larger than
// its check takes all that is left and more.
func TestWorkThatShadowWouldRefuseLeavesNoTrace(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		trial, loose := shadowed(per(t, "k", 3, "1h"), "trial"), shadowed(per(t, "loose", 100, "1h"), "trial")
		other, live := shadowed(per(t, "other", 50, "1h"), "other"), per(t, "live", 100, "1h")
		limits := []engine.Limit{trial, loose, other, live}
		for i, would := range []bool{true, false, false} {
			if d := ask(t, e, engine.Request{Verb: engine.Check, Limits: limits}); !d.Allowed || d.Shadow == would {
				t.Errorf("check %d: %+v", i, d)
			}
			r := engine.Request{Verb: engine.Record, Cost: 5, ID: fmt.Sprint(i), Limits: limits}
			first := ask(t, e, r)
			if again := ask(t, e, r); !first.Allowed || !first.Shadow || !slices.Equal(again.Results, first.Results) {
				t.Errorf("record %d: %+v\nagain: %+v", i, first, again)
			}
		}
		for key, want := range map[string]int64{"k": 5, "loose": 5, "other": 15, "live": 15} {
			if used := usedNow(t, e, key); used != want {
				t.Errorf("%s: %d used; want %d", key, used, want)
			}
		}
		time.Sleep(11 * time.Second) // the next event is raised meanwhile
		var denied int64
		for _, event := range store.events(t) {
			if event.Type == engine.EventExceeded {
				denied += event.Denied
			}
		}
		if denied != 3 { // the record that passed the limit, and two checks
			t.Errorf("%d denials in events; want 3", denied)
		}
	})
}

// TestASettleInShadowIsADenialThatWasNotEnforced, unless another limit refuses it as well.
func TestASettleInShadowIsADenialThatWasNotEnforced(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
		for cost, want := range map[int64]struct{ allowed, shadow bool }{5: {true, false}, 7: {true, true}, 10: {true, true}, 11: {false, false}} {
			id := fmt.Sprint("settled to ", cost)
			limits := []engine.Limit{shadowed(per(t, id, 5, "1h"), "trial"), per(t, "beside "+id, 10, "1h")}
			ask(t, e, engine.Request{Cost: 4, ID: id, Limits: limits})
			d, err := storetest.Settle(t.Context(), e, id, cost)
			if err != nil || d.Allowed != want.allowed || d.Shadow != want.shadow {
				t.Errorf("%s of 5 in shadow and 10: %+v, %v; want allowed %t, shadow %t", id, d, err, want.allowed, want.shadow)
			}
		}
	})
}

// TestSettleSkipsUnchargedShadowLimit: it takes nothing back of what others charged, charges
// nothing and refuses nothing.
func TestSettleSkipsUnchargedShadowLimit(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
		trial, beside := shadowed(per(t, "k", 10, "1h"), "trial"), per(t, "beside", 100, "1h")
		ask(t, e, engine.Request{Cost: 10, Limits: []engine.Limit{trial, beside}})
		for id, limits := range map[string][]engine.Limit{"with another": {trial, beside}, "alone": {trial}} {
			for _, cost := range []int64{0, 5, 7} {
				id := fmt.Sprint(id, cost)
				ask(t, e, engine.Request{Cost: 5, ID: id, Limits: limits})
				d, err := storetest.Settle(t.Context(), e, id, cost)
				if err != nil || !d.Allowed || len(d.Results) != len(limits)-1 {
					t.Errorf("%s settled to %d: %+v, %v", id, cost, d, err)
				}
				if used := usedNow(t, e, "k"); used != 10 {
					t.Fatalf("%s settled to %d: %d used of the limit in shadow, want 10", id, cost, used)
				}
			}
		}
	})
}

// TestSettleChargesShadowLimitWithoutRefusal: one that was charged is settled with the others.
func TestSettleChargesShadowLimitWithoutRefusal(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
		trial, beside := shadowed(per(t, "k", 10, "1h"), "trial"), per(t, "beside", 100, "1h")
		ask(t, e, engine.Request{Cost: 5, ID: "job", Limits: []engine.Limit{trial, beside}})
		d, err := storetest.Settle(t.Context(), e, "job", 12)
		if err != nil || !d.Allowed || !d.Shadow || usedNow(t, e, "k") != 12 || usedNow(t, e, "beside") != 12 {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

func TestShadowNeverRefusesWithoutTheStore(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		store.fail(func(bool) error { return errors.New("down") })
		trial := shadowed(per(t, "k", 1, "1h"), "trial")
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{trial}, OnError: engine.OnErrorDeny}); !d.Allowed || !d.Degraded {
			t.Errorf("%+v; want it allowed", d)
		}
	})
}

// TestPoliciesShareNoCounter holds that the counters of two policies, and an inline one, are three; and that what is
// shown is the limit's name.
func TestPoliciesShareNoCounter(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
		for _, name := range []string{"1m", engine.PolicyName("a", "1m"), engine.PolicyName("b", "1m")} {
			l := per(t, "k", 5, "1m")
			l.Name = name
			if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}}); d.Results[0].Used != 1 || d.Results[0].Name != "1m" {
				t.Errorf("%q: %+v", name, d.Results[0])
			}
		}
	})
}
