package limits

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestAnActThatIsLateDoesNotHang: in a busy process goroutines run late, and then nothing is refused yet.
func TestAnActThatIsLateDoesNotHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a alone
		late := func(d time.Duration) func() { return func() { time.Sleep(d) } }
		if !a.aside(over, late(grace/2)) {
			t.Error("an act is left alone before its grace is over")
		}
		for range 1000 {
			if a.aside(over, late(hangsAfter)) {
				t.Fatal("waited for an act whose time is over")
			}
		}
		if a.hangs() {
			t.Error("acts that are late are taken to hang")
		}
		time.Sleep(2 * hangsAfter) // of the thousand, each began when the one before was left
		if a.hangs() || a.all.Load() != 0 || a.hanging.Load() != 0 {
			t.Errorf("all have ended, and %d go on and %d hang", a.all.Load(), a.hanging.Load())
		}
		a.aside(over, late(10*hangsAfter))
		time.Sleep(2 * hangsAfter)
		if !a.hangs() {
			t.Error("one that hangs is not noticed")
		}
		time.Sleep(10 * hangsAfter)
		if a.hangs() || a.all.Load() != 0 || a.hanging.Load() != 0 {
			t.Errorf("it has ended, and %d go on and %d hang", a.all.Load(), a.hanging.Load())
		}
	})
}

// TestWhatIsLeftAloneIsBounded.
func TestWhatIsLeftAloneIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a alone
		for range maxAlone {
			go a.aside(over, func() { time.Sleep(hangsAfter / 2) })
		}
		time.Sleep(hangsAfter / 4)
		if !a.full() {
			t.Errorf("%d acts go on alone, and one more may", a.all.Load())
		}
		time.Sleep(hangsAfter / 2)
		if a.full() {
			t.Errorf("%d acts go on alone, which all have ended", a.all.Load())
		}
	})
}
