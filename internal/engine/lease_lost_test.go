package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// quota is a leased limit of a month, in which what is lost is missed for long.
func quota(t *testing.T) engine.Limit {
	t.Helper()
	l := leased(t, "k", 1_000_000)
	l.Algorithm, l.Window, l.Name = engine.FixedWindow, window(t, "30d"), "30d"
	return l
}

// demand asks 20,000 times a second until it is to stop, and counts what is charged.
func demand(t *testing.T, e *engine.Engine, l engine.Limit, until func(asked int) bool) (charged int64) {
	t.Helper()
	for i := 0; !until(i); i++ {
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}}); d.Allowed && !d.Degraded {
			charged++
		}
		time.Sleep(50 * time.Microsecond)
	}
	return charged
}

// TestALeaseIsGivenBackAfterAFailure of the store, or a commit that takes seconds: only a crash loses what was charged ahead.
func TestALeaseIsGivenBackAfterAFailure(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(t *testing.T, store *tap, e *engine.Engine, l engine.Limit) (charged int64){
		"outage": func(_ *testing.T, store *tap, _ *engine.Engine, _ engine.Limit) int64 {
			store.fail(func(bool) error { return errors.New("the database is restarting") })
			time.Sleep(8 * time.Second)
			return 0
		},
		"slow commit": func(t *testing.T, store *tap, e *engine.Engine, l engine.Limit) int64 {
			stalled := false
			store.fail(func(committed bool) error {
				if committed && !stalled {
					stalled = true
					time.Sleep(1900 * time.Millisecond)
				}
				return nil
			})
			return demand(t, e, l, func(int) bool { return stalled })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
				l := quota(t)
				charged := demand(t, e, l, func(asked int) bool { return asked == 10_000 })
				charged += trouble(t, store, e, l)
				store.fail(nil)
				time.Sleep(5 * time.Second)
				ask(t, e, engine.Request{Verb: engine.Check, Limits: []engine.Limit{l}})
				if err := e.Close(context.Background()); err != nil {
					t.Fatal(err)
				}
				if used := usedNow(t, e, "k"); used != charged {
					t.Errorf("%d used, of which %d were charged", used, charged)
				}
			})
		})
	}
}
