package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// leased is a limit of n an hour that a worker may serve from memory. A calendar hour could end during the test.
func leased(t testing.TB, key string, n int64) engine.Limit {
	l := per(t, key, n, "1h")
	l.Leased, l.Threshold = true, -1
	return l
}

// warm consumes until the worker has a lease of the limit, and returns how much was charged.
func warm(t *testing.T, e *engine.Engine, l engine.Limit) (n int64) {
	t.Helper()
	return warmFrom(t, e, l, 0)
}

// warmFrom is warm for a counter to which n was charged before.
func warmFrom(t *testing.T, e *engine.Engine, l engine.Limit, n int64) int64 {
	t.Helper()
	for most := n + 10_000; n < most; {
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}}); !d.Allowed {
			t.Fatalf("denied after %d: %+v", n, d)
		}
		if n++; n >= 50 && usedNow(t, e, l.Key) >= n+8 {
			return n
		}
	}
	t.Fatal("no lease after 10,000 requests")
	return 0
}

func usedNow(t *testing.T, e *engine.Engine, key string) int64 {
	t.Helper()
	counters, err := e.Status(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	var used int64
	for _, c := range counters {
		used += c.Used
	}
	return used
}

func TestLeaseServesFromMemoryAndIsReturnedOnClose(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		l := leased(t, "k", 1_000_000)
		const n = 3000
		for i := range int64(n) {
			if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}}); d.Results[0].Used != i+1 || d.Results[0].Remaining != 1_000_000-i-1 {
				t.Fatalf("answer %d: %+v", i+1, d.Results[0])
			}
		}
		if got := store.count(); got > n/2 {
			t.Errorf("%d transactions for %d requests", got, n)
		}
		if got := usedNow(t, e, "k"); got < n {
			t.Errorf("%d used, with what is leased; %d were allowed", got, n)
		}
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := usedNow(t, e, "k"); got != n {
			t.Errorf("%d used after the worker gave its lease back, want %d", got, n)
		}
	})
}

func TestOneWorkerWithLeasesAdmitsExactlyTheLimit(t *testing.T) {
	t.Parallel()
	for _, a := range []engine.Algorithm{engine.SlidingWindow, engine.FixedWindow, engine.TokenBucket} {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
				l := leased(t, "k", 1000)
				l.Window = window(t, "366d") // nothing leaves the window during the test
				l.Algorithm = a
				var allowed atomic.Int64
				var clients sync.WaitGroup
				for range 20 {
					clients.Go(func() {
						for range 100 {
							d, err := e.Do(t.Context(), &engine.Request{Limits: []engine.Limit{l}, Cost: 1})
							if err != nil {
								t.Error(err)
							} else if d.Allowed {
								allowed.Add(1)
							}
						}
					})
				}
				clients.Wait()
				if got := allowed.Load(); got != 1000 {
					t.Errorf("%d allowed, want 1000", got)
				}
			})
		})
	}
}

func TestCostBeyondLeaseMayUseAllThatRemains(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		l := leased(t, "k", 1000)
		n := warm(t, e, l)
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 1000 - n}); !d.Allowed || d.Results[0].Remaining != 0 {
			t.Errorf("the rest of %d: %+v", 1000-n, d)
		}
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}}); d.Allowed {
			t.Errorf("one more: %+v", d)
		}
	})
}

func TestSeveralLeasedLimitsAreChargedTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		small, large := leased(t, "small", 400), leased(t, "large", 1_000_000)
		n := warm(t, e, large)
		both := []engine.Limit{small, large}
		var allowed int64
		for range 600 {
			if ask(t, e, engine.Request{Limits: both}).Allowed {
				allowed++
			}
		}
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s, l := usedNow(t, e, "small"), usedNow(t, e, "large"); allowed != 400 || s != 400 || l != 400+n {
			t.Errorf("%d allowed; %d used of the small limit, %d of the large after %d alone", allowed, s, l, n)
		}
	})
}

// TestUnusableLeaseIsNotCharged: if a worker has a lease of one limit and none of the
// next, the store decides over both and nothing is taken from the lease, though transactions take
// it all the time.
func TestUnusableLeaseIsNotCharged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // so that no lease ends because the machine is slow
		e := start(t, engine.Config{Store: openTap(t)})
		hot := leased(t, "hot", 1_000_000)
		var charged atomic.Int64
		charged.Store(warm(t, e, hot))
		var clients sync.WaitGroup
		for i := range 40 {
			clients.Go(func() {
				for n := range 200 {
					limits := []engine.Limit{hot, leased(t, fmt.Sprint("cold ", i, n), 10)}
					if n%3 == 0 {
						limits = limits[:1]
					}
					d, err := e.Do(t.Context(), &engine.Request{Limits: limits, Cost: 1})
					if err != nil {
						t.Error(err)
					} else if d.Allowed {
						charged.Add(1)
					}
				}
			})
		}
		clients.Wait()
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if used, want := usedNow(t, e, "hot"), charged.Load(); used != want {
			t.Errorf("%d used after the worker gave its lease back, want %d", used, want)
		}
	})
}

// failOnce makes the next transaction fail before anything is written.
func failOnce(store *tap, err error) {
	var failed atomic.Bool
	store.fail(func(committed bool) error {
		if committed || failed.Swap(true) {
			return nil
		}
		return err
	})
}

func TestLeaseSurvivesFailedTransaction(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		l := leased(t, "k", 100_000)
		n := warm(t, e, l)
		held := usedNow(t, e, "k") - n
		failOnce(store, errors.New("disk"))
		// It costs more than the lease has, so a transaction settles it: the first fails, the second
		// succeeds.
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: held + 1}); d.Degraded || d.Results[0].Used != n+held+1 {
			t.Fatalf("%d used and %d held before; after %d more: %+v", n, held, held+1, d)
		}
	})
}

// If it is not known whether a transaction that gave a lease back was committed, the lease is lost:
// to serve from it might charge nothing.
func TestLeaseIsLostInInDoubtTransaction(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		l := leased(t, "k", 100_000)
		n := warm(t, e, l)
		held := usedNow(t, e, "k") - n
		failOnce(store, engine.ErrCommitUnknown)
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: held + 1}); !d.Degraded {
			t.Fatalf("decided in doubt: %+v", d)
		}
		before := store.count()
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}}); store.count() == before || d.Results[0].Used < n+1 {
			t.Errorf("%d used and %d held before: %+v", n, held, d)
		}
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := usedNow(t, e, "k"); got < n+1 || got > n+1+held {
			t.Errorf("%d used in the end; %d were, and at most %d are lost", got, n+1, held)
		}
	})
}

// estimating decides like a store with what it remembers: at a time that its clock passed some
// milliseconds ago.
type estimating struct {
	*tap
	behind int64
	// unsure is how often the decision was unsure, and made again.
	unsure atomic.Int64
}

func (s *estimating) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	return s.tap.Update(ctx, b, func(snap engine.Snapshot) engine.Changes {
		now := snap.Now
		snap.Now, snap.Latest, snap.Until = now-s.behind, now, now+25
		if c := decide(snap); !c.Unsure {
			return c
		}
		s.unsure.Add(1)
		snap.Now, snap.Latest, snap.Until = now, 0, 0
		return decide(snap)
	})
}

// The window of a lease ends by the store's clock, which may be later than the decision assumed.
func TestLeaseAtEstimatedTimeEndsWithWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &estimating{tap: openTap(t), behind: 20}
		e := start(t, engine.Config{Store: store})
		l := leased(t, "k", 100_000)
		l.Window, l.Algorithm = window(t, "10s"), engine.FixedWindow
		end := time.Now().Truncate(10 * time.Second).Add(10 * time.Second)
		time.Sleep(time.Until(end.Add(-500 * time.Millisecond)))
		n := warm(t, e, l)
		time.Sleep(time.Until(end.Add(-50 * time.Millisecond)))
		before := store.count()
		if ask(t, e, engine.Request{Limits: []engine.Limit{l}}); store.count() != before {
			t.Fatalf("no lease 50 ms before the end, after %d requests", n)
		}
		time.Sleep(time.Until(end.Add(5 * time.Millisecond)))
		if ask(t, e, engine.Request{Limits: []engine.Limit{l}}); store.count() == before {
			t.Error("served from the lease of the window before")
		}
	})
}

// A store may call decide again, and then with a counter that cannot be read, such as one that a
// newer worker wrote meanwhile.
func TestUnchargedLeaseIsDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &overtaken{tap: openTap(t)}
		e := start(t, engine.Config{Store: store})
		l := leased(t, "k", 100_000)
		n := warm(t, e, l)
		held := usedNow(t, e, "k") - n
		store.state = []byte("written by a newer worker")
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: held + 1}); !d.Degraded {
			t.Fatalf("decided over a counter that cannot be read: %+v", d)
		}
		if got := e.Leased(); got != 0 {
			t.Errorf("%d leased of a counter that cannot be read", got)
		}
	})
}

// overtaken calls decide again, with another state of the first counter if there is one.
type overtaken struct {
	*tap
	state []byte
}

func (s *overtaken) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	return s.tap.Update(ctx, b, func(snap engine.Snapshot) engine.Changes {
		c := decide(snap)
		if s.state == nil || len(snap.States) == 0 {
			return c
		}
		snap.States[0] = s.state
		return decide(snap)
	})
}

// If the store's clock was set back, the counter stays at its moment. A lease must not last until
// the clock has caught up.
func TestLeaseIsShortAfterClockStepsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var back atomic.Int64
		store := openTapAt(t, func() time.Time { return time.Now().Add(-time.Duration(back.Load())) })
		e := start(t, engine.Config{Store: store})
		l := leased(t, "k", 100_000)
		ask(t, e, engine.Request{Limits: []engine.Limit{l}})
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour))) // a sub-bucket begins
		ask(t, e, engine.Request{Limits: []engine.Limit{l}})
		back.Store(int64(20 * time.Second))
		time.Sleep(2 * time.Second) // the lease that the worker may have is over
		n := warm(t, e, l) + 2
		time.Sleep(2200 * time.Millisecond) // it is renewed once, if it has served something
		synctest.Wait()
		if got := usedNow(t, e, "k"); got != n {
			t.Errorf("%d used 2.2 s after the last of %d requests: the lease is not given back", got, n)
		}
	})
}

// A lease is what was asked for in the last 250 ms, or a quarter of the last second, plus what is
// asked now. Who asks once gets none.
func TestLeaseSizeFollowsRecentDemand(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
		l := leased(t, "k", 100_000)
		for i, step := range []struct {
			after time.Duration
			cost  int64
			left  int64
		}{
			{0, 3, 0},                        // the first
			{20 * time.Millisecond, 2, 5},    // both
			{20 * time.Millisecond, 4, 1},    // served
			{20 * time.Millisecond, 2, 11},   // more than is left: all four so far
			{600 * time.Millisecond, 12, 15}, // a quarter of the four, which were 11, and this one
			{2 * time.Second, 6, 0},          // the first again
		} {
			time.Sleep(step.after)
			ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: step.cost})
			if got := e.Leased(); got != step.left {
				t.Errorf("%d leased after request %d, want %d", got, i, step.left)
			}
		}
	})
}

// Requests that no lease can serve do not count as demand.
func TestUnleasableRequestsAreNotDemand(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
		l, exact := leased(t, "k", 100_000), per(t, "exact", 100_000, "1h")
		for i := range 100 {
			ask(t, e, engine.Request{Limits: []engine.Limit{l}, ID: strconv.Itoa(i)})
			ask(t, e, engine.Request{Limits: []engine.Limit{l, exact}})
		}
		if got := e.Leased(); got != 0 {
			t.Errorf("%d leased", got)
		}
		if got := usedNow(t, e, "k"); got != 200 {
			t.Errorf("%d used after 200 requests", got)
		}
	})
}

// A lease that was served to its end is settled too. Otherwise it would count as lent while others
// keep the counter lent.
func TestUsageServedByLeaseCanBeRefunded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		workers := startWorkers(t, openTap(t), 2)
		l := leased(t, "k", 100_000)
		used := warm(t, workers[0], l)
		held := workers[0].Leased()
		ask(t, workers[0], engine.Request{Limits: []engine.Limit{l}, Cost: held})
		if got := workers[0].Leased(); got != 0 {
			t.Fatalf("%d leased after %d were served", got, held)
		}
		used += held
		for range 10 {
			time.Sleep(200 * time.Millisecond)
			for range 3 {
				ask(t, workers[1], engine.Request{Limits: []engine.Limit{l}})
				used++
			}
		}
		d := ask(t, workers[1], engine.Request{Verb: engine.Refund, Limits: []engine.Limit{l}, Cost: used})
		if got := d.Results[0].Used; got != 0 {
			t.Errorf("%d used after all %d were refunded; %d were served from a lease", got, used, held)
		}
	})
}

// If the store's clock was set forward, leases end as soon as any transaction has read it.
func TestLeaseEndsWhenClockStepsForward(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var forward atomic.Int64
		store := openTapAt(t, func() time.Time { return time.Now().Add(time.Duration(forward.Load())) })
		e := start(t, engine.Config{Store: store})
		l := leased(t, "k", 100_000)
		warm(t, e, l)
		forward.Store(int64(2 * time.Hour))
		ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "other", 10, "1h")}})
		before := store.count()
		d := ask(t, e, engine.Request{Limits: []engine.Limit{l}})
		if got := store.count(); got == before || d.Results[0].Used != 1 {
			t.Errorf("%d transactions, and %d used: what was lent for a window that is over was served", got-before, d.Results[0].Used)
		}
	})
}

// A request with several limits counts once as demand for each, though one of them can have no
// lease.
func TestDemandCountsOnceForSeveralLimits(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
		short := leased(t, "k", 100_000)
		short.Name, short.Window = "short", window(t, "100ms")
		const requests = 10
		for range requests {
			time.Sleep(10 * time.Millisecond)
			ask(t, e, engine.Request{Limits: []engine.Limit{leased(t, "k", 100_000), short}})
		}
		if got := e.Leased(); got == 0 || got > requests {
			t.Errorf("%d leased after %d requests", got, requests)
		}
	})
}
