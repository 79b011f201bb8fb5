package policy

import "testing"

func TestThresholdIsExact(t *testing.T) {
	for _, c := range []struct {
		part        float64
		limit, want int64
	}{
		{0.1, 100, 10}, {0.29, 100, 29}, {0.3, 10, 3}, {1, 1_000_000_000, 1_000_000_000}, {0, 5, 0}, {0.1, 9, 0},
		{0.1, 1_000_000_000, 100_000_000}, {0.999999999, 1_000_000_000, 999_999_999}, {1e-30, 1_000_000_000, 0}, {-1, 5, -1},
		{1.0 / 3, 3, 0}, {0.1 + 0.2, 10, 3},
	} {
		th, err := NewThreshold(c.part)
		if err != nil {
			t.Fatal(err)
		}
		if got := th.Of(c.limit); got != c.want {
			t.Errorf("%v of %d is %d, want %d", c.part, c.limit, got, c.want)
		}
	}
	for _, part := range []float64{1.1, 100, 1e300} {
		if _, err := NewThreshold(part); err == nil {
			t.Errorf("%v is accepted", part)
		}
	}
}
