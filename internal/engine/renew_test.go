package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// spend uses up the worker's lease of the limit, for which there is recent demand.
func spend(t *testing.T, e *engine.Engine, l engine.Limit) {
	t.Helper()
	warm(t, e, l)
	for e.Leased() > 0 {
		ask(t, e, engine.Request{Limits: []engine.Limit{l}})
	}
}

func TestSpentLeaseIsRenewedWithNextTransaction(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		l := leased(t, "k", 1_000_000_000)
		spend(t, e, l)
		ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "other", 10, "1h")}})
		before := store.count()
		ask(t, e, engine.Request{Limits: []engine.Limit{l}})
		if store.count() != before || e.Leased() == 0 {
			t.Errorf("%d transactions for the next request, and %d leased", store.count()-before, e.Leased())
		}
	})
}

func TestSpentLeaseOfResetCounterIsNotRenewed(t *testing.T) {
	t.Parallel()
	for name, workers := range map[string]func(*testing.T, engine.Store) []*engine.Engine{
		"worker was notified": func(t *testing.T, s engine.Store) []*engine.Engine { return startWorkers(t, s, 2) },
		"worker was not notified": func(t *testing.T, s engine.Store) []*engine.Engine {
			return append(startWorkers(t, s, 1), startWorkers(t, s, 1)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				both := workers(t, openTap(t))
				spend(t, both[0], leased(t, "k", 1_000_000_000))
				if _, err := both[1].Reset(t.Context(), engine.Selection{Key: "k"}, false); err != nil {
					t.Fatal(err)
				}
				ask(t, both[0], engine.Request{Limits: []engine.Limit{per(t, "other", 10, "1h")}})
				if used := usedNow(t, both[0], "k"); used != 0 || both[0].Leased() != 0 {
					t.Errorf("%d used and %d leased of a counter that nobody asked for since its reset", used, both[0].Leased())
				}
			})
		})
	}
}

// TestALeaseIsRenewedBeforeItEnds as long as there is demand, so that nobody waits for a transaction. Then it is given back.
func TestALeaseIsRenewedBeforeItEnds(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		l := leased(t, "k", 1_000_000_000)
		charged := warm(t, e, l)
		for range 3 { // the third comes after the end of the first lease
			time.Sleep(450 * time.Millisecond)
			synctest.Wait()
			before := store.count()
			ask(t, e, engine.Request{Limits: []engine.Limit{l}})
			if charged++; store.count() != before {
				t.Errorf("request %d waited for a transaction", charged)
			}
		}
		time.Sleep(2100 * time.Millisecond)
		synctest.Wait()
		if used := usedNow(t, e, "k"); used != charged || e.Leased() != 0 {
			t.Errorf("%d used and %d leased two seconds after the last of %d requests", used, e.Leased(), charged)
		}
	})
}

// TestALeaseThatServedNothingIsNotRenewed: that would be a write more for a counter that is seldom asked for.
func TestALeaseThatServedNothingIsNotRenewed(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		l := leased(t, "k", 1_000_000)
		for range 2 {
			ask(t, e, engine.Request{Limits: []engine.Limit{l}})
		}
		if e.Leased() == 0 {
			t.Fatal("no lease")
		}
		before := store.count()
		time.Sleep(1200 * time.Millisecond)
		synctest.Wait()
		if used, more := usedNow(t, e, "k"), store.count()-before; used != 2 || more != 1 {
			t.Errorf("%d used 1.2 s after 2 requests, and %d more transactions, want the one that gives the lease back", used, more)
		}
	})
}
