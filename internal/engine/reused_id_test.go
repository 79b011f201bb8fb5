package engine_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

// slow holds the transactions that have counters until its gate opens.
type slow struct {
	*tap
	gate chan struct{}
}

func (s *slow) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	if len(b.Counters) > 0 {
		<-s.gate
	}
	return s.tap.Update(ctx, b, decide)
}

// reusedIDWorkers returns a worker whose transactions wait, another on the same store, and a consume
// with an id that was made already.
func reusedIDWorkers(t *testing.T) (waiting, beside *engine.Engine, s *slow, consume engine.Request) {
	t.Helper()
	s = &slow{tap: openTap(t), gate: make(chan struct{})}
	waiting, beside = start(t, engine.Config{Store: s}), start(t, engine.Config{Store: s.tap})
	consume = engine.Request{Limits: []engine.Limit{per(t, "k", 1000, "1d")}, Cost: 10, ID: "job"}
	ask(t, beside, consume)
	return waiting, beside, s, consume
}

// settleLate starts a settle, whose transaction waits while the test reuses the id.
func settleLate(t *testing.T, e *engine.Engine, cost int64) <-chan error {
	t.Helper()
	settled := make(chan error, 1)
	go func() {
		_, err := storetest.Settle(t.Context(), e, "job", cost)
		settled <- err
	}()
	synctest.Wait()
	return settled
}

// reuseID has the consume's receipt expire, and consumes with the same id again.
func reuseID(t *testing.T, s *slow, e *engine.Engine, consume engine.Request) {
	t.Helper()
	time.Sleep(5 * time.Millisecond)
	err := s.tap.Update(t.Context(), engine.Batch{IDs: []string{"job"}}, func(engine.Snapshot) engine.Changes {
		return engine.Changes{Stale: []string{"job"}, Receipts: []engine.Receipt{{ID: "other", Answer: []byte("{}"), ExpiresAt: 1 << 40}}}
	})
	if err != nil {
		t.Fatal(err)
	}
	ask(t, e, consume)
}

// TestLateSettleOfReusedIDIsUnknown: its consume is no longer known, and a settle of the new one
// stands.
func TestLateSettleOfReusedIDIsUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		waiting, beside, s, consume := reusedIDWorkers(t)
		late := settleLate(t, waiting, 50)
		reuseID(t, s, beside, consume)
		settle := func() {
			t.Helper()
			if d, err := storetest.Settle(t.Context(), beside, "job", 110); err != nil || d.Results[0].Used != 120 {
				t.Errorf("%+v, %v; want 120 used", d.Results, err)
			}
		}
		settle()
		close(s.gate)
		if err := <-late; !errors.Is(err, engine.ErrUnknownID) || errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("late: %v", err)
		}
		if settle(); usedNow(t, beside, "k") != 120 {
			t.Errorf("%d used, want 120", usedNow(t, beside, "k"))
		}
	})
}

// TestSettlesOfTwoUsesOfAnIDInOneBatch: both are made.
func TestSettlesOfTwoUsesOfAnIDInOneBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		waiting, beside, s, consume := reusedIDWorkers(t)
		all := []<-chan error{}
		record := func(key string) {
			done := make(chan error, 1)
			go func() {
				_, err := waiting.Do(t.Context(), &engine.Request{Verb: engine.Record, Limits: []engine.Limit{per(t, key, 10, "1d")}, Cost: 1})
				done <- err
			}()
			synctest.Wait()
			all = append(all, done)
		}
		for range 3 { // so that what follows is one batch
			record("before")
		}
		all = append(all, settleLate(t, waiting, 50))
		reuseID(t, s, beside, consume)
		all = append(all, settleLate(t, waiting, 110))
		record("innocent")
		close(s.gate)
		for _, done := range all {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if d, err := storetest.Settle(t.Context(), beside, "job", 110); err != nil || d.Results[0].Used != 160 || usedNow(t, beside, "k") != 160 {
			t.Errorf("%+v, %v, %d used; want 160", d.Results, err, usedNow(t, beside, "k"))
		}
	})
}

// TestSettleAfterClockStepsBack: the receipt of a settle of the earlier consume ends later than
// that of the new consume.
func TestSettleAfterClockStepsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		store := openTapAt(t, func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
		e := start(t, engine.Config{Store: store})
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 1000, "1d")}, Cost: 10, ID: "job"}
		settle := func(cost int64) {
			t.Helper()
			if _, err := storetest.Settle(t.Context(), e, "job", cost); err != nil {
				t.Fatal(err)
			}
		}
		ahead.Store(int64(time.Hour))
		ask(t, e, consume)
		time.Sleep(9 * time.Minute)
		settle(20)
		time.Sleep(7 * time.Minute)
		if _, err := store.Expire(t.Context(), 1000); err != nil {
			t.Fatal(err)
		}
		ahead.Store(0)
		time.Sleep(time.Minute)
		ask(t, e, consume)
		settle(1)
		if settle(1); usedNow(t, e, "k") != 21 {
			t.Errorf("%d used, want 21", usedNow(t, e, "k"))
		}
	})
}

// TestSettleAppliesToLatestUseOfID: an id may be reused when its receipt has expired, while the
// receipt of its settle is still there.
func TestSettleAppliesToLatestUseOfID(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		l := per(t, "k", 1000, "1d")
		settle := func(cost, used int64) {
			t.Helper()
			for range 2 { // the second time from the receipt
				if d, err := storetest.Settle(t.Context(), e, "job", cost); err != nil || d.Results[0].Used != used {
					t.Errorf("settled at %d: %+v, %v; want %d used", cost, d.Results, err, used)
				}
			}
			if _, err := storetest.Settle(t.Context(), e, "job", cost+1); !errors.Is(err, engine.ErrIDConflict) {
				t.Errorf("settled at another cost: %v", err)
			}
			if got := usedNow(t, e, "k"); got != used {
				t.Errorf("%d used, want %d", got, used)
			}
		}
		used := int64(0)
		for _, cost := range []int64{40, 40, 100, 0} {
			ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 10, ID: "job"})
			time.Sleep(9 * time.Minute)
			used += cost
			settle(cost, used)
			time.Sleep(6*time.Minute + time.Second) // its receipt is over, and that of the settle is not
			if _, err := store.Expire(t.Context(), 1000); err != nil {
				t.Fatal(err)
			}
			if d, err := storetest.Settle(t.Context(), e, "job", cost); err != nil || d.Results[0].Used != used {
				t.Errorf("settled again at %d: %+v, %v", cost, d.Results, err)
			}
		}
	})
}
