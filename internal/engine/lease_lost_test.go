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

// trouble is something that befalls a store while a worker has a lease of the limit.
type trouble func(t *testing.T, store *tap, e *engine.Engine, l engine.Limit) (charged int64)

// slowed has one transaction take longer, before its commit or after it, while requests go on.
func slowed(atCommit bool, by time.Duration) trouble {
	return func(t *testing.T, store *tap, e *engine.Engine, l engine.Limit) int64 {
		stalled := false
		store.fail(func(committed bool) error {
			if committed == atCommit && !stalled {
				stalled = true
				time.Sleep(by)
			}
			return nil
		})
		return demand(t, e, l, func(int) bool { return stalled })
	}
}

// TestALeaseIsGivenBackAfterAFailure of the store, or a transaction that takes seconds: only a crash loses what was charged
// ahead.
func TestALeaseIsGivenBackAfterAFailure(t *testing.T) {
	t.Parallel()
	for name, befall := range map[string]trouble{
		"outage": func(_ *testing.T, store *tap, _ *engine.Engine, _ engine.Limit) int64 {
			store.fail(func(bool) error { return errors.New("the database is restarting") })
			time.Sleep(8 * time.Second)
			return 0
		},
		"slow commit":       slowed(true, 1900*time.Millisecond),
		"stuck commit":      slowed(true, 5*time.Second),
		"stuck transaction": slowed(false, 5*time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
				l := quota(t)
				charged := demand(t, e, l, func(asked int) bool { return asked == 10_000 })
				charged += befall(t, store, e, l)
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
