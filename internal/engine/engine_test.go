package engine_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/seed503877ad/limits/internal/engine"
)

func TestQueuedRequestsShareTransactions(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		store.hold()

		const n = 50
		var order []int64
		var done sync.WaitGroup
		submit := func(key string) {
			done.Add(1)
			err := e.Submit(&engine.Request{Limits: []engine.Limit{per(t, key, n, "1h")}, Cost: 1, Done: func(d engine.Decision, err error) {
				defer done.Done()
				if err != nil {
					t.Error(err)
				} else if key == "hot" {
					order = append(order, d.Results[0].Remaining)
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
		}
		before := store.count()
		submit("first")
		<-store.enter // the first is being written; what comes now waits
		for range n {
			submit("hot")
		}
		submit("other")
		store.release()
		done.Wait()

		if got := store.count() - before; got != 2 {
			t.Fatalf("%d transactions, want 2", got)
		}
		want := []engine.CounterID{{Key: "hot", Name: "1h"}, {Key: "other", Name: "1h"}}
		if diff := cmp.Diff(want, store.updates[len(store.updates)-1].Counters); diff != "" {
			t.Errorf("counters of the second transaction: each once, in order (-want +got)\n%s", diff)
		}
		for i, remaining := range order {
			if remaining != int64(n-1-i) {
				t.Fatalf("request %d left %d: requests are decided and answered in order of arrival", i, remaining)
			}
		}
	})
}

// TestBatchHasBoundedLimits, apart from a single request that has more on its own.
func TestBatchHasBoundedLimits(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		store.hold()
		var done sync.WaitGroup
		submit := func(limits int) {
			done.Add(1)
			r := &engine.Request{Verb: engine.Check, Cost: 1, Done: func(_ engine.Decision, err error) {
				if err != nil {
					t.Error(err)
				}
				done.Done()
			}}
			for i := range limits {
				r.Limits = append(r.Limits, per(t, fmt.Sprint("k", i), 10, "1h"))
			}
			if err := e.Submit(r); err != nil {
				t.Fatal(err)
			}
		}
		before := store.count()
		submit(1)
		<-store.enter // it is being written; what comes now waits
		for _, limits := range []int{4000, 96, 1, 5000, 1} {
			submit(limits)
		}
		store.release()
		done.Wait()
		var got []int
		for _, b := range store.updates[before:] {
			got = append(got, len(b.Counters))
		}
		if diff := cmp.Diff([]int{1, 4000, 1, 5000, 1}, got); diff != "" {
			t.Errorf("counters of the transactions (-want +got)\n%s", diff)
		}
	})
}

func TestAFullQueueRefusesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		var seen observed
		e := start(t, engine.Config{Store: store, Queue: 3, Observer: &seen})
		store.hold()
		var done sync.WaitGroup
		submit := func() error {
			done.Add(1)
			err := e.Submit(&engine.Request{Limits: []engine.Limit{per(t, "k", 100, "1h")}, Cost: 1, Done: func(engine.Decision, error) { done.Done() }})
			if err != nil {
				done.Done()
			}
			return err
		}
		if err := submit(); err != nil {
			t.Fatal(err)
		}
		<-store.enter
		for range 3 {
			if err := submit(); err != nil {
				t.Fatal(err)
			}
		}
		if err := submit(); !errors.Is(err, engine.ErrOverloaded) {
			t.Errorf("the fourth waiting request: %v, want %v", err, engine.ErrOverloaded)
		}
		if seen.errors.Load() != 1 {
			t.Errorf("%d errors were seen, want that one", seen.errors.Load())
		}
		if got := e.Queued(); got != 3 {
			t.Errorf("queued %d, want 3", got)
		}
		store.release()
		done.Wait()
	})
}

// TestAnEngineNeedsItsStore to start: it would not know what time it is.
func TestAnEngineNeedsItsStore(t *testing.T) {
	t.Parallel()
	store, down := openTap(t), errors.New("connection refused")
	store.fail(func(bool) error { return down })
	if _, err := engine.New(t.Context(), engine.Config{Store: store}); !errors.Is(err, down) {
		t.Errorf("%v, want why it does not start", err)
	}
}

// TestCommittedTellsOfEvents once they are written, and of nothing else.
func TestCommittedTellsOfEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, told := openTap(t), atomic.Int64{}
		e := start(t, engine.Config{Store: store, Committed: func() { told.Add(1) }})
		for i, want := range []int64{0, 1, 2, 2} { // nothing, a warning, an exceeded event, nothing
			ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 2, "1h")}, Cost: 1})
			if synctest.Wait(); told.Load() != want {
				t.Errorf("after request %d: told %d times, want %d", i, told.Load(), want)
			}
		}
	})
}

func TestSeveralLimitsAreChargedTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
		limits := func() []engine.Limit {
			return []engine.Limit{per(t, "global", 1000, "1m"), per(t, "ip", 5, "1m"), per(t, "email", 3, "60m")}
		}
		for range 3 {
			if d := ask(t, e, engine.Request{Limits: limits()}); !d.Allowed {
				t.Fatalf("denied: %+v", d)
			}
		}
		d := ask(t, e, engine.Request{Limits: limits()})
		if d.Allowed || d.Speaker().Key != "email" {
			t.Fatalf("the fourth is to be denied by email: %+v", d)
		}
		for key, used := range map[string]int64{"global": 3, "ip": 3, "email": 3} {
			c, err := e.Status(t.Context(), key)
			if err != nil || len(c) != 1 || c[0].Used != used {
				t.Errorf("%s: %+v, %v; want %d used", key, c, err, used)
			}
		}
	})
}

func TestAnIDChargesOnce(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		consume := func(id string, print byte) engine.Request {
			return engine.Request{Limits: []engine.Limit{per(t, "k", 2, "1h")}, ID: id, Fingerprint: [32]byte{print}, Cost: 1}
		}
		first := ask(t, e, consume("a", 1))
		again := ask(t, e, consume("a", 1))
		if diff := cmp.Diff(first, again); diff != "" {
			t.Errorf("the same id is answered the same (-first +again)\n%s", diff)
		}
		ask(t, e, consume("b", 1))
		denied := ask(t, e, consume("c", 1))
		if denied.Allowed {
			t.Fatal("the third id fits into a limit of 2")
		}
		ask(t, e, engine.Request{Verb: engine.Refund, Limits: []engine.Limit{per(t, "k", 2, "1h")}})
		if diff := cmp.Diff(denied, ask(t, e, consume("c", 1))); diff != "" {
			t.Errorf("a denial is answered the same too (-first +again)\n%s", diff)
		}
		r := consume("a", 2)
		if _, err := e.Do(t.Context(), &r); !errors.Is(err, engine.ErrIDConflict) {
			t.Errorf("the same id with another body: %v, want %v", err, engine.ErrIDConflict)
		}
		// Another worker on the same store knows the id too.
		other := start(t, engine.Config{Store: store})
		if diff := cmp.Diff(first, ask(t, other, consume("a", 1))); diff != "" {
			t.Errorf("another worker answers the same (-first +again)\n%s", diff)
		}
	})
}

func TestTheSameIDTwiceInOneBatch(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		store.hold()
		answers := make(chan engine.Decision, 2)
		submit := func(key, id string) {
			if err := e.Submit(&engine.Request{Limits: []engine.Limit{per(t, key, 10, "1h")}, ID: id, Cost: 1, Done: func(d engine.Decision, err error) {
				if err != nil {
					t.Error(err)
				}
				if id != "" {
					answers <- d
				}
			}}); err != nil {
				t.Fatal(err)
			}
		}
		submit("gate", "")
		<-store.enter
		submit("k", "same")
		submit("k", "same")
		store.release()
		if diff := cmp.Diff(<-answers, <-answers); diff != "" {
			t.Error(diff)
		}
		if c, err := e.Status(t.Context(), "k"); err != nil || c[0].Used != 1 {
			t.Errorf("%+v %v: want 1 used", c, err)
		}
	})
}

// TestCloseAnswersEverything, also if it takes many transactions after the engine began to close.
func TestCloseAnswersEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
		store := openTap(t)
		e := start(t, engine.Config{Store: store, MaxBatch: 30})
		var answered atomic.Int64
		const n = 1000
		for i := range n {
			err := e.Submit(&engine.Request{Limits: []engine.Limit{per(t, fmt.Sprint("k", i%10), n, "1h")}, Cost: 1, Done: func(d engine.Decision, err error) {
				if err == nil && d.Allowed && !d.Degraded {
					answered.Add(1)
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if answered.Load() != n {
			t.Errorf("%d of %d answered", answered.Load(), n)
		}
		if err := e.Submit(&engine.Request{Limits: []engine.Limit{per(t, "k", 1, "1h")}, Cost: 1}); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("submit after close: %v", err)
		}
		if d, err := e.Do(t.Context(), &engine.Request{Limits: []engine.Limit{per(t, "k", 1, "1h")}, Cost: 1}); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("do after close: %+v, %v", d, err)
		}
		store.Close()
	})
}

func TestARefundMakesNoCounter(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
		ask(t, e, engine.Request{Verb: engine.Refund, Limits: []engine.Limit{per(t, "k", 10, "1h")}})
		if n, err := e.Reset(t.Context(), engine.Selection{Key: "k"}, true); n != 0 || err != nil {
			t.Errorf("%d counters after a refund of one that was never charged; %v", n, err)
		}
	})
}

func TestListSkipsUnusedCounters(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
		for i := range 25 {
			limits := []engine.Limit{per(t, fmt.Sprintf("a:%02d", i), 10, "1h")}
			ask(t, e, engine.Request{Limits: limits})
			if i%2 == 1 {
				ask(t, e, engine.Request{Verb: engine.Refund, Limits: limits})
			}
		}
		var keys []string
		var after engine.CounterID
		for {
			page, more, err := e.List(t.Context(), "a:", after, 3)
			if err != nil || len(page) > 3 {
				t.Fatal(len(page), err)
			}
			for _, c := range page {
				keys = append(keys, c.Key)
				after = c.CounterID
			}
			if !more {
				break
			}
		}
		if len(keys) != 13 || keys[0] != "a:00" || keys[12] != "a:24" {
			t.Errorf("keys %v: want the 13 with something used", keys)
		}
	})
}

func TestQueuedRequestsAreWrittenInOrder(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		store.hold()
		var done sync.WaitGroup
		var order []string
		submit := func(name string, keys ...string) {
			done.Add(1)
			var limits []engine.Limit
			for _, key := range keys {
				limits = append(limits, per(t, key, 100, "1h"))
			}
			err := e.Submit(&engine.Request{Limits: limits, Cost: 1, Done: func(engine.Decision, error) {
				order = append(order, name) // by one goroutine
				done.Done()
			}})
			if err != nil {
				t.Fatal(err)
			}
		}
		submit("first", "a")
		<-store.enter
		submit("second", "a", "b")
		submit("third", "b")
		submit("fourth", "c")
		store.release()
		done.Wait()
		var written [][]engine.CounterID
		for _, b := range store.updates[1:] {
			written = append(written, b.Counters)
		}
		id := func(key string) engine.CounterID { return engine.CounterID{Key: key, Name: "1h"} }
		if diff := cmp.Diff([][]engine.CounterID{{id("a")}, {id("a"), id("b"), id("c")}}, written); diff != "" {
			t.Errorf("batches (-want +got)\n%s", diff)
		}
		if want := []string{"first", "second", "third", "fourth"}; !slices.Equal(order, want) {
			t.Errorf("answered in order %v", order)
		}
	})
}
