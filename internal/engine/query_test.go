package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestStatusOfLimitsIsWhatACheckFinds, also under another definition than the stored one, but it counts no denial.
func TestStatusOfLimitsIsWhatACheckFinds(t *testing.T) {
	t.Parallel()
	for _, a := range []engine.Algorithm{engine.SlidingWindow, engine.FixedWindow, engine.TokenBucket} {
		withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
			used := per(t, "k", 10, "1m")
			used.Algorithm, used.Name, used.Threshold = a, "n", -1
			less, longer, unused := used, used, used
			less.Limit, longer.Window, unused.Name = 5, window(t, "1d"), "other"
			ask(t, e, engine.Request{Limits: []engine.Limit{used}, Cost: 10})
			time.Sleep(7 * time.Second)
			for _, limits := range [][]engine.Limit{{used, unused}, {less}, {unused, longer}, {used}} {
				got, err := e.StatusOf(t.Context(), limits)
				if err != nil || len(got) != len(limits) {
					t.Fatalf("%s: %+v, %v", a, got, err)
				}
				for i, c := range got {
					r := ask(t, e, engine.Request{Verb: engine.Check, Limits: limits[i : i+1], Cost: engine.MaxAmount}).Results[0]
					if c.Used != r.Used || c.Remaining != r.Remaining || c.ResetAt != r.ResetAt || c.CounterID != limits[i].CounterID || c.Spec.Limit != limits[i].Limit {
						t.Errorf("%s, limit %d: %+v, and a check says %+v", a, i, c, r)
					}
				}
			}
			ask(t, e, engine.Request{Verb: engine.Check, Limits: []engine.Limit{used}, Cost: 10}) // from now on memory denies it
			told := toldOf(t, store)
			for range 5 {
				_, _ = e.StatusOf(t.Context(), []engine.Limit{used, unused})
			}
			time.Sleep(20 * time.Second)
			ask(t, e, engine.Request{Verb: engine.Check, Limits: []engine.Limit{unused}})
			if more := toldOf(t, store); told+more != 7 {
				t.Errorf("%s: events tell of %d and %d denials; there were 7 checks", a, told, more)
			}
		})
	}
}

// TestStatusOfLimitsNeedsTheStore: what is answered without it would be a guess.
func TestStatusOfLimitsNeedsTheStore(t *testing.T) {
	t.Parallel()
	store := openTap(t)
	e := start(t, engine.Config{Store: store})
	store.fail(func(bool) error { return errors.New("down") })
	if got, err := e.StatusOf(t.Context(), []engine.Limit{per(t, "k", 5, "1h")}); got != nil || !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := e.StatusOf(t.Context(), nil); len(got) != 0 || err != nil {
		t.Errorf("no limits: %+v, %v", got, err)
	}
}

// TestStatusOfLimitsIsNotServedFromALease: it does not know what other workers have charged since.
func TestStatusOfLimitsIsNotServedFromALease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		a, b := start(t, engine.Config{Store: store}), start(t, engine.Config{Store: store})
		l := leased(t, "k", 1_000_000)
		warm(t, a, l)
		ask(t, b, engine.Request{Limits: []engine.Limit{l}, Cost: 500_000})
		if got, err := a.StatusOf(t.Context(), []engine.Limit{l}); err != nil || got[0].Used < 500_000 {
			t.Errorf("%+v, %v", got, err)
		}
		store.fail(func(bool) error { return errors.New("down") })
		if got, err := a.StatusOf(t.Context(), []engine.Limit{l}); got != nil || !errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("without the store: %+v, %v", got, err)
		}
		store.fail(nil)
	})
}

// unlisted is a store whose counters cannot be listed.
type unlisted struct{ engine.Store }

func (unlisted) List(context.Context, string, engine.CounterID, int) ([]engine.StoredCounter, int64, error) {
	return nil, 0, errors.New("list is down")
}

// TestAListThatCannotBeReadIsNotEmpty: who pages through the counters is told, and may go on from where it was.
func TestAListThatCannotBeReadIsNotEmpty(t *testing.T) {
	t.Parallel()
	store := unlisted{openTap(t)}
	e := start(t, engine.Config{Store: store})
	after := engine.CounterID{Key: "k", Name: "n"}
	if page, more, err := e.List(t.Context(), "", after, 10); page != nil || more || !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("list: %v, %t, %v", page, more, err)
	}
	if page, err := engine.CheckQuotas(t.Context(), store, after, 10); page.Last != after || !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("quotas: %+v, %v", page, err)
	}
}
