package bus

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestOverlapsWithASlowWorkerGetLonger, as long as it is slow again soon: the change back and forth costs more than two that
// decide.
func TestOverlapsWithASlowWorkerGetLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &lead{}
		overlap := func(want time.Duration) {
			t.Helper()
			l.startOverlap()
			if got := time.Until(l.overlapUntil); got != want || l.overlapFor != want {
				t.Errorf("it lasts %s, want %s", got, want)
			}
			time.Sleep(want)
		}
		for _, want := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
			overlap(want * time.Second)
		}
		time.Sleep(2 * maxOverlap)
		overlap(maxOverlap)
		time.Sleep(2*maxOverlap + time.Nanosecond)
		overlap(minOverlap)
	})
}

// TestAWorkerThatIsJustSlowIsSlow, and one that is a little faster is not.
func TestAWorkerThatIsJustSlowIsSlow(t *testing.T) {
	t.Parallel()
	for at, want := range map[time.Duration]bool{slowAnswer: true, slowAnswer - 1: false} {
		l := &lead{cfg: LeadConfig{times: answerTimes}, answerTime: at}
		if got := l.answersSlowly(at); got != want || l.answerTime != at {
			t.Errorf("%s: slow %t, want %t; the average is %s", at, got, want, l.answerTime)
		}
	}
}
