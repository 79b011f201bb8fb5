package engine_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

// TestGivingBackDoesNotDelayRetry: the retryAfter of a denial under another definition holds,
// though cost is given back under the stored one until then.
func TestGivingBackDoesNotDelayRetry(t *testing.T) {
	t.Parallel()
	day := per(t, "k", 100, "1d")
	day.Name, day.Threshold = "n", -1
	anchored := day
	anchored.Algorithm, anchored.FirstUse = engine.FixedWindow, true
	limits := []engine.Limit{day, anchored, day, day}
	limits[2].Algorithm, limits[3].Algorithm = engine.FixedWindow, engine.TokenBucket
	minute := day
	minute.Window = window(t, "1m")
	for _, l := range limits {
		for _, how := range []string{"refund", "settle"} {
			t.Run(fmt.Sprintf("%s, first use %t, %s", l.Algorithm, l.FirstUse, how), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testGivingBackKeepsRetry(t, l, minute, how) })
			})
		}
	}
}

func testGivingBackKeepsRetry(t *testing.T, stored, other engine.Limit, how string) {
	e := start(t, engine.Config{Store: openTap(t)})
	ask(t, e, engine.Request{Limits: []engine.Limit{stored}, Cost: 100, ID: "x"})
	denied := ask(t, e, engine.Request{Limits: []engine.Limit{other}, Cost: 50})
	told := time.Duration(denied.Results[0].RetryAfter) * time.Millisecond
	time.Sleep(told - 5*time.Second)
	if how == "refund" {
		ask(t, e, engine.Request{Verb: engine.Refund, Limits: []engine.Limit{stored}})
	} else if _, err := storetest.Settle(t.Context(), e, "x", 99); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * time.Second)
	if got := usedNow(t, e, "k"); got > 99 {
		t.Errorf("%d used, want 99 at most", got)
	}
	if d := ask(t, e, engine.Request{Limits: []engine.Limit{other}, Cost: 50}); denied.Allowed || !d.Allowed {
		t.Errorf("told %s, then denied for %d ms more", told, d.Results[0].RetryAfter)
	}
}

// TestDenialAfterRefundDoesNotDelayRetry, if both come in one transaction and the refund is under
// the other definition.
func TestDenialAfterRefundDoesNotDelayRetry(t *testing.T) {
	t.Parallel()
	for _, verb := range []engine.Verb{engine.Consume, engine.Check} {
		withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
			hour, minute := per(t, "k", 10, "1h"), per(t, "k", 5, "1m")
			minute.Name = hour.Name
			ask(t, e, engine.Request{Limits: []engine.Limit{hour}, Cost: 10})
			time.Sleep(time.Second)
			denied := ask(t, e, engine.Request{Limits: []engine.Limit{minute}})
			retry := time.Now().Add(time.Duration(denied.Results[0].RetryAfter) * time.Millisecond)
			time.Sleep(30 * time.Second)
			inOneBatch(t, store,
				submission{e, engine.Request{Verb: engine.Refund, Limits: []engine.Limit{minute}, Cost: 1}, nil},
				submission{e, engine.Request{Verb: verb, Limits: []engine.Limit{hour}, Cost: 2}, nil},
				submission{e, engine.Request{Verb: engine.Check, Limits: []engine.Limit{minute}, Cost: 1}, nil})
			time.Sleep(time.Until(retry))
			if d := ask(t, e, engine.Request{Limits: []engine.Limit{minute}}); denied.Allowed || !d.Allowed {
				t.Errorf("%s: denied for %d ms more at the moment that was told", verb, d.Results[0].RetryAfter)
			}
		})
	}
}

// TestRefundUnderAnotherAmountGivesBackWhatCounts, and not what has left the window: a check says what the refund said.
func TestRefundUnderAnotherAmountGivesBackWhatCounts(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []engine.Algorithm{engine.SlidingWindow, engine.FixedWindow} {
		withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
			free, pro := per(t, "k", 10, "1m"), per(t, "k", 20, "1m")
			free.Algorithm, pro.Algorithm = algorithm, algorithm
			ask(t, e, engine.Request{Limits: []engine.Limit{free}, Cost: 6})
			time.Sleep(40 * time.Second)
			ask(t, e, engine.Request{Limits: []engine.Limit{free}, Cost: 4})
			time.Sleep(30 * time.Second) // a first charge in a sliding window has left it
			told := ask(t, e, engine.Request{Verb: engine.Refund, Limits: []engine.Limit{pro}, Cost: 4}).Results[0].Remaining
			if d := ask(t, e, engine.Request{Verb: engine.Check, Limits: []engine.Limit{pro}}); d.Results[0].Remaining != told {
				t.Errorf("%s: the refund said %d remain, a check says %d", algorithm, told, d.Results[0].Remaining)
			}
		})
	}
}

// TestSettlePastTheLimitIsReportedUnderAnotherAmount: a request of another tier may have charged the counter meanwhile.
func TestSettlePastTheLimitIsReportedUnderAnotherAmount(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 10, "1m")}, ID: "x"})
		ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 12, "1m")}, Cost: 5})
		if d, err := storetest.Settle(t.Context(), e, "x", 20); err != nil || d.Allowed {
			t.Fatal(d, err)
		}
		if n := len(store.events(t)); n != 2 {
			t.Errorf("%d events, want a warning and an exceeded one", n)
		}
	})
}
