package engine_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// inTurns gives turns. A transaction ends the turn of its batch, as a store does; conflicts of them lose a race.
type inTurns struct {
	*tap
	given, used, ended, conflicts atomic.Int64
}

type countedTurn struct{ of *inTurns }

func (s countedTurn) End() { s.of.ended.Add(1) }

func (s *inTurns) Await(context.Context) engine.Turn {
	s.given.Add(1)
	return countedTurn{s}
}

func (s *inTurns) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	if b.Turn != nil {
		s.used.Add(1)
	}
	if s.conflicts.Add(-1) >= 0 {
		return engine.ErrConflict
	}
	return s.tap.Update(ctx, b, decide)
}

// TestATurnIsUsedOnce, by the first transaction of its batch, or ended if there is none: otherwise the workers after this one
// would wait for it, or it would end the turn of another.
func TestATurnIsUsedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &inTurns{tap: openTap(t)}
		e := start(t, engine.Config{Store: store})
		want := func(given, used, ended int64) {
			t.Helper()
			synctest.Wait()
			if g, u, n := store.given.Load(), store.used.Load(), store.ended.Load(); g != given || u != used || n != ended {
				t.Errorf("%d turns, of which %d were used and %d ended; want %d, %d and %d", g, u, n, given, used, ended)
			}
		}
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 100, "1h")}}
		ask(t, e, consume)
		want(1, 1, 0)
		store.conflicts.Store(2)
		ask(t, e, consume)
		want(2, 2, 0)
		time.Sleep(time.Minute) // a process that began just now counts no earlier wait
		if _, err := e.Do(t.Context(), &engine.Request{Limits: consume.Limits, Cost: 1, Waited: 2 * time.Second}); err == nil {
			t.Error("decided too late")
		}
		want(3, 2, 1)
		store.fail(func(bool) error { return errors.New("down") })
		ask(t, e, consume)
		want(4, 3, 1)
		if d := ask(t, e, consume); !d.Degraded {
			t.Errorf("%+v", d)
		}
		want(4, 3, 1) // nobody waits for a turn while the circuit is open
		store.fail(nil)
		time.Sleep(5 * time.Second)
	})
}

// TestATurnForNothingIsEnded: a lease that began meanwhile serves what waited for it.
func TestATurnForNothingIsEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &inTurns{tap: openTap(t)}
		e := start(t, engine.Config{Store: store})
		l := leased(t, "k", 1_000_000)
		spend(t, e, l)
		synctest.Wait()
		given, ended := store.given.Load(), store.ended.Load()
		var done sync.WaitGroup
		submit := func() {
			done.Add(1)
			if err := e.Submit(&engine.Request{Limits: []engine.Limit{l}, Cost: 1, Done: func(engine.Decision, error) { done.Done() }}); err != nil {
				t.Fatal(err)
			}
		}
		store.hold()
		submit()
		<-store.enter
		submit()
		store.release()
		done.Wait()
		synctest.Wait()
		if g, n := store.given.Load()-given, store.ended.Load()-ended; g != 2 || n != 1 {
			t.Errorf("%d turns, of which %d were ended; want 2, and one that was ended", g, n)
		}
	})
}
