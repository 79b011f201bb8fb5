package engine_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

// startWorkers starts engines over one store that broadcast to each other what to forget.
func startWorkers(t *testing.T, store engine.Store, n int) []*engine.Engine {
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

func TestCounterChangesEndLeasesOfAllWorkers(t *testing.T) {
	t.Parallel()
	l := leased(t, "k", 100_000)
	redefined := l
	redefined.Limit = 200_000
	for name, c := range map[string]struct {
		change func(t *testing.T, e *engine.Engine)
		// used is what the other worker's next answer shows as used, after n requests.
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
		"new definition": {func(t *testing.T, e *engine.Engine) {
			ask(t, e, engine.Request{Limits: []engine.Limit{redefined}})
		}, func(n int64) int64 { return n + 1 + 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := openTap(t)
				workers := startWorkers(t, store, 2)
				n := warm(t, workers[0], l)
				c.change(t, workers[1])
				before := store.count()
				d := ask(t, workers[0], engine.Request{Limits: []engine.Limit{l}})
				if store.count() == before {
					t.Fatalf("served from a lease: %+v", d)
				}
				// What was lent at the redefinition was charged anew, and is no longer known as lent.
				if got, want := d.Results[0].Used, c.used(n); got != want && (name != "new definition" || got < want) {
					t.Errorf("%d used after %d requests and the change, want %d", got, n, want)
				}
			})
		})
	}
}

// TestLeasingWorkersShareOneLimit, also if every tenth request has another
// limit.
func TestLeasingWorkersShareOneLimit(t *testing.T) {
	t.Parallel()
	for _, more := range []int64{0, 100} {
		t.Run(fmt.Sprint(more, " more for some"), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				testLeasesOfWorkers(t, more)
			})
		})
	}
}

func testLeasesOfWorkers(t *testing.T, more int64) {
	const limit = 2000
	store := openTap(t)
	workers := startWorkers(t, store, 3)
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

// TestBroadcastDecisionIsUnsure: a broadcast comes before the commit, which is only right
// while nobody else can write. So a store that calls decide before it has its lock calls it again
// with the lock.
func TestBroadcastDecisionIsUnsure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		leased bool // by another worker
		do     func(t *testing.T, e *engine.Engine, l engine.Limit) error
		unsure bool
	}{
		"a consume": {do: func(t *testing.T, e *engine.Engine, l engine.Limit) error {
			ask(t, e, engine.Request{Limits: []engine.Limit{l}})
			return nil
		}},
		"a record": {do: func(t *testing.T, e *engine.Engine, l engine.Limit) error {
			ask(t, e, engine.Request{Verb: engine.Record, Limits: []engine.Limit{l}})
			return nil
		}},
		"a settle that charges": {do: func(t *testing.T, e *engine.Engine, _ engine.Limit) error {
			_, err := storetest.Settle(t.Context(), e, "job", 7)
			return err
		}},
		"a refund": {unsure: true, do: func(t *testing.T, e *engine.Engine, l engine.Limit) error {
			ask(t, e, engine.Request{Verb: engine.Refund, Limits: []engine.Limit{l}})
			return nil
		}},
		"a settle that gives back": {unsure: true, do: func(t *testing.T, e *engine.Engine, _ engine.Limit) error {
			_, err := storetest.Settle(t.Context(), e, "job", 3)
			return err
		}},
		"a record over a lease": {unsure: true, leased: true, do: func(t *testing.T, e *engine.Engine, l engine.Limit) error {
			ask(t, e, engine.Request{Verb: engine.Record, Limits: []engine.Limit{l}})
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &estimating{tap: openTap(t)}
				e := start(t, engine.Config{Store: store})
				l := per(t, "k", 100_000, "366d")
				l.Threshold, l.Algorithm, l.Leased = -1, engine.FixedWindow, c.leased
				ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 5, ID: "job"})
				if c.leased {
					warmFrom(t, start(t, engine.Config{Store: store.tap}), l, 5)
				}
				before := store.unsure.Load()
				if err := c.do(t, e, l); err != nil {
					t.Fatal(err)
				}
				if again := store.unsure.Load() - before; again > 0 != c.unsure {
					t.Errorf("decided again %d times", again)
				}
			})
		})
	}
}

// TestLeaseOfOtherTierIsGivenBack: callers of tiers with different limits share a counter,
// and each worker has a lease of it. Nothing that was charged ahead stays charged.
func TestLeaseOfOtherTierIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		algorithm engine.Algorithm
		from, to  string
	}{
		"sliding window":                {engine.SlidingWindow, "1h", "1h"},
		"sliding window, other wording": {engine.SlidingWindow, "24h", "1d"},
		"fixed window":                  {engine.FixedWindow, "24h", "1d"},
		"calendar period":               {engine.FixedWindow, "1d", "day"},
	} {
		for _, more := range []int64{0, 1, 100_000} {
			if c.from == c.to && more == 0 {
				continue
			}
			synctest.Test(t, func(t *testing.T) {
				workers := startWorkers(t, openTap(t), 2)
				base := leased(t, "k", 100_000)
				base.Name, base.Algorithm, base.Window = "n", c.algorithm, window(t, c.from)
				other := base
				other.Limit, other.Window = base.Limit+more, window(t, c.to)
				var n int64
				for range 3 {
					n = warmFrom(t, workers[0], base, n)
					ask(t, workers[1], engine.Request{Limits: []engine.Limit{other}})
					n++
				}
				time.Sleep(3 * time.Second)
				if got := usedNow(t, workers[0], "k"); got != n {
					t.Errorf("%s, limit %d and %d: %d used after %d charges", name, base.Limit, other.Limit, got, n)
				}
			})
		}
	}
}

// TestAReturnedLeaseEndsDenials of all workers at once: the counter has room again.
func TestAReturnedLeaseEndsDenials(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		workers := startWorkers(t, store, 2)
		l := leased(t, "k", 10_000)
		warm(t, workers[0], l)
		held := workers[0].Leased()
		all := engine.Request{Limits: []engine.Limit{l}, Cost: 10_000 - usedNow(t, workers[1], "k")}
		ask(t, workers[1], all)
		for range 2 { // the first has an event
			if d := ask(t, workers[1], engine.Request{Limits: []engine.Limit{l}}); d.Allowed {
				t.Fatalf("%+v", d)
			}
		}
		if err := workers[0].Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range held + 1 {
			if d := ask(t, workers[1], engine.Request{Limits: []engine.Limit{l}}); d.Allowed != (i < held) {
				t.Fatalf("request %d after %d came back: allowed %t", i+1, held, d.Allowed)
			}
		}
	})
}
