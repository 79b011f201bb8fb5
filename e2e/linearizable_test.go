package e2e

import (
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
	"github.com/seed503877ad/limits/internal/testenv"
)

// operation is an operation on a counter; outcome is its result.
type operation struct {
	verb engine.Verb
	cost int64
}

type outcome struct {
	allowed   bool
	remaining int64
}

// counterOf returns the sequential specification of one counter in one window. Its state is the cost used.
func counterOf(limit int64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return int64(0) },
		Step: func(state, input, output any) (bool, any) {
			used, in, out := state.(int64), input.(operation), output.(outcome)
			fits := in.verb == engine.Refund || used+in.cost <= limit
			switch {
			case in.verb == engine.Refund:
				used = max(0, used-in.cost)
			case in.verb == engine.Record, in.verb == engine.Consume && fits:
				used += in.cost
			}
			return out.allowed == fits && out.remaining == max(0, limit-used), used
		},
		DescribeOperation: func(input, output any) string {
			in, out := input.(operation), output.(outcome)
			return fmt.Sprintf("%s %d: %v, %d left", in.verb, in.cost, out.allowed, out.remaining)
		},
	}
}

// workers returns engines on one database that broadcast to each other what to forget.
func workers(t *testing.T, n int) []*engine.Engine {
	url := testenv.Postgres(t)
	engines := make([]*engine.Engine, n)
	for i := range engines {
		engines[i] = engineOn(t, eachstore.Postgres(t, url), func(f engine.Forget) {
			for _, e := range engines {
				e.Forget(f)
			}
		})
	}
	return engines
}

func TestHistoriesOfOneKeyAreLinearizable(t *testing.T) {
	t.Parallel()
	onBothStores(t, 2, linearizable)
}

func linearizable(t *testing.T, engines []*engine.Engine) {
	const clients, each, limit = 8, 60, 40
	w := parseWindow(t, "366d")
	for round, algorithm := range []engine.Algorithm{engine.SlidingWindow, engine.FixedWindow, engine.SlidingWindow, engine.FixedWindow} {
		key := fmt.Sprintf("%s:%d", algorithm, round)
		// A window that starts at its first use cannot end during the test.
		limit := engine.Limit{CounterID: engine.CounterID{Key: key, Name: "w"}, Algorithm: algorithm, Limit: limit, Window: w, FirstUse: algorithm == engine.FixedWindow, Threshold: -1}
		history := make([][]porcupine.Operation, clients)
		begin := time.Now()
		var done sync.WaitGroup
		for c := range clients {
			done.Go(func() {
				for range each {
					in := operation{engine.Verb(mathrand.IntN(4)), 1 + mathrand.Int64N(5)}
					if in.verb == engine.Record && mathrand.IntN(3) > 0 {
						in.verb = engine.Consume
					}
					call := time.Since(begin)
					d, err := engines[mathrand.IntN(len(engines))].Do(t.Context(), &engine.Request{Verb: in.verb, Limits: []engine.Limit{limit}, Cost: in.cost})
					if err != nil || d.Degraded {
						t.Errorf("%v: %+v %v", in, d, err)
						return
					}
					history[c] = append(history[c], porcupine.Operation{
						ClientId: c, Input: in, Call: call.Nanoseconds(),
						Output: outcome{d.Allowed, d.Results[0].Remaining}, Return: time.Since(begin).Nanoseconds(),
					})
				}
			})
		}
		done.Wait()
		var all []porcupine.Operation
		for _, h := range history {
			all = append(all, h...)
		}
		if result := porcupine.CheckOperationsTimeout(counterOf(limit.Limit), all, patience); result != porcupine.Ok {
			t.Errorf("%s: %d operations are not linearizable: %s", key, len(all), result)
		}
	}
}
