package e2e

import (
	"cmp"
	"context"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// charge is a request that was allowed. It was decided between call and back.
type charge struct {
	call, back time.Duration
	cost       int64
	// reset is from the answer, by the store's clock.
	reset int64
}

// tick is subtracted from an interval on this machine's clock, because the store counts in whole milliseconds.
const tick = 2 * time.Millisecond

// overAdmitted looks for an interval in which more was certainly admitted than the limit allows. It is enough to check
// intervals that begin with a call and end with a return.
func overAdmitted(l engine.Limit, charges []charge) error {
	if l.Algorithm == engine.FixedWindow {
		// The reset is the end of the window, so it identifies the window.
		windows := map[int64]int64{}
		for _, c := range charges {
			if windows[c.reset] += c.cost; windows[c.reset] > l.Limit {
				return fmt.Errorf("%d admitted in the window that ends at %d", windows[c.reset], c.reset)
			}
		}
		return nil
	}
	length := time.Duration(l.Window.Millis) * time.Millisecond
	most := func(lasted time.Duration) int64 {
		switch {
		case l.Algorithm == engine.TokenBucket:
			return l.Limit + l.Burst + l.Limit*int64(lasted+tick)/int64(length)
		case lasted <= length-tick:
			return l.Limit
		default:
			return math.MaxInt64
		}
	}
	slices.SortFunc(charges, func(a, b charge) int { return cmp.Compare(a.back, b.back) })
	for i, first := range charges {
		var sum int64
		for _, last := range charges[max(0, i-64):] { // what was called later and came back sooner is among the few before
			if last.call < first.call {
				continue
			}
			if sum += last.cost; sum > most(last.back-first.call) {
				return fmt.Errorf("%d admitted from %s to %s", sum, first.call, last.back)
			}
		}
	}
	return nil
}

// admitted returns the cost of all charges.
func admitted(charges []charge) (sum int64) {
	for _, c := range charges {
		sum += c.cost
	}
	return sum
}

func TestShortWindowsNeverOverAdmit(t *testing.T) {
	t.Parallel()
	neverOverAdmit(t, 4, 2*time.Second, 3*time.Millisecond,
		engine.Limit{Algorithm: engine.SlidingWindow, Limit: 20, Window: parseWindow(t, "200ms"), Threshold: 2},
		engine.Limit{Algorithm: engine.FixedWindow, Limit: 20, Window: parseWindow(t, "300ms"), Threshold: 2},
		engine.Limit{Algorithm: engine.TokenBucket, Limit: 20, Burst: 10, Window: parseWindow(t, "300ms"), Threshold: 2})
}

// neverOverAdmit has many clients ask for each of the limits for a while, with pauses up to the given one, and looks for an
// interval in which too much was admitted.
func neverOverAdmit(t *testing.T, clients int, lasts, pause time.Duration, limits ...engine.Limit) {
	onBothStores(t, 2, func(t *testing.T, engines []*engine.Engine) {
		chance := dice(t)
		var done sync.WaitGroup
		for i, limit := range limits {
			limit.CounterID = engine.CounterID{Key: limit.Algorithm.String(), Name: "short"}
			done.Go(func() {
				charges, denied := hurry(t, engines, limit, clients, lasts, pause, func(c int) *mathrand.Rand { return chance(clients*i + c) })
				if err := overAdmitted(limit, charges); err != nil {
					t.Errorf("%s: %v", limit.Algorithm, err)
				}
				// Otherwise no window has ended, or none was full.
				sum := admitted(charges)
				if sum <= 2*(limit.Limit+limit.Burst) || denied == 0 {
					t.Errorf("%s: %d admitted, %d denied: too few to test anything", limit.Algorithm, sum, denied)
				}
			})
		}
		done.Wait()
	})
}

// hurry sends requests for one limit by many clients for a while, and until windows have ended and some requests were denied.
// It returns the charges and the number of denials. Costs grow every second, so that a slow machine reaches the limit too.
func hurry(t *testing.T, engines []*engine.Engine, limit engine.Limit, clients int, lasts, pause time.Duration, chance func(c int) *mathrand.Rand) (all []charge, denied int) {
	var mu sync.Mutex
	var done sync.WaitGroup
	begin := time.Now()
	triedLittle := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return denied == 0 || admitted(all) <= 2*(limit.Limit+limit.Burst)
	}
	for c := range clients {
		rnd := chance(c)
		done.Go(func() {
			for time.Since(begin) < lasts || triedLittle() && time.Since(begin) < 20*lasts {
				call := time.Since(begin)
				r := &engine.Request{
					Limits: []engine.Limit{limit}, OnError: engine.OnErrorDeny,
					Cost: 1 + rnd.Int64N(min(3+int64(call/time.Second), limit.Limit/4)),
				}
				d, err := engines[rnd.IntN(len(engines))].Do(t.Context(), r)
				back := time.Since(begin)
				if err != nil || d.Degraded {
					t.Errorf("%s: %+v %v", limit.Algorithm, d, err)
					return
				}
				mu.Lock()
				if d.Allowed {
					all = append(all, charge{call, back, r.Cost, d.Results[0].ResetAt})
				} else {
					denied++
				}
				mu.Unlock()
				// Without a pause, denials from memory would use the whole processor.
				<-time.After(time.Duration(rnd.Int64N(int64(pause))))
			}
		})
	}
	done.Wait()
	return all, denied
}

func TestARetryAtRetryAfterIsAllowed(t *testing.T) {
	t.Parallel()
	onBothStores(t, 2, func(t *testing.T, engines []*engine.Engine) {
		chance := dice(t)
		var done sync.WaitGroup
		for i, window := range []string{"200ms", "310ms", "500ms"} {
			for j, algorithm := range []engine.Algorithm{engine.SlidingWindow, engine.FixedWindow, engine.TokenBucket} {
				limit := engine.Limit{
					CounterID: engine.CounterID{Key: algorithm.String(), Name: window}, Algorithm: algorithm,
					Limit: 10, Window: parseWindow(t, window), Threshold: -1,
				}
				// A second limit also blocks, with another retryAfter.
				beside := limit
				beside.Name, beside.Algorithm, beside.Limit = window+" beside", engine.SlidingWindow, 12
				rnd := chance(10*i + j)
				done.Go(func() {
					for range 3 {
						if err := retry(t.Context(), engines, []engine.Limit{limit, beside}[:1+rnd.IntN(2)], rnd); err != nil {
							t.Errorf("%s %s: %v", algorithm, window, err)
						}
					}
				})
			}
		}
		done.Wait()
	})
}

// retry sends requests until one is denied, then a few more, which may be denied from memory, and then one at the time that
// the last denial named.
func retry(ctx context.Context, engines []*engine.Engine, limits []engine.Limit, rnd *mathrand.Rand) error {
	ask := func(cost int64) (engine.Decision, error) {
		r := &engine.Request{Limits: append([]engine.Limit{}, limits...), Cost: cost, OnError: engine.OnErrorDeny}
		d, err := engines[rnd.IntN(len(engines))].Do(ctx, r)
		if err == nil && d.Degraded {
			err = fmt.Errorf("degraded: %+v", d)
		}
		return d, err
	}
	for begin := time.Now(); ; {
		cost := min(1+rnd.Int64N(5)+int64(time.Since(begin)/time.Second), limits[0].Limit) // it grows, so that a slow machine reaches the limit too
		d, err := ask(cost)
		for range rnd.IntN(3) {
			if err == nil && !d.Allowed {
				d, err = ask(cost)
			}
		}
		if err != nil {
			return err
		}
		if d.Allowed {
			<-time.After(time.Duration(rnd.IntN(10)) * time.Millisecond)
			continue
		}
		after := d.Speaker().RetryAfter
		<-time.After(time.Duration(after) * time.Millisecond)
		retried, err := ask(cost)
		if err == nil && !retried.Allowed {
			err = fmt.Errorf("denied again after %d ms\nfirst %+v\nthen  %+v", after, d, retried)
		}
		return err
	}
}
