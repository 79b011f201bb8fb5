package httplimit

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestWarningsAreThrottled to one in a while, and to no fewer if the clock is set back.
func TestWarningsAreThrottled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var throttle logThrottle
		for i, step := range []struct {
			after time.Duration
			want  bool
		}{{0, true}, {0, false}, {errorLogEvery - 1, false}, {1, true}, {errorLogEvery - 1, false}} {
			time.Sleep(step.after)
			if got := throttle.allow(); got != step.want {
				t.Errorf("step %d: %t, want %t", i, got, step.want)
			}
		}
	})
	var throttle logThrottle
	throttle.allow()
	if last := *throttle.last.Load(); last == last.Round(0) {
		t.Error("the time of the last warning has no monotonic clock")
	}
}
