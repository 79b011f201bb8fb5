package policy

import (
	"math"
	"testing"
	"time"
)

func TestThresholdIsExact(t *testing.T) {
	for _, c := range []struct {
		part        float64
		limit, want int64
	}{
		{0.1, 100, 10}, {0.29, 100, 29}, {0.3, 10, 3}, {1, 1_000_000_000, 1_000_000_000}, {0, 5, 0}, {0.1, 9, 0},
		{0.1, 1_000_000_000, 100_000_000}, {0.999999999, 1_000_000_000, 999_999_999}, {1e-30, 1_000_000_000, 0},
		{1.0 / 3, 3, 0}, {0.1 + 0.2, 10, 3}, {1.2345678901234567e-05, 1_000_000_000, 12345}, {math.Copysign(0, -1), 5, 0},
	} {
		th, err := NewThreshold(c.part)
		if err != nil {
			t.Fatal(err)
		}
		if got := th.Of(c.limit); got != c.want {
			t.Errorf("%v of %d is %d, want %d", c.part, c.limit, got, c.want)
		}
	}
	for _, part := range []float64{-1, -0.1, 1.1, 100, 1e300, math.NaN()} {
		if _, err := NewThreshold(part); err == nil {
			t.Errorf("%v is accepted", part)
		}
	}
}

// TestWarningsFollowTheLimit that is in force, after factors and overrides.
func TestWarningsFollowTheLimit(t *testing.T) {
	t.Parallel()
	s := parse(t, `policies:
  - name: default
    limits: [{name: l, key: "k:{user}", limit: 50, window: 1m}]
  - name: own
    warning: 0.2
    limits: [{name: l, key: "k:{user}", limit: 50, window: 1m}]
    tiers: {PRO: {l: {limit: 200}}}
    schedule: [{from: "00:00", to: "06:00", factor: 2}]
`)
	o := given{{"own", "l", "k:ann"}: {Limit: 30}}
	for _, c := range []struct {
		policy, tier, user string
		hour               time.Duration
		want               int64
	}{
		{"default", "", "bob", 0, 5}, {"own", "", "bob", 0, 10}, {"own", "PRO", "bob", 0, 40},
		{"own", "", "bob", -12, 20}, {"own", "PRO", "bob", -12, 80}, {"own", "PRO", "ann", -12, 6},
	} {
		r, err := s.Resolve(Question{Policy: c.policy, Tier: c.tier, Attributes: map[string]string{"user": c.user}, Now: noon.Add(c.hour * time.Hour), Overrides: o})
		if err != nil || len(r.Limits) != 1 || r.Limits[0].Threshold != c.want {
			t.Errorf("%+v: %+v, %v", c, r.Limits, err)
		}
	}
}
