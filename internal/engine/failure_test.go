package engine_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

func TestSettleOverHungStoreWaitsNoLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &hanging{tap: openTap(t)}
		e := start(t, engine.Config{Store: store})
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 100, "1h")}, ID: "x"}
		ask(t, e, consume)
		store.hang.Store(true)
		settle := func(most time.Duration) {
			begin := time.Now()
			_, err := storetest.Settle(t.Context(), e, "x", 1)
			if took := time.Since(begin); took > most || !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("a settle took %v: %v; want at most %v", took, err, most)
			}
		}
		var all sync.WaitGroup
		all.Go(func() { settle(2 * time.Second) })
		synctest.Wait()
		all.Go(func() { settle(2 * time.Second) }) // it cannot share the read of the one before
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
		if _, err := storetest.Settle(t.Context(), e, "x", 1); err != nil {
			t.Errorf("a settle when the store is back, with nothing else to try it: %v", err)
		}
		if err := e.Failure(); err != nil {
			t.Errorf("it fails behind a settle: %v", err)
		}
	})
}

// Settles that only look for their receipts notice a store that hangs, and one that is back, as all
// others do.
func TestSettlesAloneDetectStoreFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &hanging{tap: openTap(t)}
		told := make([]bool, 0, 2)
		e := start(t, engine.Config{Store: store, StoreFailing: func(err error) { told = append(told, err != nil) }})
		store.hang.Store(true)
		for range 5 {
			if _, err := storetest.Settle(t.Context(), e, "x", 1); !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("a settle without the store: %v", err)
			}
		}
		if e.Failure() == nil {
			t.Error("the store hangs, and nothing fails")
		}
		store.hang.Store(false)
		time.Sleep(1100 * time.Millisecond)
		if _, err := storetest.Settle(t.Context(), e, "x", 1); !errors.Is(err, engine.ErrUnknownID) {
			t.Errorf("a settle when the store is back: %v", err)
		}
		if err := e.Failure(); err != nil || !slices.Equal(told, []bool{true, false}) {
			t.Errorf("Failure is %v and told are %v, want none and [true false]", err, told)
		}
	})
}

// TestRefusalIsNotCounted, with an id as without one, which never reaches the engine.
func TestRefusalIsNotCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, told := openTap(t), new(observed)
		e := start(t, engine.Config{Store: store, Observer: told})
		gone := errors.New("no such policy")
		ask(t, e, engine.Request{ID: "x"})
		if _, err := e.Do(t.Context(), &engine.Request{ID: "x", Refusal: gone}); err != nil || told.answers.Load() != 2 {
			t.Errorf("a repeat of what was allowed: %v, counted %d times with the first", err, told.answers.Load())
		}
		refused := func(when string) {
			t.Helper()
			if _, err := e.Do(t.Context(), &engine.Request{ID: "y", Refusal: gone}); err != gone || told.answers.Load() != 2 {
				t.Errorf("%s: %v, counted %d times with the two before", when, err, told.answers.Load())
			}
		}
		refused("a refusal")
		store.fail(func(bool) error { return errors.New("connection refused") })
		refused("one without the store")
	})
}

func TestEachSettleIsCountedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, told := &hanging{tap: openTap(t)}, new(observed)
		e := start(t, engine.Config{Store: store, Observer: told})
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 1, "1h")}, ID: "x"}
		ask(t, e, consume)
		consume.ID = "denied"
		ask(t, e, consume)
		ask(t, e, engine.Request{Verb: engine.Record, Limits: []engine.Limit{per(t, "recorded", 10, "1h")}, ID: "recorded"})
		for _, c := range []struct {
			id   string
			cost int64
			want error
		}{{"x", 2, nil}, {"x", 2, nil}, {"x", 3, engine.ErrIDConflict}, {"y", 1, engine.ErrUnknownID},
			{"denied", 1, engine.ErrNothingToSettle}, {"recorded", 1, engine.ErrNothingToSettle}} {
			if _, err := storetest.Settle(t.Context(), e, c.id, c.cost); !errors.Is(err, c.want) || errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("settle %s to %d: %v, want %v", c.id, c.cost, err, c.want)
			}
		}
		store.hang.Store(true)
		if _, err := storetest.Settle(t.Context(), e, "x", 2); !errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("a settle without the store: %v", err)
		}
		synctest.Wait()
		want := []string{"denied sliding_window", "denied sliding_window", "error ", "error ", "error ", "error ", "error "}
		if !slices.Equal(told.settled, want) {
			t.Errorf("told of %q, want %q", told.settled, want)
		}
		store.hang.Store(false) // a denial is yet to be reported
	})
}

func TestStoreFailureIsReported(t *testing.T) {
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
		from := store.count()
		if time.Sleep(time.Minute); !errors.Is(e.Failure(), locked) {
			t.Errorf("%v, and nobody has asked for a minute: it fails all the same", e.Failure())
		}
		if tried := store.count() - from; tried < 10 || tried > 30 {
			t.Errorf("tried %d times in a minute, want one in 2 or 3 s", tried)
		}
		store.fail(nil)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if e.Failure() != nil || told != nil {
			t.Errorf("%v, told %v, and it answers again", e.Failure(), told)
		}
		from = store.count()
		if time.Sleep(time.Minute); store.count() > from {
			t.Error("it is tried without a need")
		}
	})
}

// TestADenialAfterAnInDoubtRecordTellsWhatIsStored: the record may be written, so what was remembered of the counter is not true any
// more.
func TestADenialAfterAnInDoubtRecordTellsWhatIsStored(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		limits := []engine.Limit{per(t, "k", 1, "1h")}
		for range 3 { // the last denial is from memory
			ask(t, e, engine.Request{Limits: limits})
		}
		lost := false
		store.fail(func(committed bool) error {
			if !committed || lost {
				return nil
			}
			lost = true
			return engine.ErrCommitUnknown
		})
		if _, err := e.Do(t.Context(), &engine.Request{Verb: engine.Record, Limits: limits, Cost: 5}); err == nil {
			t.Fatal("the answer to the commit was lost")
		}
		if d := ask(t, e, engine.Request{Verb: engine.Check, Limits: limits}); d.Results[0].Used != 6 {
			t.Errorf("%+v; 6 are used", d.Results[0])
		}
	})
}

// TestTransactionsAreMeasured: what they take also decides how long requests may wait.
func TestTransactionsAreMeasured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		w := new(observed)
		e := start(t, engine.Config{Store: store, Observer: w})
		store.fail(func(committed bool) error {
			if committed {
				time.Sleep(40 * time.Millisecond)
			}
			return nil
		})
		ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 10, "1h")}})
		if len(w.took) != 1 || w.took[0] != 40*time.Millisecond {
			t.Errorf("%v", w.took)
		}
	})
}

// TestAnswersWithoutTheStoreAreNotTallied, unless a limit in memory decided: the others charge nothing, and deny whoever asks.
func TestAnswersWithoutTheStoreAreNotTallied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		tallied := map[engine.OnError]int{}
		e := start(t, engine.Config{Store: store, Tally: func(r *engine.Request, _ *engine.Decision) { tallied[r.OnError]++ }})
		store.fail(func(bool) error { return errors.New("down") })
		for _, on := range []engine.OnError{engine.OnErrorAllow, engine.OnErrorDeny, engine.OnErrorLocal} {
			for range 3 {
				ask(t, e, engine.Request{ID: "a", OnError: on, Limits: []engine.Limit{per(t, "k", 10, "1h")}})
			}
		}
		if tallied[engine.OnErrorAllow]+tallied[engine.OnErrorDeny] != 0 || tallied[engine.OnErrorLocal] != 3 {
			t.Errorf("%v", tallied)
		}
	})
}
