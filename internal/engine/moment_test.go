package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestDenialDoesNotAdvanceCounter: the retryAfter of a denial under another definition holds,
// whoever is denied under the stored one meanwhile.
func TestDenialDoesNotAdvanceCounter(t *testing.T) {
	t.Parallel()
	for _, verb := range []engine.Verb{engine.Check, engine.Consume} {
		withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
			stored := per(t, "k", 9, "1d")
			stored.Name, stored.Algorithm = "n", engine.FixedWindow
			other := per(t, "k", 5, "1m")
			other.Name = "n"
			ask(t, e, engine.Request{Limits: []engine.Limit{stored}, Cost: 9})
			time.Sleep(time.Second)
			told := ask(t, e, engine.Request{Limits: []engine.Limit{other}}).Results[0].RetryAfter
			at := time.Now().Add(time.Duration(told) * time.Millisecond)
			for time.Until(at) > 11*time.Second { // an event is due each time
				time.Sleep(11 * time.Second)
				if d := ask(t, e, engine.Request{Verb: verb, Limits: []engine.Limit{stored}}); d.Allowed {
					t.Fatalf("%s: %+v", verb, d)
				}
			}
			time.Sleep(time.Until(at))
			if d := ask(t, e, engine.Request{Limits: []engine.Limit{other}}); !d.Allowed {
				t.Errorf("%s: still denied at the moment told, for %d ms more", verb, d.Results[0].RetryAfter)
			}
		})
	}
}

// TestLateRefundDoesNotAdvanceCounter: a refund that comes when nothing counts any more gives nothing back, and what was used
// still counts under a longer window.
func TestLateRefundDoesNotAdvanceCounter(t *testing.T) {
	t.Parallel()
	for _, a := range []engine.Algorithm{engine.SlidingWindow, engine.FixedWindow, engine.TokenBucket} {
		withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
			l := per(t, "k", 10, "1m")
			l.Name, l.Algorithm = "n", a
			longer := l
			longer.Window = window(t, "30d")
			ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 10})
			time.Sleep(2 * time.Minute)
			if d := ask(t, e, engine.Request{Verb: engine.Refund, Limits: []engine.Limit{l}}); d.Results[0].Used != 0 {
				t.Errorf("%s: after the refund %+v", a, d.Results[0])
			}
			if d := ask(t, e, engine.Request{Limits: []engine.Limit{longer}}); d.Allowed || d.Results[0].Used != 10 {
				t.Errorf("%s: %+v", a, d.Results[0])
			}
		})
	}
}

// TestNeverFittingCostIsReportedOnce, even if another definition of the counter denies it in the
// same transaction.
func TestNeverFittingCostIsReportedOnce(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		free := per(t, "k", 10, "1m")
		pro := free
		pro.Limit = 20
		done := make(chan error, 3)
		submit := func(l engine.Limit, cost int64) {
			r := &engine.Request{Limits: []engine.Limit{l}, Cost: cost, Done: func(_ engine.Decision, err error) { done <- err }}
			if err := e.Submit(r); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			store.hold()
			submit(per(t, "gate", 1000, "1m"), 1)
			<-store.enter
			submit(free, 50) // both in the next transaction
			submit(pro, 50)
			store.release()
			for range cap(done) {
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			}
		}
		if events := store.events(t); len(events) != 1 || events[0].Limit != free.Limit {
			t.Errorf("%d events: %+v", len(events), events)
		}
		stored, _, err := store.Counters(t.Context(), "k")
		if err != nil || len(stored) != 1 || len(stored[0].State) == 0 {
			t.Errorf("%+v, %v", stored, err)
		}
	})
}

// deniedAhead is an engine that was asked while its store's clock was an hour ahead, and the clock
// was then set back. Of its three requests one was allowed, one was denied with an event, and one
// was denied and counted in memory.
func deniedAhead(t *testing.T) (*tap, *engine.Engine, engine.Limit) {
	t.Helper()
	ahead := time.Hour
	store := openTapAt(t, func() time.Time { return time.Now().Add(ahead) })
	e := start(t, engine.Config{Store: store})
	l := per(t, "k", 1, "1m")
	l.Threshold = -1
	for range 3 {
		ask(t, e, engine.Request{Limits: []engine.Limit{l}})
	}
	ahead = 0
	return store, e, l
}

// An event that was raised while the clock was ahead does not delay the next one.
func TestDenialsAreReportedAfterClockStepsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, e, l := deniedAhead(t)
		for range 10 {
			ask(t, e, engine.Request{Limits: []engine.Limit{l}, ID: time.Now().String()}) // the store decides
			time.Sleep(10 * time.Second)
			synctest.Wait()
		}
		if denied := toldOf(t, store); denied != 12 {
			t.Errorf("events tell of %d of 12 denials", denied)
		}
	})
}

// Denials whose event is due at a time that is now far ahead are reported at once.
func TestPendingDenialsAreReportedAfterClockStepsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, e, _ := deniedAhead(t)
		ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "other", 1, "1m")}}) // reads the clock
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if denied := toldOf(t, store); denied != 2 {
			t.Errorf("events tell of %d of 2 denials", denied)
		}
	})
}
