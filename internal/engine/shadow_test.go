package engine

import (
	"testing"

	"pgregory.net/rapid"
)

// Limits in shadow never refuse, are never charged for a denial, and those of one policy are charged all or none: by a
// record if each of them has something left.
func TestLimitsInShadowNeverRefuse(t *testing.T) {
	t.Parallel()
	check(t, cases, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "limits")
		limits, states := make([]Limit, n), newStates(n)
		for i := range limits {
			limits[i] = genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm")).Draw(t, "limit")
			limits[i].Policy = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "policy")
			limits[i].Shadow = limits[i].Policy != "a"
		}
		now := genInstant.Draw(t, "now")
		for _, o := range genOps(limits[0], 8, Consume, Consume, Consume, Check, Record).Draw(t, "ops") {
			now += o.after
			before := decide(Check, limits, states, now, o.cost)
			after := decide(o.verb, limits, states, now, o.cost)
			holdShadow(t, o, limits, before.Results, after)
		}
	})
}

func holdShadow(t *rapid.T, o op, limits []Limit, before []Result, after Decision) {
	fits, begins := map[string]bool{"a": true, "b": true, "c": true}, map[string]bool{"a": true, "b": true, "c": true}
	for i, l := range limits {
		fits[l.Policy] = fits[l.Policy] && o.cost <= before[i].Remaining
		begins[l.Policy] = begins[l.Policy] && (before[i].Remaining > 0 || !l.Shadow)
	}
	shadow := fits["a"] && !(fits["b"] && fits["c"])
	if after.Allowed != fits["a"] || after.Shadow != shadow {
		t.Fatalf("%s %d of %+v: allowed %t, shadow %t", o.verb, o.cost, before, after.Allowed, after.Shadow)
	}
	for i, l := range limits {
		want := before[i].Used
		if o.verb == Record && begins[l.Policy] || o.verb == Consume && fits["a"] && fits[l.Policy] {
			want += o.cost
		}
		if got := after.Results[i].Used; got != want {
			t.Fatalf("%s %d of %+v: used %d; want %d", o.verb, o.cost, before[i], got, want)
		}
	}
	if s := after.Speaker(); s.Shadow && !limits[0].Shadow {
		t.Fatalf("a limit in shadow speaks before others: %+v", after)
	}
}

// Where work begins if a check allows it and is recorded afterwards, whatever it cost, each policy in shadow says of
// every check and every consume what it would say enforced. In shadow all work is recorded, whatever the checks say.
func TestShadowForetellsEnforcement(t *testing.T) {
	t.Parallel()
	check(t, cases, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "limits")
		shadow, states := make([]Limit, n), newStates(n)
		enforced, enforcedStates := map[string][]Limit{}, map[string][]*State{}
		for i := range shadow {
			l := genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm")).Draw(t, "limit")
			l.Policy = rapid.SampledFrom([]string{"b", "c"}).Draw(t, "policy")
			enforced[l.Policy] = append(enforced[l.Policy], l)
			enforcedStates[l.Policy] = append(enforcedStates[l.Policy], new(State))
			l.Shadow = true
			shadow[i] = l
		}
		now := genInstant.Draw(t, "now")
		for _, o := range genOps(shadow[0], 12, Record, Record, Consume).Draw(t, "ops") {
			now += o.after
			verb, cost := o.verb, o.cost
			if verb == Record {
				verb, cost = Check, 1
			}
			trial := decide(verb, shadow, states, now, cost)
			if o.verb == Record {
				decide(Record, shadow, states, now, o.cost)
			}
			for policy, limits := range enforced {
				real := decide(verb, limits, enforcedStates[policy], now, cost)
				if o.verb == Record && real.Allowed {
					decide(Record, limits, enforcedStates[policy], now, o.cost)
				}
				if allowed := allowedBy(trial, policy); allowed != real.Allowed {
					t.Fatalf("%s %d by %s: allowed %t in shadow, %t enforced\n%+v\n%+v", verb, cost, policy, allowed, real.Allowed, trial, real)
				}
			}
		}
	})
}

func newStates(n int) []*State {
	states := make([]*State, n)
	for i := range states {
		states[i] = new(State)
	}
	return states
}

// allowedBy reports whether all limits of a policy fit.
func allowedBy(d Decision, policy string) bool {
	for _, r := range d.Results {
		if r.Policy == policy && !r.Allowed {
			return false
		}
	}
	return true
}
