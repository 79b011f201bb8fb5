package engine_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestReceiptsThatCanBeReadDoNotTellThatAStoreCanBeWritten: while settles find their receipts, a lock that somebody holds, or
// a disk that is full, still has the store fail, and other requests do not wait for it again and again.
func TestReceiptsThatCanBeReadDoNotTellThatAStoreCanBeWritten(t *testing.T) {
	t.Parallel()
	full := errors.New("no space left on device")
	for name, fault := range map[string]func(ctx context.Context) error{
		"lock": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"disk": func(context.Context) error { return full },
	} {
		synctest.Test(t, func(t *testing.T) {
			store := &unwritable{tap: openTap(t)}
			told := make(chan bool, 100)
			e := start(t, engine.Config{Store: store, StoreFailing: func(err error) { told <- err != nil }})
			consume := engine.Request{Limits: []engine.Limit{per(t, "k", 100, "1h")}, ID: "x"}
			ask(t, e, consume)
			consume.ID = ""
			store.fault.Store(&fault)
			slow := 0
			for range 200 {
				at := time.Now()
				settled := settles(t, e, "x")
				if d := ask(t, e, consume); !d.Degraded {
					t.Fatalf("%s: %+v", name, d)
				}
				if time.Since(at) > 300*time.Millisecond {
					slow++
				}
				if err := <-settled[0]; !errors.Is(err, engine.ErrUnavailable) {
					t.Fatalf("%s: settled: %v", name, err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			if slow > 1 || len(told) != 1 || e.Failure() == nil {
				t.Errorf("%s: %d requests waited, and %d times it began or ended to fail, which is %v", name, slow, len(told), e.Failure())
			}
			store.fault.Store(nil)
			time.Sleep(2 * time.Second)
			if err := <-settles(t, e, "x")[0]; err != nil || e.Failure() != nil {
				t.Errorf("%s: when it can be written again: %v, %v", name, err, e.Failure())
			}
		})
	}
}

// unwritable is a store whose transactions end with fault, if it is set, and which can be read.
type unwritable struct {
	*tap
	fault atomic.Pointer[func(context.Context) error]
}

func (s *unwritable) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	if fault := s.fault.Load(); fault != nil {
		return (*fault)(ctx)
	}
	return s.tap.Update(ctx, b, decide)
}

// TestSettlesAreAnsweredWhileAReadHangs, as on a disk that does: no call returns there, whatever its deadline.
func TestSettlesAreAnsweredWhileAReadHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &reads{tap: openTap(t), gate: make(chan error)}
		e := start(t, engine.Config{Store: store})
		ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 10, "1h")}, ID: "x"})
		refused := func(most time.Duration, ids ...string) {
			t.Helper()
			at := time.Now()
			for i, done := range settles(t, e, ids...) {
				select {
				case err := <-done:
					if took := time.Since(at); took > most || !errors.Is(err, engine.ErrUnavailable) {
						t.Errorf("settle %d: %v, after %s", i, err, took)
					}
				case <-time.After(time.Minute):
					t.Fatalf("settle %d has no answer", i)
				}
			}
		}
		refused(1700*time.Millisecond, "x", "x", "y")
		time.Sleep(10 * time.Second)
		ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 10, "1h")}}) // decisions work
		for range 3 {
			refused(0, "x", "y")
			time.Sleep(time.Second)
		}
		if n := len(store.of); n != 1 {
			t.Errorf("%d reads began, want none beside the one that hangs", n)
		}
		close(store.gate)
		synctest.Wait()
		if err := <-settles(t, e, "x")[0]; err != nil {
			t.Errorf("after it: %v", err)
		}
	})
}

// slowReads is a store whose reads of receipts take long.
type slowReads struct {
	*tap
	takes time.Duration
}

func (s *slowReads) Receipts(ctx context.Context, ids []string) ([]*engine.Receipt, error) {
	select {
	case <-time.After(s.takes):
		return s.tap.Receipts(ctx, ids)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestASettleThatHasWaitedIsReadForNoLongerThanItsDeadline, which is no failure of the store.
func TestASettleThatHasWaitedIsReadForNoLongerThanItsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := start(t, engine.Config{Store: &slowReads{openTap(t), 1200 * time.Millisecond}})
		at := time.Now()
		all := settles(t, e, "x", "y")
		errs := []error{<-all[0], <-all[1]}
		if took := time.Since(at); took >= 2*time.Second || !errors.Is(errs[0], engine.ErrUnknownID) || !errors.Is(errs[1], engine.ErrOverloaded) {
			t.Errorf("%v, after %s", errs, took)
		}
		if err := e.Failure(); err != nil {
			t.Error(err)
		}
	})
}
