package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

// A counter that is made after a reset is another one, even if nothing but a moment lies between them: on the clock of these
// tests no time passes but that for which somebody waits.

func TestASettleOfBeforeAResetGivesNothingBack(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
		all := engine.Request{Limits: []engine.Limit{per(t, "k", 10, "1h")}, Cost: 10}
		first := all
		first.ID = "old"
		ask(t, e, first)
		reset(t, e)
		ask(t, e, all)
		if _, err := storetest.Settle(t.Context(), e, "old", 0); err != nil {
			t.Fatal(err)
		}
		if ask(t, e, all).Allowed {
			t.Error("20 of 10 were admitted after a reset")
		}
	})
}

func TestALeaseOfBeforeAResetGivesNothingBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		a, b := start(t, engine.Config{Store: store}), start(t, engine.Config{Store: store})
		l := leased(t, "k", 1000)
		l.Algorithm, l.Window = engine.FixedWindow, window(t, "366d")
		warm(t, a, l)
		reset(t, b)
		a.Forget(engine.Forget{Key: "k"}) // the broadcast arrives: a gives its lease back with the next sweep
		admitted := warm(t, b, l)
		time.Sleep(300 * time.Millisecond)
		for ask(t, b, engine.Request{Limits: []engine.Limit{l}}).Allowed {
			admitted++
		}
		if admitted != 1000 {
			t.Errorf("%d of 1000 were admitted after a reset", admitted)
		}
	})
}

func reset(t *testing.T, e *engine.Engine) {
	t.Helper()
	if _, err := e.Reset(t.Context(), engine.Selection{Key: "k"}, false); err != nil {
		t.Fatal(err)
	}
}
