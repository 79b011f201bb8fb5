package limits

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestLackOfALimiterIsRememberedForASecond, and no longer if the clock is set back.
func TestLackOfALimiterIsRememberedForASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := NewClient(nil)
		if c.noteNoLimiter(SubjectAlertsList); c.lackedLimiter() {
			t.Error("an alerter that is not there is taken for a limiter")
		}
		c.noteNoLimiter(SubjectConsume)
		for i, want := range []bool{true, true, false} {
			if got := c.lackedLimiter(); got != want {
				t.Errorf("%d half seconds later: %t, want %t", i, got, want)
			}
			time.Sleep(time.Second / 2)
		}
	})
	c := NewClient(nil)
	c.noteNoLimiter(SubjectConsume)
	if at := *c.noLimiterAt.Load(); at == at.Round(0) {
		t.Error("the time has no monotonic clock")
	}
}
