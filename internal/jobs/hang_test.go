package jobs_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// hanging is a store whose calls last until their contexts end, while hangs is set.
type hanging struct {
	jobs.Store
	hangs atomic.Bool
}

func (h *hanging) hang(ctx context.Context) error {
	if !h.hangs.Load() {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (h *hanging) ClaimRun(ctx context.Context, c jobs.Claim) (jobs.Claimed, error) {
	if err := h.hang(ctx); err != nil {
		return jobs.Claimed{}, err
	}
	return h.Store.ClaimRun(ctx, c)
}

func (h *hanging) FinishRun(ctx context.Context, r jobs.Run) (bool, error) {
	if err := h.hang(ctx); err != nil {
		return false, err
	}
	return h.Store.FinishRun(ctx, r)
}

func (h *hanging) Runs(ctx context.Context, f jobs.Filter) ([]jobs.Run, error) {
	if err := h.hang(ctx); err != nil {
		return nil, err
	}
	return h.Store.Runs(ctx, f)
}

// TestHangingStoreIsAskedAgain: a call that hangs would otherwise hold up the job for ever, even when the store works again.
func TestHangingStoreIsAskedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, turn := &hanging{Store: eachstore.SQLite(t, nil)}, 0
		s.hangs.Store(true) // before the first run
		runner(t, s, newNotes(), "a", jobs.Job{Name: "j", Schedule: "@every 1m", Run: func(context.Context) (string, error) {
			turn++
			s.hangs.Store(turn == 3) // when the end is stored
			return "", nil
		}})
		time.Sleep(time.Minute)
		s.hangs.Store(false)
		time.Sleep(45 * time.Second)
		s.hangs.Store(true) // when the second run is claimed
		time.Sleep(40 * time.Second)
		s.hangs.Store(false)
		time.Sleep(45 * time.Second)
		s.hangs.Store(false) // 10 s after the third run
		time.Sleep(30 * time.Second)
		synctest.Wait()
		equal(t, "history", history(t, s, "j"), []string{"00:01:00 done", "00:02:00 done", "00:03:00 done"})
	})
}
