package engine_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestCloseReportsRememberedDenials at once, so that nothing has to be denied again for them to be told.
func TestCloseReportsRememberedDenials(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		consume := by(t, "u", 1)
		consume.Limits[0].Limit = 1
		for range 8 { // 1 allowed, 1 told, 6 remembered
			ask(t, e, consume)
		}
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := store.events(t)
		if len(got) != 2 || got[0].Denied != 1 || got[1].Denied != 6 || got[1].User != "u" || got[1].RetryAfter == 0 || got[1].Threshold != 0 {
			t.Fatalf("%+v: want one event for the first denial, and one for the 6 others", got)
		}
		closed := got[1].Time
		next := start(t, engine.Config{Store: store})
		time.Sleep(9 * time.Second)
		ask(t, next, consume)
		if got := store.events(t); len(got) != 0 {
			t.Fatalf("%+v: the next event came within 10 s of the one at the stop", got)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := store.events(t); len(got) != 1 || got[0].Denied != 1 || got[0].Time < closed+10_000 {
			t.Errorf("%+v: want the next event 10 s after the one at the stop, for 1 denial", got)
		}
	})
}

// TestCloseReportsWhatOthersLeftInCounter: a worker leaves its denials there when another one has raised the event.
func TestCloseReportsWhatOthersLeftInCounter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		workers := startWorkers(t, store, 2)
		denied := by(t, "u", 11)
		for range 3 { // the first is told, the others are remembered
			for _, w := range workers {
				ask(t, w, denied)
			}
		}
		time.Sleep(12 * time.Second) // one raises the event, the other leaves its denials in the counter
		synctest.Wait()
		for _, w := range workers {
			ask(t, w, denied)
		}
		left := 8 - toldOf(t, store)
		if left <= 2 {
			t.Fatalf("%d denials are not told, and the last two of them are remembered", left)
		}
		if err := workers[0].Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		first := store.events(t)
		if err := workers[1].Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if second := store.events(t); len(first) != 1 || first[0].Denied != left-1 || len(second) != 1 || second[0].Denied != 1 {
			t.Errorf("%+v and %+v: want the first event to tell of %d denials, of which the other worker has left some, and the second of its last",
				first, second, left-1)
		}
	})
}

// TestCloseReportsNothingTwice: there is no event without a denial that was not told.
func TestCloseReportsNothingTwice(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		ask(t, e, by(t, "u", 11))
		if got := toldOf(t, store); got != 1 {
			t.Fatalf("told of %d denials, want the first", got)
		}
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := store.events(t); len(got) != 0 {
			t.Errorf("%+v: want no event", got)
		}
	})
}

// TestCloseTriesStoreOnceMore: it may have recovered since it failed, and only this worker knows
// its denials.
func TestCloseTriesStoreOnceMore(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		l := per(t, "k", 1, "1h")
		l.Threshold = -1
		for range 5 { // 1 allowed, 1 told, 3 remembered
			ask(t, e, engine.Request{Limits: []engine.Limit{l}})
		}
		store.fail(func(bool) error { return errors.New("connection refused") })
		ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "another", 1, "1h")}})
		store.fail(nil)
		if e.Failure() == nil {
			t.Fatal("the circuit is closed")
		}
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := toldOf(t, store); got != 4 {
			t.Errorf("told of %d denials, there were 4", got)
		}
	})
}

// TestCloseWaitsForRunningProbe, because the circuit lets nothing else through to the
// store meanwhile.
func TestCloseWaitsForRunningProbe(t *testing.T) {
	t.Parallel()
	for _, into := range []time.Duration{0, 300 * time.Millisecond, 600 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			store := &slowStore{tap: openTap(t)}
			e := start(t, engine.Config{Store: store})
			l := per(t, "k", 1, "1h")
			l.Threshold = -1
			for range 5 { // 1 allowed, 1 told, 3 remembered
				ask(t, e, engine.Request{Limits: []engine.Limit{l}})
			}
			store.takes.Store(int64(time.Hour))
			another := engine.Request{Limits: []engine.Limit{per(t, "another", 1, "1h")}}
			for range 10 {
				ask(t, e, another)
			}
			if e.Failure() == nil {
				t.Fatal("the circuit is closed")
			}
			time.Sleep(5 * time.Second)
			asked := time.Now()
			for n := store.tries.Load(); store.tries.Load() == n && time.Since(asked) < time.Minute; time.Sleep(10 * time.Millisecond) { // until the next probe
			}
			time.Sleep(into)
			store.takes.Store(0)
			if err := e.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := toldOf(t, store.tap); got != 4 {
				t.Errorf("%v into the probe: told of %d denials, there were 4", into, got)
			}
		})
	}
}

// TestDenialsLeftByWorkerAreKeptForAnHour, though the counter has long been free: they were another worker's, and the one
// that was to report them could not write any more.
func TestDenialsLeftByWorkerAreKeptForAnHour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		workers := startWorkers(t, store, 2)
		denied := by(t, "u", 11)
		denied.Limits[0].Window = window(t, "1s")
		for range 3 { // the first is told, the others are remembered
			for _, w := range workers {
				ask(t, w, denied)
			}
		}
		time.Sleep(12 * time.Second) // one raises the event, the other leaves its denials in the counter
		synctest.Wait()
		left := 6 - toldOf(t, store)
		if left == 0 {
			t.Fatal("all is told")
		}
		store.fail(func(bool) error { return errors.New("connection refused") })
		for _, w := range workers {
			if err := w.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		store.fail(nil)
		time.Sleep(50 * time.Minute)
		if _, err := store.Expire(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		ask(t, start(t, engine.Config{Store: store}), denied)
		if got := toldOf(t, store); got != left+1 {
			t.Errorf("told of %d denials, want the %d that were kept, and the one now", got, left)
		}
	})
}

// TestCloseTellsOfLostDenials: what a store that fails does not take is in no event, and nobody else knows of it.
func TestCloseTellsOfLostDenials(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	for name, c := range map[string]struct {
		asked int // of two counters: 1 is allowed, 1 told, the others are remembered
		fault func(committed bool) error
		want  string
	}{
		"a store that fails":               {5, func(bool) error { return refused }, "report denials: 6 denials of 2 counters are lost: connection refused"},
		"a store that hangs":               {5, func(bool) error { time.Sleep(time.Minute); return refused }, "report denials: 6 denials of 2 counters are lost: context deadline exceeded"},
		"a store that works":               {5, nil, ""},
		"a store that fails, all was told": {2, func(bool) error { return refused }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := openTap(t)
				e, err := engine.New(t.Context(), engine.Config{Store: store, NewID: rand.Text})
				if err != nil {
					t.Fatal(err)
				}
				for range c.asked {
					ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "a", 1, "1h")}})
					ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "b", 1, "1h")}})
				}
				store.fail(c.fault)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				began := time.Now()
				err = e.Close(ctx)
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("it took %s, and had 10 s", took)
				}
				if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v; want %q", err, c.want)
				}
				time.Sleep(10 * time.Minute) // until the transaction that hung has ended
			})
		})
	}
}

// TestCloseTellsOfDenialsOfUnreadableCounter: the others are reported.
func TestCloseTellsOfDenialsOfUnreadableCounter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		e, err := engine.New(t.Context(), engine.Config{Store: store, NewID: rand.Text})
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "a", 1, "1h")}})
			ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "b", 1, "1h")}})
		}
		err = store.Update(t.Context(), engine.Batch{Counters: []engine.CounterID{per(t, "a", 1, "1h").CounterID}}, func(engine.Snapshot) engine.Changes {
			return engine.Changes{Counters: []engine.CounterChange{{State: []byte("damaged"), Spec: []byte("{}"), ExpiresAt: 1 << 45}}}
		})
		if err != nil {
			t.Fatal(err)
		}
		err = e.Close(t.Context())
		if want := "3 denials of 1 counters are lost"; !errors.Is(err, engine.ErrCorrupt) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q, and that the counter is damaged", err, want)
		}
		if got := toldOf(t, store); got != 5 {
			t.Errorf("told of %d denials, want 2 first ones and 3 of the other counter", got)
		}
	})
}
