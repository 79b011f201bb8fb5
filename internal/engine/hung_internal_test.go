package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// blocked is a store whose transactions do not return while on is set.
type blocked struct {
	Store
	on   atomic.Bool
	ends chan struct{}
}

func (s *blocked) Update(_ context.Context, b Batch, decide func(Snapshot) Changes) error {
	if s.on.Load() {
		<-s.ends
	}
	decide(Snapshot{Now: time.Now().UnixMilli(), States: make([][]byte, len(b.Counters)), Receipts: make([]*Receipt, len(b.IDs))})
	return nil
}

// TestProcessPauseDoesNotHideHungStore: a machine may pause while its disk fails.
func TestProcessPauseDoesNotHideHungStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &blocked{ends: make(chan struct{})}
		e, err := New(t.Context(), Config{Store: store, NewID: func() string { return "id" }})
		if err != nil {
			t.Fatal(err)
		}
		store.on.Store(true)
		var answered atomic.Int64
		for range 2 {
			l := Limit{CounterID: CounterID{Key: "k", Name: "1h"}, Limit: 5, Window: Window{text: "1h", Millis: time.Hour.Milliseconds()}}
			if err := e.Submit(&Request{Limits: []Limit{l}, Cost: 1, Done: func(Decision, error) { answered.Add(1) }}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		time.Sleep(1550 * time.Millisecond)
		e.heartbeat.lateBeat.Store(int64(time.Since(e.heartbeat.origin))) // as a late beat does
		time.Sleep(time.Second)
		if n := answered.Load(); n != 1 || e.Failure() == nil {
			t.Errorf("%d of the two requests are answered, want the one behind; Failure is %v", n, e.Failure())
		}
		close(store.ends)
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
