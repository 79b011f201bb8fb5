package engine_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

func TestASettleWaitsNoLongerThanOthersForAStoreThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &hanging{tap: openTap(t)}
		e := start(t, engine.Config{Store: store})
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 100, "1h")}, ID: "x"}
		ask(t, e, consume)
		store.hang.Store(true)
		settle := func(most time.Duration) {
			begin := time.Now()
			_, err := e.Settle(t.Context(), "x", 1)
			if took := time.Since(begin); took > most || !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("a settle took %v: %v; want at most %v", took, err, most)
			}
		}
		var all sync.WaitGroup
		all.Go(func() { settle(2 * time.Second) })
		synctest.Wait()
		all.Go(func() { settle(2 * time.Second) }) // it cannot read with the one before
		all.Wait()
		time.Sleep(2 * time.Second)

		consume.ID = ""
		if d := ask(t, e, consume); !d.Degraded {
			t.Fatalf("%+v of a store that hangs", d)
		}
		settle(0) // the circuit is open
		time.Sleep(1100 * time.Millisecond)
		settle(250 * time.Millisecond)

		store.hang.Store(false)
		time.Sleep(1100 * time.Millisecond)
		if _, err := e.Settle(t.Context(), "x", 1); err != nil {
			t.Errorf("a settle when the store is back, with nothing else to try it: %v", err)
		}
		if err := e.Failure(); err != nil {
			t.Errorf("it fails behind a settle: %v", err)
		}
	})
}

// Settles that only look for their receipts tell of a store that hangs, and of one that is back, as all others do.
func TestSettlesAloneTellOfTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &hanging{tap: openTap(t)}
		told := make([]bool, 0, 2)
		e := start(t, engine.Config{Store: store, StoreFailing: func(err error) { told = append(told, err != nil) }})
		store.hang.Store(true)
		for range 5 {
			if _, err := e.Settle(t.Context(), "x", 1); !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("a settle without the store: %v", err)
			}
		}
		if e.Failure() == nil {
			t.Error("the store hangs, and nothing fails")
		}
		store.hang.Store(false)
		time.Sleep(1100 * time.Millisecond)
		if _, err := e.Settle(t.Context(), "x", 1); !errors.Is(err, engine.ErrUnknownID) {
			t.Errorf("a settle when the store is back: %v", err)
		}
		if err := e.Failure(); err != nil || !slices.Equal(told, []bool{true, false}) {
			t.Errorf("Failure is %v and told are %v, want none and [true false]", err, told)
		}
	})
}

func TestTheFailureOfAStoreIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &hanging{tap: openTap(t)}
		var told error
		e := start(t, engine.Config{Store: store, StoreFailing: func(err error) { told = err }})
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 100, "1h")}}
		if ask(t, e, consume); e.Failure() != nil {
			t.Errorf("%v, and nothing fails", e.Failure())
		}
		locked := errors.New("database is locked (5)")
		store.fail(func(bool) error {
			store.hang.Store(true)
			return locked
		})
		ask(t, e, consume)
		for what, err := range map[string]error{"told": told, "Failure": e.Failure()} {
			if !errors.Is(err, locked) {
				t.Errorf("%s: %v; want what failed before the deadline", what, err)
			}
		}
		store.fail(nil)
		store.hang.Store(false)
		time.Sleep(1100 * time.Millisecond)
		if d := ask(t, e, consume); d.Degraded || e.Failure() != nil {
			t.Errorf("%+v, %v when the store is back", d, e.Failure())
		}
		store.fail(func(bool) error { return locked })
		ask(t, e, consume)
		if !errors.Is(e.Failure(), locked) {
			t.Errorf("%v when it fails again", e.Failure())
		}
		if time.Sleep(time.Minute); e.Failure() != nil {
			t.Errorf("%v, and nobody has asked for a minute", e.Failure())
		}
	})
}
