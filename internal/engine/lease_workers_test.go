package engine_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed503877ad/limits/internal/engine"
)

// flock starts engines over one store that tell each other what to forget, as workers do.
func flock(t *testing.T, store engine.Store, n int) []*engine.Engine {
	t.Helper()
	engines := make([]*engine.Engine, n)
	var ready atomic.Bool
	for i := range engines {
		engines[i] = start(t, engine.Config{Store: store, Broadcast: func(f engine.Forget) {
			for _, e := range engines {
				if ready.Load() {
					e.Forget(f)
				}
			}
		}})
	}
	ready.Store(true)
	return engines
}

func TestWhatChangesACounterReachesTheLeasesOfAllWorkers(t *testing.T) {
	t.Parallel()
	l := leased(t, "k", 100_000)
	redefined := l
	redefined.Limit = 200_000
	for name, c := range map[string]struct {
		change func(t *testing.T, e *engine.Engine)
		// used is what the next answer of the other worker says, after n requests.
		used func(n int64) int64
	}{
		"reset": {func(t *testing.T, e *engine.Engine) {
			if _, err := e.Reset(t.Context(), engine.Selection{Key: "k"}, false); err != nil {
				t.Fatal(err)
			}
		}, func(int64) int64 { return 1 }},
		"refund": {func(t *testing.T, e *engine.Engine) {
			ask(t, e, engine.Request{Verb: engine.Refund, Limits: []engine.Limit{l}, Cost: 2})
		}, func(n int64) int64 { return n - 2 + 1 }},
		"record": {func(t *testing.T, e *engine.Engine) {
			ask(t, e, engine.Request{Verb: engine.Record, Limits: []engine.Limit{l}, Cost: 2})
		}, func(n int64) int64 { return n + 2 + 1 }},
		"another limit": {func(t *testing.T, e *engine.Engine) {
			ask(t, e, engine.Request{Limits: []engine.Limit{redefined}})
		}, func(n int64) int64 { return n + 1 + 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := openTap(t)
			workers := flock(t, store, 2)
			n := warm(t, workers[0], l)
			c.change(t, workers[1])
			before := store.count()
			d := ask(t, workers[0], engine.Request{Limits: []engine.Limit{l}})
			if store.count() == before {
				t.Fatalf("served from a lease: %+v", d)
			}
			// What the redefinition found lent was charged anew, and is not known again.
			if got, want := d.Results[0].Used, c.used(n); got != want && (name != "another limit" || got < want) {
				t.Errorf("%d used after %d requests and the change, want %d", got, n, want)
			}
		})
	}
}

// TestWorkersWithLeasesNeverAdmitMoreAndShareTheRest, also where every tenth request is of a caller whose limit is another.
func TestWorkersWithLeasesNeverAdmitMoreAndShareTheRest(t *testing.T) {
	t.Parallel()
	for _, more := range []int64{0, 100} {
		t.Run(fmt.Sprint(more, " more for some"), func(t *testing.T) {
			t.Parallel()
			testLeasesOfWorkers(t, more)
		})
	}
}

func testLeasesOfWorkers(t *testing.T, more int64) {
	const limit = 2000
	store := openTap(t)
	workers := flock(t, store, 3)
	l := leased(t, "k", limit)
	other := l
	other.Limit += more
	var allowed atomic.Int64
	var clients sync.WaitGroup
	for i := range 12 {
		clients.Go(func() {
			for n := range 250 {
				r := engine.Request{Limits: []engine.Limit{l}, Cost: 1}
				if n%10 == 0 {
					r.Limits[0] = other
				}
				d, err := workers[i%len(workers)].Do(t.Context(), &r)
				if err != nil {
					t.Error(err)
				} else if d.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	clients.Wait()
	if got := allowed.Load(); got > other.Limit {
		t.Fatalf("%d allowed of %d", got, other.Limit)
	}
	for _, w := range workers[1:] {
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// The others have given back what they held, so all of the limit is there for the last.
	rest := other.Limit - allowed.Load()
	for range rest {
		if d := ask(t, workers[0], engine.Request{Limits: []engine.Limit{other}}); !d.Allowed {
			t.Fatalf("denied with %d left: %+v", rest, d)
		}
	}
	if d := ask(t, workers[0], engine.Request{Limits: []engine.Limit{other}}); d.Allowed {
		t.Error("allowed past the limit")
	}
}
