package engine_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

// TestSettleKeepsFractionOfToken, also where a token became whole between the charge and the
// settle, so that as many whole ones are there as before.
func TestSettleKeepsFractionOfToken(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
		withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
			l := per(t, "k", 10, "1m")
			l.Algorithm, l.Threshold = engine.TokenBucket, -1
			ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 10})
			time.Sleep(11_900 * time.Millisecond) // 1.983 tokens
			ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 1, ID: "job"})
			time.Sleep(after)
			if _, err := storetest.Settle(t.Context(), e, "job", 0); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100*time.Millisecond - min(after, 100*time.Millisecond))
			d := ask(t, e, engine.Request{Verb: engine.Check, Limits: []engine.Limit{l}, Cost: 2})
			if d.Results[0].RetryAfter > 101 {
				t.Errorf("settled to nothing after %s: %+v", after, d.Results[0])
			}
		})
	}
}

// TestSettleWithLeasesGivesBackFractionOfToken: a reservation that cost nothing costs nothing
// while another worker has a lease.
func TestSettleWithLeasesGivesBackFractionOfToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		workers := startWorkers(t, openTap(t), 2)
		l := leased(t, "k", 100_000)
		l.Algorithm, l.Window = engine.TokenBucket, window(t, "366d")
		charged := int64(0)
		for i := range 300 {
			for range 5 {
				ask(t, workers[1], engine.Request{Limits: []engine.Limit{l}})
				charged++
			}
			if i < 100 {
				continue
			}
			id := fmt.Sprint("job", i)
			ask(t, workers[0], engine.Request{Limits: []engine.Limit{l}, ID: id})
			time.Sleep(2 * time.Millisecond)
			if _, err := storetest.Settle(t.Context(), workers[0], id, 0); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(3 * time.Second)
		if used := usedNow(t, workers[0], "k"); used > charged+1 {
			t.Errorf("%d used, %d were charged", used, charged)
		}
	})
}
