package engine_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestDenialUnderOtherDefinitionIsCached beside the one under the stored definition: if the
// limit of somebody who asks all the time is lowered, not all of these requests go to the store.
func TestDenialUnderOtherDefinitionIsCached(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []engine.Algorithm{engine.SlidingWindow, engine.FixedWindow, engine.TokenBucket} {
		t.Run(algorithm.String(), func(t *testing.T) {
			t.Parallel()
			withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
				limit := func(n int64, text string) engine.Request {
					l := per(t, "k", n, text)
					l.Name, l.Algorithm = "one", algorithm
					return engine.Request{Limits: []engine.Limit{l}}
				}
				before, lowered := limit(5, "1h"), limit(2, "10m")
				for range 6 {
					ask(t, e, before)
				}
				for range 3 { // the first has an event, the second is cached after it, and what was cached before stays
					ask(t, e, lowered)
					ask(t, e, before)
				}
				transactions := store.count()
				var d engine.Decision
				for range 100 {
					if ask(t, e, before).Allowed || ask(t, e, lowered).Allowed {
						t.Fatal("allowed")
					}
				}
				if got := store.count() - transactions; got != 0 {
					t.Errorf("%d transactions for 200 known denials, want none", got)
				}
				d = ask(t, e, lowered)
				time.Sleep(time.Duration(d.Results[0].RetryAfter-1) * time.Millisecond)
				if d := ask(t, e, lowered); d.Allowed {
					t.Errorf("allowed before its retry: %+v", d)
				}
				time.Sleep(time.Millisecond)
				if d := ask(t, e, lowered); !d.Allowed {
					t.Errorf("denied at its retry: %+v", d)
				}
			})
		})
	}
}

// TestCacheOfTwoDefinitionsMatchesStore, after any requests: each answer is
// compared with the store's at the same moment.
func TestCacheOfTwoDefinitionsMatchesStore(t *testing.T) {
	t.Parallel()
	remembered := 0
	for seed := range uint64(histories(60)) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			store := openTap(t)
			e := start(t, engine.Config{Store: store})
			var definitions []engine.Limit
			for range 3 {
				l := per(t, "k", 1+random.Int64N(6), []string{"1s", "5s", "1m"}[random.IntN(3)])
				l.Name, l.Algorithm = "one", engine.Algorithm(random.IntN(3))
				definitions = append(definitions, l)
			}
			for step := range 200 {
				any := func() engine.Request {
					verb := []engine.Verb{engine.Consume, engine.Consume, engine.Check, engine.Check, engine.Check, engine.Refund}[random.IntN(6)]
					return engine.Request{Verb: verb, Limits: []engine.Limit{definitions[random.IntN(3)]}, Cost: 1 + random.Int64N(2)}
				}
				switch random.IntN(6) {
				case 0:
					time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
				case 1: // some of them in one batch
					var asking sync.WaitGroup
					for range 8 {
						r := any()
						asking.Go(func() { ask(t, e, r) })
					}
					asking.Wait()
				case 2:
					ask(t, e, any())
				}
				r := any()
				r.Verb = engine.Check
				synctest.Wait() // due denials have been reported
				before := store.count()
				got := ask(t, e, r)
				if store.count() != before {
					continue
				}
				remembered++
				e.Forget(engine.Forget{All: true})
				if diff := cmp.Diff(ask(t, e, r), got); diff != "" {
					t.Fatalf("seed %d, step %d: the store says - and memory +\n%s", seed, step, diff)
				}
			}
		})
	}
	if remembered < 1000 {
		t.Errorf("%d answers from memory", remembered)
	}
}

// TestDenialUnderOtherDefinitionUsesStoredMoment, also in a batch in which other requests
// have advanced the counter.
func TestDenialUnderOtherDefinitionUsesStoredMoment(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		stored := engine.Request{Limits: []engine.Limit{per(t, "k", 1, "1h")}}
		other := stored
		other.Limits = []engine.Limit{per(t, "k", 1, "1m")}
		other.Limits[0].Name = "1h"
		for range 2 { // the denial has an event
			ask(t, e, stored)
		}
		time.Sleep(2 * time.Second)
		store.hold()
		var asking sync.WaitGroup
		var together engine.Decision
		asking.Go(func() { ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "first", 1, "1h")}}) })
		<-store.enter
		asking.Go(func() { ask(t, e, stored) })
		synctest.Wait()
		asking.Go(func() { together = ask(t, e, other) })
		synctest.Wait()
		store.release()
		asking.Wait()
		if batches := store.count(); batches != 5 { // the first is from the start of the engine
			t.Fatalf("%d transactions, want 5", batches)
		}
		e.Forget(engine.Forget{All: true})
		if diff := cmp.Diff(ask(t, e, other), together); diff != "" {
			t.Errorf("alone - and behind another request +\n%s", diff)
		}
	})
}
