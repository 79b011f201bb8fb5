package engine

import (
	"testing"

	"pgregory.net/rapid"
)

// Limits in shadow never refuse, are never charged for a denial, and those of one policy are charged all or none.
func TestLimitsInShadowNeverRefuse(t *testing.T) {
	t.Parallel()
	check(t, cases, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "limits")
		limits, states := make([]Limit, n), make([]*State, n)
		for i := range limits {
			limits[i] = genLimit(rapid.SampledFrom(algorithms).Draw(t, "algorithm")).Draw(t, "limit")
			limits[i].Policy = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "policy")
			limits[i].Shadow = limits[i].Policy != "a"
			states[i] = new(State)
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
	fits := map[string]bool{"a": true, "b": true, "c": true}
	for i, l := range limits {
		fits[l.Policy] = fits[l.Policy] && o.cost <= before[i].Remaining
	}
	shadow := fits["a"] && !(fits["b"] && fits["c"])
	if after.Allowed != fits["a"] || after.Shadow != shadow {
		t.Fatalf("%s %d of %+v: allowed %t, shadow %t", o.verb, o.cost, before, after.Allowed, after.Shadow)
	}
	for i, l := range limits {
		want := before[i].Used
		if o.verb == Record || o.verb == Consume && fits["a"] && fits[l.Policy] {
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
