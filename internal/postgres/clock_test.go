package postgres

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestClockGoesBackOnlyIfItWasSetBack: a reading that took long is of an earlier time than the last
// decision may be of.
func TestClockGoesBackOnlyIfItWasSetBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c serverClock
		expect := func(when string, from, latest int64) {
			t.Helper()
			if f, l, ok := c.estimate(); f != from || l != latest || !ok {
				t.Errorf("%s: from %d to %d, %t; want %d to %d", when, f, l, ok, from, latest)
			}
		}
		if _, _, ok := c.estimate(); ok {
			t.Error("it was never read")
		}
		c.record(100_000, time.Now(), time.Now())
		expect("read", 100_000, 100_001)
		sent := time.Now()
		time.Sleep(20 * time.Millisecond)
		expect("later", 100_020, 100_021)
		c.record(100_000, sent, time.Now()) // by a server that answered late
		expect("read slowly", 100_020, 100_021)
		time.Sleep(10 * time.Millisecond)
		expect("behind", 100_020, 100_031)
		time.Sleep(15 * time.Millisecond)
		expect("caught up", 100_025, 100_046)
		c.record(40_000, time.Now(), time.Now())
		expect("set back", 40_000, 40_001)
	})
}
