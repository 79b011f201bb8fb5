package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// raceLost decides, drops the outcome, lets another worker write, and reports a lost race.
type raceLost struct {
	*tap
	between func()
}

func (s *raceLost) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	if s.between == nil || len(b.IDs) == 0 {
		return s.tap.Update(ctx, b, decide)
	}
	between := s.between
	s.between = nil
	if err := s.Store.Update(ctx, b, func(snap engine.Snapshot) engine.Changes { decide(snap); return engine.Changes{} }); err != nil {
		return err
	}
	between()
	return engine.ErrConflict
}

// TestStatusOfAKeyWithManyCountersIsRefused: callers name counters, and one answer could take all memory.
func TestStatusOfAKeyWithManyCountersIsRefused(t *testing.T) {
	t.Parallel()
	e := start(t, engine.Config{Store: openTap(t)})
	for first := 0; first <= engine.MaxKeyCounters; first += 16 {
		var some []engine.Limit
		for i := first; i < min(first+16, engine.MaxKeyCounters); i++ {
			l := per(t, "a", 5, "1h")
			l.Name = fmt.Sprint(i)
			some = append(some, l)
		}
		ask(t, e, engine.Request{Verb: engine.Consume, Limits: some})
	}
	if all, err := e.Status(t.Context(), "a"); len(all) != engine.MaxKeyCounters || err != nil {
		t.Errorf("%d counters, %v", len(all), err)
	}
	ask(t, e, engine.Request{Verb: engine.Consume, Limits: []engine.Limit{per(t, "a", 5, "1h")}})
	if all, err := e.Status(t.Context(), "a"); all != nil || !errors.Is(err, engine.ErrManyCounters) {
		t.Errorf("%d counters, %v", len(all), err)
	}
	if all, err := e.StatusOf(t.Context(), []engine.Limit{per(t, "b", 5, "1h"), per(t, "a", 5, "1h")}); err != nil || all[0].Used != 0 || all[1].Used != 1 {
		t.Errorf("of limits: %+v, %v", all, err)
	}
}

func TestIDIsCheckedAgainAfterLostRace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		r := &raceLost{tap: store}
		e, other := start(t, engine.Config{Store: r}), start(t, engine.Config{Store: store})
		limits := func() []engine.Limit { return []engine.Limit{per(t, "k", 10, "1h")} }
		store.hold()
		type answer struct {
			d   engine.Decision
			err error
		}
		answers := make([]answer, 2)
		done := make(chan struct{}, 3)
		if err := e.Submit(&engine.Request{Limits: []engine.Limit{per(t, "gate", 10, "1h")}, Cost: 1, Done: func(engine.Decision, error) { done <- struct{}{} }}); err != nil {
			t.Fatal(err)
		}
		<-store.enter
		for i := range answers {
			if err := e.Submit(&engine.Request{Limits: limits(), Cost: 1, ID: "x", Fingerprint: [32]byte{byte(i)}, Done: func(d engine.Decision, err error) {
				answers[i] = answer{d, err}
				done <- struct{}{}
			}}); err != nil {
				t.Fatal(err)
			}
		}
		r.between = func() { ask(t, other, engine.Request{Limits: limits(), Cost: 1, ID: "x", Fingerprint: [32]byte{1}}) }
		store.release()
		<-done
		<-done
		<-done
		if !errors.Is(answers[0].err, engine.ErrIDConflict) {
			t.Errorf("the id belongs to another body: %+v", answers[0])
		}
		if answers[1].err != nil || !answers[1].d.Allowed {
			t.Errorf("the body that the id belongs to: %+v", answers[1])
		}
	})
}

func TestCacheNeverAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		step := time.Duration(0)
		store := eachstore.SQLite(t, func() time.Time { return time.Now().Add(step) })
		e := start(t, engine.Config{Store: store})
		a, b, c := per(t, "a", 1, "2s"), per(t, "b", 100, "1h"), per(t, "c", 1, "1h")
		ask(t, e, engine.Request{Limits: []engine.Limit{a}})
		ask(t, e, engine.Request{Limits: []engine.Limit{c}})
		ask(t, e, engine.Request{Limits: []engine.Limit{a, b}}) // denied by a
		step = 5 * time.Second
		ask(t, e, engine.Request{Limits: []engine.Limit{b, c}}) // denied by c
		allowed := 0
		for range 10 {
			if d := ask(t, e, engine.Request{Limits: []engine.Limit{a, b}}); d.Allowed {
				allowed++
			}
		}
		if allowed > 1 {
			t.Errorf("%d allowed of a limit of 1", allowed)
		}
	})
}

// hanging is a store that does not answer.
type hanging struct {
	*tap
	hang atomic.Bool
}

func (s *hanging) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	if s.hang.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.tap.Update(ctx, b, decide)
}

func (s *hanging) Receipts(ctx context.Context, ids []string) ([]*engine.Receipt, error) {
	if s.hang.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.tap.Receipts(ctx, ids)
}

// hangingTurn gives turns, and hangs in those as well.
type hangingTurn struct{ *hanging }

func (s hangingTurn) Await(ctx context.Context) engine.Turn {
	if s.hang.Load() {
		<-ctx.Done()
	}
	return nil
}

// TestHungTurnCountsTowardDeadline: a client gives up at the deadline, and must get its answer
// before.
func TestHungTurnCountsTowardDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := hangingTurn{&hanging{tap: openTap(t)}}
		e := start(t, engine.Config{Store: store})
		store.hang.Store(true)
		begin := time.Now()
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 5, "1h")}}); !d.Degraded {
			t.Errorf("%+v", d)
		}
		if took := time.Since(begin); took > 1500*time.Millisecond {
			t.Errorf("answered after %v", took)
		}
	})
}

func TestHungStoreIsWaitedForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hanging{tap: openTap(t)}
		e := start(t, engine.Config{Store: store})
		store.hang.Store(true)
		var slow, quick, worst atomic.Int64
		over := 0
		for range 120_000 { // 10,000 a second
			at := time.Now()
			err := e.Submit(&engine.Request{Limits: []engine.Limit{per(t, "k", 5, "1h")}, Cost: 1, Done: func(engine.Decision, error) {
				took := time.Since(at)
				worst.Store(max(worst.Load(), int64(took)))
				if took > 250*time.Millisecond {
					slow.Add(1)
				} else {
					quick.Add(1)
				}
			}})
			if err != nil {
				over++
			}
			time.Sleep(100 * time.Microsecond)
		}
		if over > 0 || time.Duration(worst.Load()) > 2*time.Second || slow.Load()*4 > quick.Load() {
			t.Errorf("%d quick, %d over 250 ms, worst %s, %d overloaded", quick.Load(), slow.Load(), time.Duration(worst.Load()), over)
		}
		store.hang.Store(false)
	})
}

func TestDenialReportKeepsDefinition(t *testing.T) {
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		old := per(t, "k", 1, "1s")
		old.Name, old.Algorithm = "w", engine.FixedWindow
		for range 5 {
			ask(t, e, engine.Request{Limits: []engine.Limit{old}})
		}
		now := per(t, "k", 100, "1h")
		now.Name = "w"
		ask(t, e, engine.Request{Limits: []engine.Limit{now}, Cost: 50})
		time.Sleep(15 * time.Second)
		synctest.Wait()
		d := ask(t, e, engine.Request{Verb: engine.Check, Limits: []engine.Limit{now}})
		if d.Results[0].Used < 50 {
			t.Errorf("%d used of the 50 charged 15 s ago in 1h", d.Results[0].Used)
		}
	})
}

// TestConcurrentSettlesShareTransactions: settles that arrive while one transaction reads share
// the next one, so that they do not delay other requests.
func TestConcurrentSettlesShareTransactions(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		const n = 100
		l := per(t, "k", 10*n, "1h")
		for i := range n {
			ask(t, e, engine.Request{Cost: 5, ID: fmt.Sprint(i), Limits: []engine.Limit{l}})
		}
		from := store.count()
		store.hold()
		settle := func(i int) {
			if d, err := storetest.Settle(t.Context(), e, fmt.Sprint(i), int64(i%10)); err != nil || !d.Allowed {
				t.Errorf("settle %d: %+v, %v", i, d, err)
			}
		}
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() { settle(i) })
		}
		all.Go(func() { settle(n - 1) }) // twice, at the same moment
		settled := make(chan struct{})
		go func() { all.Wait(); close(settled) }()
		for waiting := true; waiting; {
			select {
			case <-store.enter:
				synctest.Wait() // all others have gone as far as they can
				store.leave <- struct{}{}
			case <-settled:
				waiting = false
			}
		}
		store.release()
		// Each alone would take two transactions. The first two settles may read and write on their
		// own; then all others share theirs.
		if asked := store.count() - from; asked > 6 {
			t.Errorf("%d transactions for %d settles", asked, n)
		}
		if used := usedNow(t, e, "k"); used != n*45/10 {
			t.Errorf("%d used, want %d", used, n*45/10)
		}
	})
}

// Receipts that nobody waits for any more are not read: settles that gave up on a store that hung
// do not keep it busy afterwards.
func TestAbandonedSettlesReadNoReceipts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &hanging{tap: openTap(t)}
		e := start(t, engine.Config{Store: store})
		store.hang.Store(true)
		var all sync.WaitGroup
		for i := range 3000 { // several batches
			all.Go(func() {
				if _, err := storetest.Settle(t.Context(), e, fmt.Sprint(i), 1); !errors.Is(err, engine.ErrUnavailable) {
					t.Errorf("settle %d: %v", i, err)
				}
			})
		}
		all.Wait()
		store.hang.Store(false)
		time.Sleep(10 * time.Second)
		if _, err := storetest.Settle(t.Context(), e, "x", 1); !errors.Is(err, engine.ErrUnknownID) {
			t.Error(err)
		}
		if asked := store.count(); asked > 3 { // one read may have begun when all gave up, and one was the probe
			t.Errorf("%d transactions for one settle", asked)
		}
	})
}

// TestRequestsOverSlowStoreMeetDeadline: the time that a request waited for the transaction
// before is taken from its own.
func TestRequestsOverSlowStoreMeetDeadline(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{300 * time.Millisecond, 700 * time.Millisecond, 900 * time.Millisecond, 1200 * time.Millisecond, 1400 * time.Millisecond} {
		t.Run(takes.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := &slowStore{tap: openTap(t)}
				e := start(t, engine.Config{Store: store})
				store.takes.Store(int64(takes))
				var worst, without atomic.Int64
				var all sync.WaitGroup
				for range 1000 {
					at := time.Now()
					all.Add(1)
					if err := e.Submit(&engine.Request{Limits: []engine.Limit{per(t, "k", 5000, "1h")}, Cost: 1, Done: func(d engine.Decision, err error) {
						worst.Store(max(worst.Load(), int64(time.Since(at))))
						if d.Degraded || err != nil {
							without.Add(1)
						}
						all.Done()
					}}); err != nil {
						t.Fatal(err)
					}
					time.Sleep(10 * time.Millisecond)
				}
				all.Wait()
				if took := time.Duration(worst.Load()); took >= 2*time.Second {
					t.Errorf("answered after %v", took)
				}
				if n := without.Load(); n > 0 && takes < time.Second {
					t.Errorf("%d answered without a store that is in time for all", n)
				}
				store.takes.Store(0)
			})
		})
	}
}

// TestCircuitClosesOverSlowStore that works, but takes longer than a probe may.
func TestCircuitClosesOverSlowStore(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{300 * time.Millisecond, 600 * time.Millisecond, 1200 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			store := &slowStore{tap: openTap(t)}
			e := start(t, engine.Config{Store: store})
			store.takes.Store(int64(takes))
			one := engine.Request{Limits: []engine.Limit{per(t, "k", 5000, "1h")}}
			if d := ask(t, e, one); d.Degraded {
				t.Fatalf("%v: %+v while it works", takes, d)
			}
			store.fail(func(bool) error { return errors.New("connection refused") })
			for range 5 {
				ask(t, e, one)
			}
			store.fail(nil)
			for range 60 { // each is answered soon, by the store or as its OnError says
				time.Sleep(100 * time.Millisecond)
				at := time.Now()
				d := ask(t, e, one)
				if took := time.Since(at); took > max(takes, 250*time.Millisecond) || !d.Allowed || len(d.Results) != 1 {
					t.Errorf("%v: answered after %v: %+v", takes, took, d)
				}
				if back, err := e.Do(t.Context(), &engine.Request{Verb: engine.Refund, Limits: one.Limits, Cost: 1}); err == nil && len(back.Results) != 1 || err != nil && !errors.Is(err, engine.ErrUnavailable) {
					t.Errorf("%v: a refund: %+v, %v", takes, back, err)
				}
				one.OnError = engine.OnErrorDeny
				if d := ask(t, e, one); d.Degraded == d.Allowed || len(d.Results) != 1 {
					t.Errorf("%v: with deny: %+v", takes, d)
				}
				one.OnError = engine.OnErrorAllow
			}
			if d := ask(t, e, one); d.Degraded || e.Failure() != nil {
				t.Errorf("%v: %+v, %v, 6 s after it works again", takes, d, e.Failure())
			}
			store.takes.Store(0)
		})
	}
}

// TestSettlesDoNotUseUpProbe: otherwise they would use up the one attempt that
// the circuit allows, and have too little time for it.
func TestSettlesDoNotUseUpProbe(t *testing.T) {
	t.Parallel()
	for _, every := range []time.Duration{20 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			store := &slowStore{tap: openTap(t)}
			e := start(t, engine.Config{Store: store})
			one := engine.Request{Limits: []engine.Limit{per(t, "k", 5000, "1h")}}
			store.takes.Store(int64(600 * time.Millisecond))
			store.fail(func(bool) error { return errors.New("connection refused") })
			for range 5 {
				ask(t, e, one)
			}
			store.fail(nil)
			if e.Failure() == nil {
				t.Fatal("the circuit is closed")
			}
			var all sync.WaitGroup
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(every) {
				all.Go(func() { _, _ = storetest.Settle(t.Context(), e, "an id that is not known", 1) })
			}
			all.Wait()
			if err := e.Failure(); err != nil {
				t.Errorf("a settle each %v: 10 s after it works again: %v", every, err)
			}
			store.takes.Store(0)
		})
	}
}

// TestFloodOverSlowStoreIsOverloaded: requests that the store has no time for get
// ErrOverloaded; they are neither allowed nor denied.
func TestFloodOverSlowStoreIsOverloaded(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{200 * time.Millisecond, 400 * time.Millisecond, 700 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			store := &slowStore{tap: openTap(t)}
			e := start(t, engine.Config{Store: store, MaxBatch: 8, Queue: 256})
			store.takes.Store(int64(takes))
			var decided, refused, without atomic.Int64
			var all sync.WaitGroup
			for range 4000 { // in 20 s; the store can decide 8 in a batch
				all.Add(1)
				if err := e.Submit(&engine.Request{Limits: []engine.Limit{per(t, "k", 5000, "1h")}, Cost: 1, Done: func(d engine.Decision, err error) {
					switch {
					case errors.Is(err, engine.ErrOverloaded):
						refused.Add(1)
					case err != nil || d.Degraded:
						without.Add(1)
					default:
						decided.Add(1)
					}
					all.Done()
				}}); err != nil {
					refused.Add(1)
					all.Done()
				}
				time.Sleep(5 * time.Millisecond)
			}
			all.Wait()
			if least := 8 * int64(20*time.Second/takes) / 2; without.Load() > 0 || decided.Load() < least || e.Failure() != nil {
				t.Errorf("%v: %d decided, want %d or more; %d refused; %d without the store, which failed: %v",
					takes, decided.Load(), least, refused.Load(), without.Load(), e.Failure())
			}
			store.takes.Store(0)
		})
	}
}

// TestFloodOverHungStoreOpensCircuit, although timeouts in a flood may be short ones.
func TestFloodOverHungStoreOpensCircuit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{tap: openTap(t)}
		e := start(t, engine.Config{Store: store, MaxBatch: 8, Queue: 256})
		store.takes.Store(int64(100 * time.Millisecond))
		for n := range 4000 {
			_ = e.Submit(&engine.Request{Limits: []engine.Limit{per(t, "k", 5000, "1h")}, Cost: 1, Done: func(engine.Decision, error) {}})
			time.Sleep(5 * time.Millisecond)
			if n == 2000 {
				store.takes.Store(int64(time.Hour))
			}
		}
		if e.Failure() == nil {
			t.Error("10 s after the store began to hang nothing fails")
		}
		store.takes.Store(0)
	})
}

// slowStore is a store whose transactions and reads take long.
type slowStore struct {
	*tap
	takes atomic.Int64
	tries atomic.Int64
}

func (s *slowStore) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	s.tries.Add(1)
	select {
	case <-time.After(time.Duration(s.takes.Load())):
		return s.tap.Update(ctx, b, decide)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slowStore) Receipts(ctx context.Context, ids []string) ([]*engine.Receipt, error) {
	select {
	case <-time.After(time.Duration(s.takes.Load())):
		return s.tap.Receipts(ctx, ids)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
