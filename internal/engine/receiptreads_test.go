package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

// reads holds each read of receipts until its gate lets one go, and fails it with what comes from there.
type reads struct {
	*tap
	gate chan error
	mu   sync.Mutex
	of   [][]string
}

func (s *reads) Receipts(ctx context.Context, ids []string) ([]*engine.Receipt, error) {
	s.mu.Lock()
	s.of = append(s.of, ids)
	s.mu.Unlock()
	if err := <-s.gate; err != nil {
		return nil, err
	}
	return s.tap.Receipts(ctx, ids)
}

// settles starts settles, one after the other, and returns where their errors come, in that order.
func settles(t *testing.T, e *engine.Engine, ids ...string) (all []chan error) {
	t.Helper()
	for _, id := range ids {
		done := make(chan error, 1)
		go func() {
			_, err := storetest.Settle(t.Context(), e, id, 0)
			done <- err
		}()
		synctest.Wait()
		all = append(all, done)
	}
	return all
}

// TestSettlesThatWaitShareARead: the first is read for alone, those that come meanwhile together. One whose
// receipt cannot be read is an error, and may be tried again.
func TestSettlesThatWaitShareARead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &reads{tap: openTap(t), gate: make(chan error)}
		e := start(t, engine.Config{Store: store})
		for i := range 4 {
			ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 10, "1h")}, ID: fmt.Sprint(i)})
		}
		down := errors.New("down")
		all := settles(t, e, "0", "1", "2", "none", "2")
		store.gate <- down
		store.gate <- nil
		for i, want := range []error{down, nil, nil, engine.ErrUnknownID, nil} {
			if err := <-all[i]; !errors.Is(err, want) || want == down && !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("settle %d: %v, want %v", i, err, want)
			}
		}
		again := settles(t, e, "0")
		store.gate <- nil
		if err := <-again[0]; err != nil {
			t.Errorf("again: %v", err)
		}
		if want := [][]string{{"0"}, {"1", "2", "none", "2"}, {"0"}}; !slices.EqualFunc(store.of, want, slices.Equal) {
			t.Errorf("read %q, want %q", store.of, want)
		}
		if used := usedNow(t, e, "k"); used != 1 {
			t.Errorf("%d used, want that of the one that was not settled", used)
		}
	})
}

// TestSettlesBeyondTheQueueAreOverloaded, and a stop answers those that wait.
func TestSettlesBeyondTheQueueAreOverloaded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &reads{tap: openTap(t), gate: make(chan error)}
		e := start(t, engine.Config{Store: store, Queue: 2})
		all := settles(t, e, "read", "waits", "waits", "too many")
		if err := <-all[3]; !errors.Is(err, engine.ErrOverloaded) {
			t.Errorf("one more than fit: %v", err)
		}
		closed := make(chan error)
		go func() { closed <- e.Close(t.Context()) }()
		synctest.Wait()
		close(store.gate)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		for i, done := range all[:3] {
			select {
			case err := <-done:
				if !errors.Is(err, engine.ErrClosed) {
					t.Errorf("settle %d: %v", i, err)
				}
			default:
				t.Errorf("Close has returned, and settle %d has no answer", i)
			}
		}
	})
}

// TestSettlesOverSlowStoreMeetDeadline: what cannot be read for in time is told so.
func TestSettlesOverSlowStoreMeetDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{tap: openTap(t)}
		e := start(t, engine.Config{Store: store, MaxBatch: 10})
		ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 10, "1h")}, ID: "x"})
		store.takes.Store(int64(200 * time.Millisecond))
		began := time.Now()
		var refused int
		for _, done := range settles(t, e, slices.Repeat([]string{"x"}, 200)...) {
			if err := <-done; errors.Is(err, engine.ErrOverloaded) {
				refused++
			} else if err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took > 2*time.Second || refused == 0 || refused == 200 {
			t.Errorf("%d of 200 were refused, after %s", refused, took)
		}
	})
}
