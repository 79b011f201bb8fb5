package engine_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/sqlite"
)

// tap stands before a real store: it counts transactions, holds them at a gate, and fails them on demand.
type tap struct {
	*sqlite.Store
	mu      sync.Mutex
	updates []engine.Batch
	// enter, when set, is sent to when a transaction begins, and it goes on when leave is received from.
	enter, leave chan struct{}
	// fault, when set, is asked before each transaction, and after when it was committed.
	fault func(committed bool) error
}

func (s *tap) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	s.mu.Lock()
	enter, leave := s.enter, s.leave
	s.mu.Unlock()
	if enter != nil {
		enter <- struct{}{}
		<-leave
	}
	s.mu.Lock()
	s.updates = append(s.updates, engine.Batch{Counters: append([]engine.CounterID{}, b.Counters...), IDs: append([]string{}, b.IDs...)})
	fault := s.fault
	s.mu.Unlock()
	if fault != nil {
		if err := fault(false); err != nil {
			return err
		}
	}
	if err := s.Store.Update(ctx, b, decide); err != nil {
		return err
	}
	if fault != nil {
		return fault(true)
	}
	return nil
}

// hold makes every transaction wait from now on; release lets them pass again.
func (s *tap) hold() { s.gate(make(chan struct{}), make(chan struct{})) }

func (s *tap) release() { s.gate(nil, nil) }

func (s *tap) gate(enter, leave chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.enter, s.leave = enter, leave
}

func (s *tap) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.updates)
}

func (s *tap) fail(f func(committed bool) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// events takes the events out of the outbox.
func (s *tap) events(t *testing.T) (all []engine.Event) {
	t.Helper()
	_, err := s.Relay(t.Context(), 1000, func(_ context.Context, events []engine.Event) (acked []string, err error) {
		for _, e := range events {
			all = append(all, e)
			acked = append(acked, e.ID)
		}
		return acked, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func openTap(t *testing.T) *tap {
	t.Helper()
	store, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "limits.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return &tap{Store: store}
}

func start(t *testing.T, cfg engine.Config) *engine.Engine {
	t.Helper()
	var ids atomic.Int64
	if cfg.Writers == 0 {
		cfg.Writers = 1 // what waits is predictable
	}
	cfg.NewID = func() string { return fmt.Sprintf("event-%d", ids.Add(1)) }
	e, err := engine.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e
}

func window(t testing.TB, text string) engine.Window {
	t.Helper()
	w, err := engine.ParseWindow(text)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// per is a limit of n in a sliding window.
func per(t testing.TB, key string, n int64, text string) engine.Limit {
	return engine.Limit{CounterID: engine.CounterID{Key: key, Name: text}, Limit: n, Window: window(t, text), Threshold: n / 10, User: "u"}
}

func ask(t *testing.T, e *engine.Engine, r engine.Request) engine.Decision {
	t.Helper()
	if r.Cost == 0 {
		r.Cost = 1
	}
	d, err := e.Do(t.Context(), &r)
	if err != nil {
		t.Fatalf("%s: %v", r.Verb, err)
	}
	return d
}

func TestRequestsThatWaitAreWrittenTogether(t *testing.T) {
	t.Parallel()
	store := openTap(t)
	e := start(t, engine.Config{Store: store})
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
	<-store.enter // the first is being written: what comes now waits
	for range n {
		submit("hot")
	}
	submit("other")
	store.leave <- struct{}{}
	<-store.enter
	store.leave <- struct{}{}
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
	store.release()
}

func TestAFullQueueRefusesAtOnce(t *testing.T) {
	t.Parallel()
	store := openTap(t)
	e := start(t, engine.Config{Store: store, Queue: 3})
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
	if got := e.Queued(); got != 3 {
		t.Errorf("queued %d, want 3", got)
	}
	store.leave <- struct{}{}
	<-store.enter
	store.leave <- struct{}{}
	done.Wait()
	store.release()
}

func TestSeveralLimitsAreChargedTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	e := start(t, engine.Config{Store: openTap(t)})
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
}

func TestAnIDChargesOnce(t *testing.T) {
	t.Parallel()
	store := openTap(t)
	e := start(t, engine.Config{Store: store})
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
}

func TestTheSameIDTwiceInOneBatch(t *testing.T) {
	t.Parallel()
	store := openTap(t)
	e := start(t, engine.Config{Store: store})
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
	store.leave <- struct{}{}
	<-store.enter
	store.leave <- struct{}{}
	if diff := cmp.Diff(<-answers, <-answers); diff != "" {
		t.Error(diff)
	}
	store.release()
	if c, err := e.Status(t.Context(), "k"); err != nil || c[0].Used != 1 {
		t.Errorf("%+v %v: want 1 used", c, err)
	}
}

func TestADenialIsRememberedUntilItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		e := start(t, engine.Config{Store: store})
		limit := per(t, "k", 1, "600ms")
		consume := engine.Request{Limits: []engine.Limit{limit}}
		ask(t, e, consume)
		ask(t, e, consume)
		before := store.count()
		var d engine.Decision
		for range 100 {
			if d = ask(t, e, consume); d.Allowed || d.Results[0].RetryAfter < 1 {
				t.Fatalf("%+v", d)
			}
		}
		if got := store.count(); got != before {
			t.Errorf("%d transactions for known denials, want none", got-before)
		}
		time.Sleep(time.Duration(d.Results[0].RetryAfter) * time.Millisecond)
		if d := ask(t, e, consume); !d.Allowed {
			t.Errorf("a retry at retryAfter is denied: %+v", d)
		}
	})
}

func TestARefundOrResetEndsARememberedDenial(t *testing.T) {
	t.Parallel()
	store := openTap(t)
	var told []engine.Forget
	e := start(t, engine.Config{Store: store, Broadcast: func(f engine.Forget) { told = append(told, f) }})
	consume := engine.Request{Limits: []engine.Limit{per(t, "k", 1, "1h")}}
	exhaust := func() {
		ask(t, e, consume)
		if d := ask(t, e, consume); d.Allowed {
			t.Fatal("not exhausted")
		}
	}
	exhaust()
	ask(t, e, engine.Request{Verb: engine.Refund, Limits: consume.Limits})
	if d := ask(t, e, consume); !d.Allowed {
		t.Error("denied after a refund")
	}
	if d := ask(t, e, consume); d.Allowed {
		t.Error("allowed after the refund was used")
	}
	if n, err := e.Reset(t.Context(), engine.Selection{Key: "k"}, false); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if d := ask(t, e, consume); !d.Allowed {
		t.Error("denied after a reset")
	}
	if diff := cmp.Diff([]engine.Forget{{Key: "k"}, {Key: "k"}}, told); diff != "" {
		t.Errorf("other workers are told (-want +got)\n%s", diff)
	}
	ask(t, e, consume)
	e.Forget(engine.Forget{All: true})
	before := store.count()
	ask(t, e, consume)
	if store.count() == before {
		t.Error("a denial is remembered after Forget")
	}
}

func TestWhenTheStoreFails(t *testing.T) {
	t.Parallel()
	down := errors.New("connection refused")
	for _, tt := range []struct {
		onError engine.OnError
		allowed []bool
	}{
		{engine.OnErrorAllow, []bool{true, true, true}},
		{engine.OnErrorDeny, []bool{false, false, false}},
		{engine.OnErrorLocal, []bool{true, true, false}},
	} {
		store := openTap(t)
		e := start(t, engine.Config{Store: store})
		store.fail(func(bool) error { return down })
		for i, want := range tt.allowed {
			d := ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 2, "1h")}, OnError: tt.onError})
			if d.Allowed != want || !d.Degraded {
				t.Errorf("on error %v, request %d: %+v; want allowed %v, degraded", tt.onError, i, d, want)
			}
		}
		for _, verb := range []engine.Verb{engine.Refund, engine.Record} {
			r := engine.Request{Verb: verb, Limits: []engine.Limit{per(t, "k", 2, "1h")}, Cost: 1, OnError: tt.onError}
			local := verb == engine.Record && tt.onError == engine.OnErrorLocal
			if _, err := e.Do(t.Context(), &r); errors.Is(err, engine.ErrUnavailable) == local {
				t.Errorf("on error %v, a %s that was not written: %v", tt.onError, verb, err)
			}
		}
	}
}

func TestTheCircuitClosesAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		down := errors.New("down")
		var told []error
		e := start(t, engine.Config{Store: store, StoreFailing: func(err error) { told = append(told, err) }})
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 100, "1h")}}
		store.fail(func(bool) error { return down })
		ask(t, e, consume)
		before := store.count()
		ask(t, e, consume)
		if store.count() != before {
			t.Error("a store that is known to fail is asked at once")
		}
		store.fail(nil)
		time.Sleep(1100 * time.Millisecond)
		if d := ask(t, e, consume); d.Degraded {
			t.Errorf("%+v after the store is back", d)
		}
		if len(told) != 2 || !errors.Is(told[0], down) || told[1] != nil {
			t.Errorf("told %v: want that it fails and that it is back", told)
		}
	})
}

func TestALostCommitCountsOnceWithAnID(t *testing.T) {
	t.Parallel()
	for _, committed := range []bool{true, false} {
		store := openTap(t)
		e := start(t, engine.Config{Store: store})
		lost := false
		store.fail(func(after bool) error {
			if lost || after != committed {
				return nil
			}
			lost = true
			return fmt.Errorf("cut: %w", engine.ErrCommitUnknown)
		})
		limits := []engine.Limit{per(t, "k", 10, "1h")}
		d := ask(t, e, engine.Request{Limits: limits, ID: "once"})
		if d.Degraded || !d.Allowed || d.Results[0].Used != 1 {
			t.Errorf("committed %v: %+v", committed, d)
		}
		lost = false
		if d := ask(t, e, engine.Request{Limits: limits}); !d.Degraded {
			t.Errorf("committed %v: without an id it must not be written again: %+v", committed, d)
		}
	}
}

func TestALostRaceIsRunAgain(t *testing.T) {
	t.Parallel()
	store := openTap(t)
	e := start(t, engine.Config{Store: store})
	races := 5
	store.fail(func(after bool) error {
		if after || races == 0 {
			return nil
		}
		races--
		return engine.ErrConflict
	})
	if d := ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 1, "1h")}}); d.Degraded || !d.Allowed {
		t.Errorf("%+v", d)
	}
}

func TestARequestThatWaitsTooLongIsAnsweredWithoutTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		e := start(t, engine.Config{Store: store, Deadline: time.Second})
		store.hold()
		answers := make(chan engine.Decision, 2)
		submit := func() {
			r := engine.Request{Limits: []engine.Limit{per(t, "k", 5, "1h")}, Cost: 1, OnError: engine.OnErrorDeny, Done: func(d engine.Decision, err error) { answers <- d }}
			if err := e.Submit(&r); err != nil {
				t.Fatal(err)
			}
		}
		submit()
		<-store.enter // the store hangs with the first, and the second waits
		submit()
		time.Sleep(1500 * time.Millisecond)
		leave := store.leave
		store.release()
		close(leave)
		for range 2 {
			if d := <-answers; !d.Degraded || d.Allowed {
				t.Errorf("%+v: want a degraded denial", d)
			}
		}
	})
}

func TestEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		e := start(t, engine.Config{Store: store})
		consume := engine.Request{Limits: []engine.Limit{per(t, "api:user:7", 20, "1m")}}
		for range 17 {
			ask(t, e, consume)
		}
		if got := store.events(t); len(got) != 0 {
			t.Fatalf("events before the threshold: %+v", got)
		}
		ask(t, e, consume)
		ask(t, e, consume)
		ask(t, e, consume)
		got := store.events(t)
		if len(got) != 1 || got[0].Type != engine.EventWarning || got[0].Remaining != 2 || got[0].Threshold != 2 || got[0].User != "u" {
			t.Fatalf("one warning when 2 of 20 remain: %+v", got)
		}
		// The first denial is told at once.
		ask(t, e, consume)
		got = store.events(t)
		if len(got) != 1 || got[0].Type != engine.EventExceeded || got[0].Denied != 1 || got[0].RetryAfter < 1 {
			t.Fatalf("the first denial: %+v", got)
		}
		// More denials are told together, 10 seconds after it, even when nothing follows them.
		for range 41 {
			ask(t, e, consume)
		}
		if got := store.events(t); len(got) != 0 {
			t.Fatalf("within 10 s: %+v", got)
		}
		time.Sleep(12 * time.Second)
		synctest.Wait()
		got = store.events(t)
		if len(got) != 1 || got[0].Denied != 41 || got[0].Type != engine.EventExceeded {
			t.Fatalf("the 41 denials that followed: %+v", got)
		}
		time.Sleep(12 * time.Second)
		synctest.Wait()
		if got := store.events(t); len(got) != 0 {
			t.Fatalf("told twice: %+v", got)
		}
	})
}

func TestDenialsThatAWorkerRemembersOutliveIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		e := start(t, engine.Config{Store: store})
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 1, "1h")}}
		for range 8 { // 1 allowed, 1 told, 6 remembered
			ask(t, e, consume)
		}
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		store.events(t)
		time.Sleep(11 * time.Second)
		next := start(t, engine.Config{Store: store})
		ask(t, next, consume)
		if got := store.events(t); len(got) != 1 || got[0].Denied != 7 {
			t.Errorf("%+v: want one event for 6 + 1 denials", got)
		}
	})
}

func TestCloseAnswersEverything(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	store := openTap(t)
	e := start(t, engine.Config{Store: store})
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
	store.Close()
}

func TestListSkipsWhatIsNotUsed(t *testing.T) {
	t.Parallel()
	e := start(t, engine.Config{Store: openTap(t)})
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
}

func TestBatchesThatShareACounterAreNotWrittenAtOnce(t *testing.T) {
	t.Parallel()
	store := openTap(t)
	e := start(t, engine.Config{Store: store, Writers: 2})
	store.hold()
	var done sync.WaitGroup
	var order []string
	var mu sync.Mutex
	submit := func(name string, keys ...string) {
		done.Add(1)
		var limits []engine.Limit
		for _, key := range keys {
			limits = append(limits, per(t, key, 100, "1h"))
		}
		err := e.Submit(&engine.Request{Limits: limits, Cost: 1, Done: func(engine.Decision, error) {
			mu.Lock()
			order = append(order, name)
			mu.Unlock()
			done.Done()
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	enter, leave := store.enter, store.leave
	submit("first", "a")
	<-enter
	submit("shares", "a", "b") // waits for the first
	submit("behind", "b")      // must not overtake the one before
	submit("other", "c")
	<-enter // the second writer takes what shares nothing
	leave <- struct{}{}
	leave <- struct{}{}
	<-enter
	leave <- struct{}{}
	done.Wait()
	store.release()
	var written [][]engine.CounterID
	for _, b := range store.updates[1:] {
		written = append(written, b.Counters)
	}
	id := func(key string) engine.CounterID { return engine.CounterID{Key: key, Name: "1h"} }
	want := [][]engine.CounterID{{id("a")}, {id("c")}, {id("a"), id("b")}}
	if len(written) == 3 && written[0][0] == id("c") { // both were at the gate
		written[0], written[1] = written[1], written[0]
	}
	if diff := cmp.Diff(want, written); diff != "" {
		t.Errorf("batches (-want +got)\n%s", diff)
	}
	if len(order) != 4 || order[2] != "shares" || order[3] != "behind" {
		t.Errorf("answered in order %v", order)
	}
}
