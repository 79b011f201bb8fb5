package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

// hungStore is a store whose transactions ignore their deadline, as on a disk that hangs.
type hungStore struct {
	*tap
	hang atomic.Bool
	ends chan struct{}
}

func (s *hungStore) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	if s.hang.Load() {
		<-s.ends
	}
	return s.tap.Update(context.WithoutCancel(ctx), b, decide)
}

// timedAnswer is the answer to a request, and how long it took.
type timedAnswer struct {
	d    engine.Decision
	err  error
	took time.Duration
}

// submitTimed submits a request of cost 1 to one limit, and returns when the engine can go no
// further with it.
func submitTimed(t *testing.T, e *engine.Engine, limit engine.Limit, r engine.Request) chan timedAnswer {
	t.Helper()
	came, at := make(chan timedAnswer, 1), time.Now()
	r.Limits, r.Cost = []engine.Limit{limit}, 1
	r.Done = func(d engine.Decision, err error) { came <- timedAnswer{d, err, time.Since(at)} }
	if err := e.Submit(&r); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return came
}

// TestHungStoreBlocksOnlyItsTransaction: requests queued behind it are answered
// in time, and later ones at once.
func TestHungStoreBlocksOnlyItsTransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &hungStore{tap: openTap(t), ends: make(chan struct{})}
		told := make(chan bool, 10)
		var seen observed
		e := start(t, engine.Config{Store: store, Observer: &seen, StoreFailing: func(err error) { told <- err != nil }})
		limit := per(t, "k", 100, "1h")
		ask(t, e, engine.Request{Limits: []engine.Limit{limit}})
		submit := func(r engine.Request) chan timedAnswer { return submitTimed(t, e, limit, r) }
		store.hang.Store(true)
		own := submit(engine.Request{})
		behind := submit(engine.Request{OnError: engine.OnErrorDeny})
		refund := submit(engine.Request{Verb: engine.Refund})
		if a := <-behind; a.err != nil || !a.d.Degraded || a.d.Allowed || a.took >= 2*time.Second {
			t.Errorf("behind it, after %s: %+v, %v", a.took, a.d, a.err)
		}
		const why = "its disk does not respond"
		if a := <-refund; !errors.Is(a.err, engine.ErrUnavailable) || !strings.Contains(a.err.Error(), why) {
			t.Errorf("a refund without the store: %+v, %v; want why", a.d, a.err)
		}
		if err := e.Failure(); err == nil || !strings.Contains(err.Error(), why) || seen.failures.Load() != 1 {
			t.Errorf("Failure is %v, and %d failures were seen", err, seen.failures.Load())
		}
		time.Sleep(10 * time.Second)
		at := time.Now()
		if _, err := storetest.Settle(t.Context(), e, "x", 1); !errors.Is(err, engine.ErrUnavailable) || time.Since(at) > 0 {
			t.Errorf("a settle, after %s: %v", time.Since(at), err)
		}
		for range 3 {
			if a := <-submit(engine.Request{}); !a.d.Degraded || !a.d.Allowed || a.took > 0 {
				t.Errorf("later, after %s: %+v, %v", a.took, a.d, a.err)
			}
		}
		if len(own) > 0 {
			t.Errorf("its own request was answered: %+v", <-own)
		}

		store.hang.Store(false)
		close(store.ends)
		if a := <-own; a.err != nil || a.d.Degraded || !a.d.Allowed {
			t.Errorf("its own request, when it has ended: %+v, %v", a.d, a.err)
		}
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{limit}}); d.Degraded || d.Results[0].Used != 3 {
			t.Errorf("the first when it has ended: %+v", d)
		}
		synctest.Wait()
		if err := e.Failure(); err != nil || len(told) != 2 || !<-told || <-told {
			t.Errorf("Failure is %v, want none; want one failure told and its end", err)
		}
		if _, err := storetest.Settle(t.Context(), e, "x", 1); !errors.Is(err, engine.ErrUnknownID) {
			t.Errorf("a settle when it has ended: %v", err)
		}
	})
}

// TestStoreThatHungAndFailedIsNotBack: only a transaction that is committed tells that it is.
func TestStoreThatHungAndFailedIsNotBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &hungStore{tap: openTap(t), ends: make(chan struct{})}
		var told atomic.Pointer[error] // the last
		e := start(t, engine.Config{Store: store, StoreFailing: func(err error) { told.Store(&err) }})
		broken := errors.New("the disk is broken")
		store.fail(func(bool) error { return broken })
		store.hang.Store(true)
		own := submitTimed(t, e, per(t, "k", 100, "1h"), engine.Request{})
		time.Sleep(10 * time.Second)
		close(store.ends)
		<-own
		synctest.Wait()
		if last := *told.Load(); !errors.Is(last, broken) || !errors.Is(e.Failure(), broken) {
			t.Errorf("told %v, and Failure is %v; want both to be that it fails", last, e.Failure())
		}
		store.hang.Store(false)
		store.fail(nil)
		time.Sleep(3 * time.Second)
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 100, "1h")}}); d.Degraded || *told.Load() != nil || e.Failure() != nil {
			t.Errorf("when it works again: %+v, told %v, Failure is %v", d, *told.Load(), e.Failure())
		}
	})
}

// busy is a store that works, takes 100 ms per transaction, and once longer.
type busy struct {
	*tap
	once atomic.Int64
}

func (s *busy) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	time.Sleep(100*time.Millisecond + time.Duration(s.once.Swap(0)))
	return s.tap.Update(context.WithoutCancel(ctx), b, decide)
}

// TestFloodIsNotTakenForHungStore: its transactions have little of their requests' time left,
// and may all the same take longer.
func TestFloodIsNotTakenForHungStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &busy{tap: openTap(t)}
		e := start(t, engine.Config{Store: store, MaxBatch: 20})
		var degraded atomic.Int64
		for i := range 6000 { // 1000 a second, of which 200 can be decided
			if i == 4000 {
				store.once.Store(int64(800 * time.Millisecond))
			}
			_ = e.Submit(&engine.Request{Limits: []engine.Limit{per(t, fmt.Sprint("k", i%100), 5, "1h")}, Cost: 1, ID: fmt.Sprint(i),
				Done: func(d engine.Decision, err error) {
					if err == nil && d.Degraded {
						degraded.Add(1)
					}
				}})
			time.Sleep(time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		if n := degraded.Load(); n > 0 {
			t.Errorf("%d requests were answered without the store", n)
		}
	})
}

func TestCloseWaitsForHungStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &hungStore{tap: openTap(t), ends: make(chan struct{})}
		e := start(t, engine.Config{Store: store})
		store.hang.Store(true)
		answered := make(chan struct{}, 1)
		if err := e.Submit(&engine.Request{Limits: []engine.Limit{per(t, "k", 100, "1h")}, Cost: 1,
			Done: func(engine.Decision, error) { answered <- struct{}{} }}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := e.Close(ctx); err == nil {
			t.Error("it closed before its transaction has ended")
		}
		close(store.ends)
		<-answered
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// locked is a store in which somebody holds a lock while held is set: each transaction waits for
// it, up to a second.
type locked struct {
	*tap
	held atomic.Bool
}

func (s *locked) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	if s.held.Load() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
			return errors.New("canceling statement due to lock timeout")
		}
	}
	return s.tap.Update(ctx, b, decide)
}

// TestWaitForLockIsNotTakenForFlood: requests that queued while a transaction waited have little
// time left, and are answered without the store as its own are.
func TestWaitForLockIsNotTakenForFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &locked{tap: openTap(t)}
		e := start(t, engine.Config{Store: store})
		one := engine.Request{Limits: []engine.Limit{per(t, "k", 1000, "1h")}, Cost: 1}
		ask(t, e, one)
		store.held.Store(true)
		var degraded, other atomic.Int64
		for range 180 { // 30 a second
			r := one
			r.Done = func(d engine.Decision, err error) {
				if err == nil && d.Degraded {
					degraded.Add(1)
				} else {
					other.Add(1)
				}
			}
			if err := e.Submit(&r); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second / 30)
		}
		time.Sleep(2 * time.Second)
		store.held.Store(false)
		if degraded.Load() != 180 {
			t.Errorf("%d were answered without the store, and %d otherwise", degraded.Load(), other.Load())
		}
		time.Sleep(5 * time.Second)
		if d := ask(t, e, one); d.Degraded {
			t.Errorf("when the lock was given back: %+v", d)
		}
	})
}
