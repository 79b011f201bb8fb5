package limits

import (
	"context"
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
	var q *waitQueue
	defer func() { queues.leave(q) }()
	release := func(bool) {}
	for {
		delay := f.consume()
		if delay == 0 {
			release(true)
			return nil
		}
		if q == nil {
			q = queues.join(Per("k", int64(f.places), "1s"))
		}
		queues.block(q, delay)
		release(false)
		var err error
		if release, err = queues.await(ctx, q, delay, DefaultTimeout); err != nil {
			return err
		}
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
