package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestAtOnceIsSetForImmediateAnswers: a caller may have work that it must not do in its own
// goroutine.
func TestAtOnceIsSetForImmediateAnswers(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
		for _, limits := range [][]engine.Limit{nil, {per(t, "k", 10, "1m")}} {
			answered := make(chan bool, 1)
			r := &engine.Request{Verb: engine.Record, Limits: limits, Cost: 1}
			r.Done = func(engine.Decision, error) { answered <- r.AtOnce }
			if err := e.Submit(r); err != nil {
				t.Fatal(err)
			}
			if atOnce := <-answered; atOnce != (limits == nil) {
				t.Errorf("with %d limits: %v", len(limits), atOnce)
			}
		}
	})
}

// TestDenialsFromMemoryAreExactBesideSlowCommits: their retryAfter ends with the window, as that of the store's does.
func TestDenialsFromMemoryAreExactBesideSlowCommits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		store.fail(func(committed bool) error {
			if committed {
				time.Sleep(300 * time.Millisecond)
			}
			return nil
		})
		e := start(t, engine.Config{Store: store})
		l := per(t, "k", 1, "1m")
		l.Algorithm = engine.FixedWindow
		r := engine.Request{Limits: []engine.Limit{l}}
		for ask(t, e, r).Allowed {
		}
		transactions, asked := store.count(), time.Now()
		d := ask(t, e, r).Results[0]
		if late := asked.UnixMilli() + d.RetryAfter - d.ResetAt; store.count() != transactions || late != 0 {
			t.Errorf("%d more transactions, %d ms late", store.count()-transactions, late)
		}
	})
}
