package limits

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeWindow is a limiter that lets some requests pass in each second, and counts what it is asked.
type fakeWindow struct {
	mu      sync.Mutex
	began   time.Time
	places  int
	used    map[int]int // by window
	asked   map[int]int
	latency time.Duration
}

func newFakeWindow(places int) *fakeWindow {
	return &fakeWindow{began: time.Now(), places: places, used: map[int]int{}, asked: map[int]int{}, latency: 20 * time.Millisecond}
}

// consume returns 0 if the request is allowed, and otherwise when to come again.
func (f *fakeWindow) consume() time.Duration {
	time.Sleep(f.latency / 2)
	defer time.Sleep(f.latency - f.latency/2)
	f.mu.Lock()
	defer f.mu.Unlock()
	since := time.Since(f.began)
	window := int(since / time.Second)
	f.asked[window]++
	if f.used[window] == f.places {
		return time.Duration(window+1)*time.Second - since
	}
	f.used[window]++
	return 0
}

// wait is what [Client.Wait] does, without NATS.
func (f *fakeWindow) wait(ctx context.Context, queues *waitQueues) error {
	r := Per("k", int64(f.places), "1s")
	e, allowed := queues.newWaiter(ctx), false
	defer func() { queues.leave(e, allowed, false) }()
	denial := queues.join(e, r)
	for {
		if denial != nil {
			if err := e.await(ctx); err != nil {
				return err
			}
		}
		delay := f.consume()
		if allowed = delay == 0; allowed {
			return nil
		}
		denial = &Reply{RetryAfter: delay.Milliseconds()}
		queues.deny(e, r, denial, delay)
	}
}

// TestWaitersAskLittleMoreThanIsFree: hundreds of them share a few places in each window, and each denial is counted and
// reported.
func TestWaitersAskLittleMoreThanIsFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const places, windows = 20, 20
		limiter, queues := newFakeWindow(places), new(waitQueues)
		var all sync.WaitGroup
		for range places * windows {
			all.Go(func() {
				if err := limiter.wait(t.Context(), queues); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for window := 1; window < windows; window++ { // in the first nobody knows that it is full
			if asked, used := limiter.asked[window], limiter.used[window]; asked > 3*places || used != places {
				t.Errorf("window %d: %d asked for %d places, and %d got one", window, asked, places, used)
			}
		}
	})
}

// TestWaitersTakeTurnsInTheOrderOfTheirCalls: with 40 workers and 10 places a second each call waits 4 s and
// a part of a window, and none misses its deadline after twice that.
func TestWaitersTakeTurnsInTheOrderOfTheirCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const workers, places = 40, 10
		limiter, queues := newFakeWindow(places), new(waitQueues)
		var all sync.WaitGroup
		for range workers {
			all.Go(func() {
				for time.Since(limiter.began) < time.Minute {
					ctx, cancel := context.WithTimeout(t.Context(), 2*workers/places*time.Second)
					began := time.Now()
					err := limiter.wait(ctx, queues)
					if took := time.Since(began); err != nil || took > (workers/places+2)*time.Second {
						t.Errorf("%v after %v", err, took)
					}
					cancel()
				}
			})
		}
		all.Wait()
	})
}

// TestWaitersThatLeaveDoNotStopTheLine: whoever is cancelled, in line, with a turn or at the moment it gets one.
func TestWaitersThatLeaveDoNotStopTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter, queues := newFakeWindow(10), new(waitQueues)
		var all sync.WaitGroup
		for i := range 400 {
			all.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if i%2 == 0 {
					time.AfterFunc(time.Duration(i)*limiter.latency/2, cancel)
				}
				if err := limiter.wait(ctx, queues); err != nil && i%2 != 0 {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := len(queues.byRequest); n != 0 || time.Since(limiter.began) > 40*time.Second {
			t.Errorf("%d queues are left after %v", n, time.Since(limiter.began))
		}
	})
}

// TestALostAnswerDoesNotHoldUpTheLine: everybody in it may ask then. Otherwise each would wait for the timeouts of those
// before it.
func TestALostAnswerDoesNotHoldUpTheLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		queues, r := new(waitQueues), Per("k", 1, "1s")
		first := queues.newWaiter(t.Context())
		queues.deny(first, r, &Reply{}, time.Second)
		var others []*waiter
		for range 100 {
			e := queues.newWaiter(t.Context())
			queues.join(e, r)
			others = append(others, e)
		}
		if err := first.await(t.Context()); err != nil {
			t.Fatal(err)
		}
		queues.leave(first, false, true)
		for i, e := range others {
			if len(e.turn) != 1 {
				t.Fatalf("number %d in line has no turn", i+1)
			}
		}
	})
}

// TestANewcomerLearnsThatALimitIsFreeAgain: the limit may be raised or reset while others wait for long. It asks once a
// second at most, and the others go on when it is allowed.
func TestANewcomerLearnsThatALimitIsFreeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		queues, r := new(waitQueues), Per("k", 1, "1h")
		wait := func() *waiter {
			e := queues.newWaiter(t.Context())
			queues.join(e, r)
			return e
		}
		hasTurn := func(e *waiter) bool { synctest.Wait(); return len(e.turn) == 1 }
		first := wait()
		queues.deny(first, r, &Reply{RetryAfter: time.Hour.Milliseconds()}, time.Hour)
		soon := wait()
		time.Sleep(maxDenialAge + 1)
		later, another := wait(), wait()
		if hasTurn(first) || hasTurn(soon) || !hasTurn(later) || hasTurn(another) {
			t.Fatal("want one of those who come when the denial is a second old to ask, and nobody else")
		}
		queues.leave(later, true, false)
		if !hasTurn(first) || !hasTurn(soon) || hasTurn(another) {
			t.Error("it was allowed; want the first two to ask")
		}
	})
}

// TestTheQueueOpensInTimeForADeadline: what it opens later at random leaves time for an attempt.
func TestTheQueueOpensInTimeForADeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const turn, room = time.Minute, 10 * time.Millisecond
		for range 100 {
			queues, r, began := new(waitQueues), Per("k", 1, "1m"), time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), turn+room)
			e := queues.newWaiter(ctx)
			queues.deny(e, r, &Reply{}, turn)

			early, cancelEarly := context.WithTimeout(t.Context(), turn-1)
			late := queues.newWaiter(early)
			queues.join(late, r)
			if err := late.await(early); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 0 {
				t.Errorf("past the deadline: %v after %v, want it reported at once", err, time.Since(began))
			}
			cancelEarly()

			err := e.await(ctx)
			if took := time.Since(began); err != nil || took < turn || took > turn+room/2 {
				t.Errorf("%v after %v, want a turn after %v and up to %v more", err, took, turn, room/2)
			}
			queues.leave(e, true, false)
			cancel()
		}
	})
}

// TestANewcomerIsToldWhatIsLeftOfTheWait by a reply that has the ID of nobody.
func TestANewcomerIsToldWhatIsLeftOfTheWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		queues, r := &waitQueues{}, Per("k", 1, "1h")
		queues.deny(queues.newWaiter(t.Context()), r, &Reply{ID: "x", RetryAfter: 10_000}, 10*time.Second)
		began := time.Now()
		for _, c := range []struct {
			after time.Duration
			left  int64
		}{{time.Second, 9_000}, {4 * time.Second, 6_000}, {10 * time.Second, 1}} {
			time.Sleep(time.Until(began.Add(c.after)))
			if denial := queues.join(queues.newWaiter(t.Context()), r); denial == nil || denial.RetryAfter != c.left || denial.ID != "" {
				t.Errorf("after %v of 10s: %+v, want %d ms", c.after, denial, c.left)
			}
		}
	})
}

// TestOneWaiterHasATurn while the others stand in line, and one more for each that was allowed. Who comes then joins the line.
func TestOneWaiterHasATurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		queues, r := &waitQueues{}, Per("k", 1, "1h")
		all := []*waiter{queues.newWaiter(t.Context())}
		queues.deny(all[0], r, &Reply{RetryAfter: 1000}, time.Second)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		turns := func() (n int) {
			for _, e := range all {
				n += len(e.turn)
			}
			return n
		}
		for range 3 {
			e := queues.newWaiter(t.Context())
			if queues.join(e, r) == nil {
				t.Fatalf("waiter %d did not join the line", len(all))
			}
			if all = append(all, e); turns() != 1 {
				t.Errorf("%d turns of %d waiters", turns(), len(all))
			}
		}
		if queues.leave(all[0], true, false); turns() != 3 { // the first and the next two
			t.Errorf("%d turns when one was allowed", turns())
		}
	})
}

// TestAnAllowedWaitEndsTheDenial for those that come after it, too: their deadlines are not compared any more with when it
// would have been over.
func TestAnAllowedWaitEndsTheDenial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var queues waitQueues
		r := Per("k", 1, "1m")
		first, second := queues.newWaiter(t.Context()), queues.newWaiter(t.Context())
		queues.deny(first, r, &Reply{RetryAfter: 30_000}, 30*time.Second)
		queues.deny(second, r, &Reply{RetryAfter: 30_000}, 30*time.Second)
		time.Sleep(2 * time.Second)
		third := queues.newWaiter(t.Context())
		queues.join(third, r) // the denial is old, so it asks
		if err := third.await(t.Context()); err != nil {
			t.Fatal(err)
		}
		queues.leave(third, true, false) // the limit was reset
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		late := queues.newWaiter(ctx)
		queues.join(late, r)
		for _, e := range []*waiter{first, second, late} {
			if err := e.await(ctx); err != nil {
				t.Fatalf("%d: %v", e.number, err)
			}
			queues.leave(e, true, false)
		}
	})
}
