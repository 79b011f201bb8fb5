package engine_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// unreadable is a store in which the state of one counter is damaged.
type unreadable struct {
	*tap
	key atomic.Pointer[string]
}

func (s *unreadable) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	return s.tap.Update(ctx, b, func(snap engine.Snapshot) engine.Changes {
		for i, id := range b.Counters {
			if key := s.key.Load(); key != nil && id.Key == *key {
				snap.States[i] = []byte("damaged state")
			}
		}
		return decide(snap)
	})
}

// TestUnreadableCounterDoesNotBlockReports of the denials of other counters.
func TestUnreadableCounterDoesNotBlockReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, seen := &unreadable{tap: openTap(t)}, new(observed)
		e := start(t, engine.Config{Store: store, Observer: seen})
		for range 3 { // allowed, told, remembered
			for i := range 20 {
				l := per(t, fmt.Sprint("k", i), 1, "1h")
				l.Threshold = -1
				ask(t, e, engine.Request{Limits: []engine.Limit{l}})
			}
		}
		damaged := "k7"
		store.key.Store(&damaged)
		time.Sleep(13 * time.Second)
		synctest.Wait()
		if got := toldOf(t, store.tap); got != 20+19 {
			t.Errorf("told of %d denials, want all 40 but one", got)
		}
		if seen.corrupt.Load() == 0 {
			t.Error("the counter that cannot be read is not reported")
		}
		store.key.Store(nil)
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if got := toldOf(t, store.tap); got != 1 {
			t.Errorf("told of %d denials, want the last one: its counter can be read again", got)
		}
	})
}

// TestARequestThatWasNotDecidedHasNoReceipt: its repeat is decided when the counter can be read again.
func TestARequestThatWasNotDecidedHasNoReceipt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, damaged := &unreadable{tap: openTap(t)}, "k"
		e := start(t, engine.Config{Store: store})
		store.key.Store(&damaged)
		r := engine.Request{Limits: []engine.Limit{per(t, "k", 10, "1h")}, ID: "x"}
		if d := ask(t, e, r); !d.Degraded {
			t.Errorf("%+v over a counter that cannot be read", d)
		}
		store.key.Store(nil)
		if d := ask(t, e, r); d.Degraded || d.Results[0].Used != 1 {
			t.Errorf("%+v; want it to be charged", d)
		}
	})
}
