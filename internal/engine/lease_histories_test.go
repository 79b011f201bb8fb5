package engine_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

// inOneBatch has one batch decide all of the requests, in this order, and waits for their answers. A
// charge to another counter occupies the store until they are queued.
func inOneBatch(t *testing.T, store *tap, requests ...submission) {
	t.Helper()
	store.hold()
	answered := make(chan func(), len(requests)+1)
	other := engine.Request{Limits: []engine.Limit{per(t, "other", 1_000_000_000, "1h")}, Cost: 1}
	submit(t, submission{requests[0].to, other, nil}, answered)
	<-store.enter
	for _, r := range requests {
		submit(t, r, answered)
	}
	store.release()
	take(answered, cap(answered))
}

// submission is a request, the engine that gets it, and what to do with the answer.
type submission struct {
	to      *engine.Engine
	request engine.Request
	then    func(engine.Decision) // nil for nothing
}

// submit submits the request, and sends what the test does with the answer to answered.
func submit(t *testing.T, s submission, answered chan<- func()) {
	t.Helper()
	s.request.Done = func(d engine.Decision, err error) {
		answered <- func() {
			if err != nil {
				t.Error(err)
			}
			if s.then != nil {
				s.then(d)
			}
		}
	}
	if err := s.to.Submit(&s.request); err != nil {
		t.Fatal(err)
	}
}

// take waits for answers.
func take(answered <-chan func(), n int) {
	for range n {
		(<-answered)()
	}
}

// TestLeaseBatchedWithDenialIsCharged if the counter is only written because of the denial, which
// is under another definition.
func TestLeaseBatchedWithDenialIsCharged(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		high, low := leased(t, "k", 1000), leased(t, "k", 5)
		ask(t, e, engine.Request{Limits: []engine.Limit{high}, Cost: 100})
		time.Sleep(10 * time.Millisecond)
		inOneBatch(t, store,
			submission{e, engine.Request{Verb: engine.Check, Limits: []engine.Limit{high}, Cost: 1}, nil},
			submission{e, engine.Request{Limits: []engine.Limit{low}, Cost: 1}, nil})
		if lent, used := e.Leased(), usedNow(t, e, "k"); used < 100+lent {
			t.Errorf("%d are lent beside 100 that were charged, and %d count as used", lent, used)
		}
		total := int64(100)
		for ask(t, e, engine.Request{Limits: []engine.Limit{high}}).Allowed {
			if total++; total > 1000 {
				t.Fatal("more was admitted than the limit of 1000")
			}
		}
	})
}

// TestRefundIncludesEndedLeases, under any definition: a worker that died never gives its lease
// back.
func TestRefundIncludesEndedLeases(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{10_000, 20_000} {
		synctest.Test(t, func(t *testing.T) {
			store := openTap(t)
			cut := &tap{Store: store.Store}
			killed, other := start(t, engine.Config{Store: cut}), start(t, engine.Config{Store: store})
			warm(t, killed, leased(t, "k", 10_000))
			cut.fail(func(bool) error { return errors.New("killed") })
			time.Sleep(10 * time.Minute)
			used := usedNow(t, other, "k")
			ask(t, other, engine.Request{Verb: engine.Refund, Limits: []engine.Limit{leased(t, "k", limit)}, Cost: used})
			if left := usedNow(t, other, "k"); left != 0 {
				t.Errorf("a limit of %d: %d of %d are used after all of it was refunded", limit, left, used)
			}
			cut.fail(nil)
		})
	}
}

// TestLeaseDoesNotCrossRaisedThreshold: it was granted under a lower one, and what it serves
// raises no event.
func TestLeaseDoesNotCrossRaisedThreshold(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		l := leased(t, "k", 100_000)
		warm(t, e, l)
		l.Threshold = l.Limit
		ask(t, e, engine.Request{Limits: []engine.Limit{l}})
		if events := store.events(t); len(events) != 1 || events[0].Type != engine.EventWarning {
			t.Errorf("the events are %+v; want a warning", events)
		}
	})
}

// TestLeasedTokensAreCharged: whatever two workers are asked of a counter, under two definitions,
// what was charged and what they have leased counts as used. In the end, when they have given
// back the rest, it is exactly what was charged.
func TestLeasedTokensAreCharged(t *testing.T) {
	t.Parallel()
	for range histories(60) {
		seed := rand.Uint64()
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { testWhatIsLentIsCharged(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func testWhatIsLentIsCharged(t *testing.T, r *rand.Rand) {
	store := openTap(t)
	workers := startWorkers(t, store, 1+r.IntN(2))
	history := leaseHistory{chance: r, workers: workers}
	history.high, history.low = leased(t, "k", 1000+r.Int64N(4000)), leased(t, "k", 1+r.Int64N(600))
	for _, l := range []*engine.Limit{&history.high, &history.low} {
		l.Window, l.Algorithm = window(t, "366d"), engine.Algorithm(r.IntN(2))
		if r.IntN(4) == 0 {
			l.Threshold = l.Limit / 10
		}
	}
	history.low.Algorithm, history.low.Leased = history.high.Algorithm, r.IntN(5) > 0
	for range 60 {
		history.round(t, store)
		lent := int64(0)
		for _, e := range workers {
			lent += e.Leased()
		}
		if used := usedNow(t, workers[0], "k"); used < history.charged+lent {
			t.Fatalf("%d are used, %d were charged and %d are lent", used, history.charged, lent)
		}
		time.Sleep(history.pause())
	}
	for _, e := range workers {
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if used := usedNow(t, workers[0], "k"); used != history.charged {
		t.Errorf("%d are used in the end, and %d were charged", used, history.charged)
	}
}

// leaseHistory is a random history of workers and one counter, and what it charged.
type leaseHistory struct {
	chance    *rand.Rand
	workers   []*engine.Engine
	high, low engine.Limit
	ids       int
	charged   int64
	// open are charges with an id that were not settled.
	open []engine.Request
}

// round sends some requests, half of the time in one batch, and sometimes settles an earlier one.
func (h *leaseHistory) round(t *testing.T, store *tap) {
	t.Helper()
	requests := make([]submission, 1+h.chance.IntN(4))
	for i := range requests {
		requests[i] = h.request()
	}
	if h.chance.IntN(2) == 0 {
		inOneBatch(t, store, requests...)
	} else {
		answered := make(chan func(), len(requests))
		for _, r := range requests {
			submit(t, r, answered)
		}
		take(answered, len(requests))
	}
	if len(h.open) > 0 && h.chance.IntN(6) == 0 {
		i, final := h.chance.IntN(len(h.open)), h.chance.Int64N(60)
		if _, err := storetest.Settle(t.Context(), h.worker(), h.open[i].ID, final); err != nil {
			t.Errorf("settle: %v", err)
		}
		h.charged += final - h.open[i].Cost
		h.open = slices.Delete(h.open, i, i+1)
	}
}

func (h *leaseHistory) worker() *engine.Engine { return h.workers[h.chance.IntN(len(h.workers))] }

func (h *leaseHistory) request() submission {
	r := engine.Request{Verb: engine.Check, Limits: []engine.Limit{h.high}, Cost: 1 + h.chance.Int64N(40)}
	if h.chance.IntN(3) == 0 {
		r.Limits[0] = h.low
	}
	switch h.chance.IntN(12) {
	case 0:
		r.Verb, r.Cost = engine.Record, 1+h.chance.Int64N(5)
	case 1:
		h.ids++
		r.Verb, r.ID = engine.Consume, strconv.Itoa(h.ids)
	case 2, 3, 4, 5:
		r.Verb = engine.Consume
	}
	return submission{h.worker(), r, func(d engine.Decision) {
		if r.Verb == engine.Check || r.Verb == engine.Consume && !d.Allowed {
			return
		}
		h.charged += r.Cost
		if r.ID != "" {
			h.open = append(h.open, r)
		}
	}}
}

// pause is a random time in which leases last, end, or are long over, and events become due.
func (h *leaseHistory) pause() time.Duration {
	switch h.chance.IntN(6) {
	case 0, 1:
		return 11 * time.Second
	case 2:
		return time.Duration(h.chance.IntN(1500)) * time.Millisecond
	}
	return time.Duration(h.chance.IntN(100)) * time.Millisecond
}
