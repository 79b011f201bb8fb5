package limits

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestATurnBeforeTheDeadlineIsNotMissed: the jitter of a sleep leaves time for the attempt after it.
func TestATurnBeforeTheDeadlineIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const turn, room = time.Minute, 10 * time.Millisecond
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), turn+room)
			began := time.Now()
			if err := sleep(ctx, turn); err != nil {
				t.Fatalf("after %v: %v", time.Since(began), err)
			}
			if took := time.Since(began); took < turn || took > turn+room/2 {
				t.Errorf("slept %v, want %v and up to %v more", took, turn, room/2)
			}
			cancel()
		}
		ctx, cancel := context.WithTimeout(t.Context(), turn-1)
		defer cancel()
		began := time.Now()
		if err := sleep(ctx, turn); err != context.DeadlineExceeded || time.Since(began) != 0 {
			t.Errorf("past the deadline: %v after %v, want it reported at once", err, time.Since(began))
		}
	})
}
