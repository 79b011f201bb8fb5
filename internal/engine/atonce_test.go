package engine_test

import (
	"testing"
	"testing/synctest"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestAtOnceIsSetForImmediateAnswers: a caller may have work that it must not do in its own
// goroutine.
func TestAtOnceIsSetForImmediateAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := start(t, engine.Config{Store: openTap(t)})
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
