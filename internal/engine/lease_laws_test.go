package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestWorkersWithLeasesAdmitNoMoreThanTheLimit, whatever happens to them and their store: invariant 1. In the end nothing is leased.
func TestWorkersWithLeasesAdmitNoMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	for range histories(60) {
		seed := rand.Uint64()
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testLawOfWorkers(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func testLawOfWorkers(t *testing.T, r *rand.Rand) {
	store := openTap(t)
	l := per(t, "k", 20+r.Int64N(1000), []string{"100ms", "900ms", "1s", "2s", "1m", "2m"}[r.IntN(6)])
	l.Algorithm, l.Leased, l.Threshold = engine.Algorithm(r.IntN(3)), true, []int64{-1, l.Limit / 10}[r.IntN(2)]
	if l.Algorithm == engine.TokenBucket {
		l.Burst = r.Int64N(200)
	}
	h := &lawHistory{chance: r, store: store, limit: l, queue: []int{0, 4}[r.IntN(2)]}
	for range 1 + r.IntN(3) {
		h.workers = append(h.workers, h.worker(t))
	}
	for range 300 {
		h.step(t)
		h.pass()
	}
	store.fail(nil)
	time.Sleep(30 * time.Second)
	synctest.Wait()
	for _, e := range h.workers {
		if n := e.Leased(); n != 0 {
			t.Errorf("%d leased 30 s after the last request", n)
		}
	}
	h.check(t)
}

// lawHistory is a random history of workers, and what they admitted of one counter.
type lawHistory struct {
	chance  *rand.Rand
	store   *tap
	limit   engine.Limit
	queue   int
	workers []*engine.Engine

	mu        sync.Mutex
	at, costs []int64
	asked     sync.WaitGroup
}

func (h *lawHistory) worker(t *testing.T) *engine.Engine {
	t.Helper()
	e, err := engine.New(t.Context(), engine.Config{Store: h.store, Queue: h.queue, Broadcast: func(f engine.Forget) {
		for _, e := range h.workers {
			e.Forget(f)
		}
	}, NewID: func() string { return fmt.Sprintf("event-%d", eventIDs.Add(1)) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close(context.Background()) }) // fails if the store failed when it was closed before
	return e
}

// pass lets requests come quickly, or leases end, or be over for so long that they are forgotten.
func (h *lawHistory) pass() {
	most := 20 * time.Millisecond
	switch h.chance.IntN(20) {
	case 0:
		most = 12 * time.Second
	case 1, 2:
		most = 1300 * time.Millisecond
	case 3, 4, 5, 6:
		most = 300 * time.Millisecond
	}
	time.Sleep(time.Duration(h.chance.Int64N(int64(most))))
}

func (h *lawHistory) step(t *testing.T) {
	switch h.chance.IntN(50) {
	case 0:
		h.store.fail(nil)
		h.asked.Wait() // it is not known on which side of the reset they are
		h.check(t)
		h.at, h.costs = nil, nil
		if _, err := h.workers[0].Reset(t.Context(), engine.Selection{Key: "k"}, false); err != nil {
			t.Error(err)
		}
	case 1, 2, 3:
		h.store.fail(h.fault())
	case 4, 5:
		h.store.fail(nil)
	case 6:
		i := h.chance.IntN(len(h.workers))
		_ = h.workers[i].Close(t.Context()) // fails if the store does: then denials are in no event
		h.store.fail(nil)
		h.workers[i] = h.worker(t)
	default:
		for range 1 + h.chance.IntN(8) {
			h.ask(h.workers[h.chance.IntN(len(h.workers))])
		}
	}
}

// fault is something that befalls transactions from now on.
func (h *lawHistory) fault() func(committed bool) error {
	by := time.Duration(h.chance.IntN(4000)) * time.Millisecond
	when := h.chance.IntN(2) == 0
	return [...]func(bool) error{
		func(committed bool) error {
			if committed {
				return nil
			}
			return errors.New("disk")
		},
		func(committed bool) error { // some are written
			if committed == when {
				return engine.ErrCommitUnknown
			}
			return nil
		},
		func(committed bool) error { // before the store reads its clock, so that the answer tells when it was decided
			if !committed {
				time.Sleep(by)
			}
			return nil
		},
	}[h.chance.IntN(3)]
}

func (h *lawHistory) ask(e *engine.Engine) {
	r := &engine.Request{Limits: []engine.Limit{h.limit}, Cost: 1 + h.chance.Int64N(3)}
	if h.chance.IntN(10) == 0 {
		r.Cost = 1 + h.chance.Int64N(h.limit.Limit)
	}
	h.asked.Add(1)
	r.Done = func(d engine.Decision, err error) {
		defer h.asked.Done()
		if err != nil || !d.Allowed || d.Degraded {
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.at, h.costs = append(h.at, time.Now().UnixMilli()), append(h.costs, r.Cost)
	}
	if e.Submit(r) != nil { // the queue is full
		h.asked.Done()
	}
}

func (h *lawHistory) check(t *testing.T) {
	t.Helper()
	h.asked.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !engine.Law(h.limit, h.at, h.costs) {
		t.Fatalf("%+v admitted %v at %v", h.limit.Spec(), h.costs, h.at)
	}
}
