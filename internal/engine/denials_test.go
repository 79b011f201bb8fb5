package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

func TestDenialIsCachedUntilRetry(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
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

func TestRepeatedDenialsNeverWaitForStore(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 1, "10s")}}
		ask(t, e, consume)
		denied := func() {
			t.Helper()
			if d := ask(t, e, consume); d.Allowed {
				t.Fatalf("%+v", d)
			}
		}
		denied()
		time.Sleep(700 * time.Millisecond)
		store.hold()
		denied() // the reading gets old
		<-store.enter
		denied() // while the clock is read again
		store.release()
		time.Sleep(500 * time.Millisecond)
		before := store.count()
		denied() // more than a second after the first reading
		if got := store.count() - before; got != 0 {
			t.Errorf("%d transactions for a denial that was read again", got)
		}
		// When nobody asks any more nothing is read: the one transaction is for the event of the
		// denials.
		time.Sleep(12 * time.Second)
		if got := store.count() - before; got > 1 {
			t.Errorf("%d transactions though nobody asks", got)
		}
	})
}

// TestDenialIsCachedForOneSecond after the last transaction; a later request waits for the
// store.
func TestDenialIsCachedForOneSecond(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 1, "1h")}, Cost: 1}
		ask(t, e, consume)
		if d := ask(t, e, consume); d.Allowed {
			t.Fatal("not exhausted")
		}
		store.hold()
		time.Sleep(1100 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if d, err := e.Do(ctx, &consume); err == nil {
			t.Errorf("answered while the store hangs: %+v", d)
		}
		<-store.enter
		store.release()
	})
}

func TestReportAfterResetRestoresNothing(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 1, "1h")}}
		for range 5 { // the first is allowed, the second has an event at once
			ask(t, e, consume)
		}
		if n, err := e.Reset(t.Context(), engine.Selection{Key: "k"}, false); n != 1 || err != nil {
			t.Fatalf("reset %d, %v", n, err)
		}
		time.Sleep(15 * time.Second)
		denied := toldOf(t, store)
		if denied != 4 {
			t.Errorf("events tell of %d denials, want 4", denied)
		}
		if n, err := e.Reset(t.Context(), engine.Selection{}, false); n != 0 || err != nil {
			t.Errorf("%d counters are back, %v", n, err)
		}
	})
}

func TestUnannouncedResetEndsCachedDenialWithinSecond(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 1, "1h")}}
		denied := func() bool { return !ask(t, e, consume).Allowed }
		denied()
		before := store.count()
		for range 30 { // for three seconds transactions without requests keep the denial cached
			if !denied() {
				t.Fatal("not exhausted")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if got := store.count() - before; got > 6 {
			t.Errorf("%d transactions in 3 s of denials", got)
		}
		if n, err := store.Reset(t.Context(), engine.Selection{Key: "k"}, false); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		for reset := time.Now(); denied(); time.Sleep(50 * time.Millisecond) {
			if time.Since(reset) > time.Second {
				t.Fatal("denied more than a second after the reset")
			}
		}
	})
}

func TestCachedDenialFollowsOwnCharges(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, _ *tap, e *engine.Engine) {
		limit := per(t, "k", 1, "10s")
		limit.Algorithm = engine.TokenBucket
		consume := engine.Request{Limits: []engine.Limit{limit}}
		ask(t, e, consume)
		first := ask(t, e, consume).Results[0].RetryAfter
		ask(t, e, engine.Request{Verb: engine.Record, Limits: consume.Limits})
		if second := ask(t, e, consume).Results[0].RetryAfter; second < first+9_000 {
			t.Errorf("retryAfter %d, and %d after as much again was recorded", first, second)
		}
	})
}

func TestRefundOrResetEndsCachedDenial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
		if diff := cmp.Diff([]engine.Forget{{Key: "k", Name: "1h"}, {Key: "k"}}, told); diff != "" {
			t.Errorf("other workers are told (-want +got)\n%s", diff)
		}
		ask(t, e, consume)
		e.Forget(engine.Forget{All: true})
		before := store.count()
		ask(t, e, consume)
		if store.count() == before {
			t.Error("a denial is remembered after Forget")
		}
	})
}

// TestRefundBatchedWithConsumeIsBroadcast, though the consume is decided after it.
func TestRefundBatchedWithConsumeIsBroadcast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		var told []engine.Forget
		e := start(t, engine.Config{Store: store, Broadcast: func(f engine.Forget) { told = append(told, f) }})
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 10, "1h")}, Cost: 1}
		ask(t, e, consume)
		refund := consume
		refund.Verb = engine.Refund
		inOneBatch(t, store, submission{e, refund, nil}, submission{e, consume, nil})
		if diff := cmp.Diff([]engine.Forget{{Key: "k", Name: "1h"}}, told); diff != "" {
			t.Errorf("other workers are told (-want +got)\n%s", diff)
		}
	})
}

// TestFailedResetIsBroadcast: it may have removed some counters.
func TestFailedResetIsBroadcast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &failingReset{tap: openTap(t)}
		var told []engine.Forget
		e := start(t, engine.Config{Store: store, Broadcast: func(f engine.Forget) { told = append(told, f) }})
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 1, "1h")}}
		ask(t, e, consume)
		if d := ask(t, e, consume); d.Allowed {
			t.Fatal("not exhausted")
		}
		if n, err := e.Reset(t.Context(), engine.Selection{Prefix: "k"}, false); n != 1 || !errors.Is(err, engine.ErrUnavailable) {
			t.Fatal(n, err)
		}
		if d := ask(t, e, consume); !d.Allowed {
			t.Error("denied after a reset")
		}
		if diff := cmp.Diff([]engine.Forget{{Prefix: "k"}}, told); diff != "" {
			t.Errorf("other workers are told (-want +got)\n%s", diff)
		}
	})
}

// failingReset resets, and then fails.
type failingReset struct{ *tap }

func (s *failingReset) Reset(ctx context.Context, sel engine.Selection, dryRun bool) (int64, error) {
	n, err := s.tap.Reset(ctx, sel, dryRun)
	return n, errors.Join(err, errors.New("the connection is gone"))
}

func TestEvents(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		consume := engine.Request{Limits: []engine.Limit{per(t, "api:user:7", 20, "1m")}}
		consume.Limits[0].Policy = "p"
		for range 17 {
			ask(t, e, consume)
		}
		if got := store.events(t); len(got) != 0 {
			t.Fatalf("events before the threshold: %+v", got)
		}
		want := engine.Event{Type: engine.EventWarning, Time: time.Now().UnixMilli(), Key: "api:user:7", Name: "1m", Policy: "p",
			Limit: 20, Window: "1m", Remaining: 2, Threshold: 2, ResetAt: ask(t, e, consume).Results[0].ResetAt, User: "u"}
		ask(t, e, consume)
		ask(t, e, consume)
		got := store.events(t)
		if diff := cmp.Diff([]engine.Event{want}, got, cmpopts.IgnoreFields(engine.Event{}, "ID")); diff != "" {
			t.Fatalf("one warning when 2 of 20 remain (-want +got):\n%s", diff)
		}
		// The first denial has an event at once.
		denied := ask(t, e, consume).Results[0]
		want.Type, want.Remaining, want.ResetAt, want.RetryAfter, want.Denied = engine.EventExceeded, 0, denied.ResetAt, denied.RetryAfter, 1
		got = store.events(t)
		if diff := cmp.Diff([]engine.Event{want}, got, cmpopts.IgnoreFields(engine.Event{}, "ID")); diff != "" || denied.RetryAfter < 1 {
			t.Fatalf("the first denial (-want +got):\n%s", diff)
		}
		// Further denials are reported together 10 seconds later, even if nothing follows them.
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

// TestDenialsAfterPauseAreReportedAtOnce, even if the worker still has the counter cached because
// others keep it busy.
func TestDenialsAfterPauseAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	for _, pause := range []time.Duration{11 * time.Second, time.Minute} {
		withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
			denied := engine.Request{Limits: []engine.Limit{per(t, "k", 1, "1h"), per(t, "k2", 1, "1h")}}
			busy := func(d time.Duration) {
				for range d / (100 * time.Millisecond) {
					ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "other", 1_000_000, "1h")}})
					time.Sleep(100 * time.Millisecond)
				}
			}
			ask(t, e, denied)
			for range 3 {
				store.events(t)
				before := store.count()
				ask(t, e, denied)
				ask(t, e, denied)
				if n := store.count() - before; n != 1 {
					t.Errorf("%d transactions for the two denials after %s, want 1", n, pause)
				}
				if got := store.events(t); len(got) != 2 || got[0].Denied != 1 || got[1].Denied != 1 {
					t.Errorf("after %s: %+v; want one denial of each counter told", pause, got)
				}
				busy(9 * time.Second)
				if got := store.events(t); len(got) != 0 {
					t.Errorf("within 10 s: %+v", got)
				}
				busy(3 * time.Second)
				if got := store.events(t); len(got) != 2 || got[0].Denied != 1 || got[1].Denied != 1 {
					t.Errorf("the second: %+v", got)
				}
				busy(pause)
			}
		})
	}
}

// TestOtherRefundsDoNotPreventCaching: each batch has some, and they are broadcast
// while it is written.
func TestOtherRefundsDoNotPreventCaching(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		l := per(t, "k", 1, "1h")
		ask(t, e, engine.Request{Limits: []engine.Limit{l}})
		for i := range 40 {
			beside := per(t, fmt.Sprint("other", i), 10, "1h")
			ask(t, e, engine.Request{Limits: []engine.Limit{beside}})
			e.Forget(engine.Forget{Key: "k"}) // so that the store has to be asked
			store.hold()
			first := make(chan error, 1)
			go func() {
				_, err := e.Do(t.Context(), &engine.Request{Limits: []engine.Limit{per(t, "busy", 1000, "1h")}, Cost: 1})
				first <- err
			}()
			<-store.enter
			together := make(chan error, 2)
			for _, r := range []*engine.Request{
				{Verb: engine.Refund, Limits: []engine.Limit{beside}, Cost: 1}, {Limits: []engine.Limit{l}, Cost: 1},
			} {
				go func() {
					_, err := e.Do(t.Context(), r)
					together <- err
				}()
			}
			synctest.Wait()
			store.release()
			if err := errors.Join(<-first, <-together, <-together); err != nil {
				t.Fatal(err)
			}
			before := store.count()
			if d := ask(t, e, engine.Request{Limits: []engine.Limit{l}}); d.Allowed || store.count() != before {
				t.Fatalf("batch %d: the denial beside a refund is not remembered", i)
			}
		}
	})
}

// Users may share a key: an event names the user who was denied, not the first user who ever was.
func TestCachedDenialEventNamesItsUser(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		as := func(user string) engine.Request {
			l := per(t, "job:queue:emails", 1, "1h")
			l.User, l.Threshold = user, -1
			return engine.Request{Limits: []engine.Limit{l}}
		}
		ask(t, e, as("bob"))
		ask(t, e, as("bob"))
		if got := store.events(t); len(got) != 1 || got[0].User != "bob" {
			t.Fatalf("the first denial: %+v", got)
		}
		for range 600 {
			ask(t, e, as("mallory"))
			time.Sleep(100 * time.Millisecond)
		}
		denied := int64(0)
		for _, event := range store.events(t) {
			if denied += event.Denied; event.User != "mallory" {
				t.Errorf("%d denials are told of %s", event.Denied, event.User)
			}
		}
		if denied < 400 {
			t.Errorf("%d of 600 denials in a minute were told", denied)
		}
	})
}

// What the store says that others have changed is invalidated whatever the transaction was for,
// because the store says it once.
func TestSettleInvalidatesForeignChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &changedByOthers{tap: openTap(t)}
		e := start(t, engine.Config{Store: store})
		consume := engine.Request{Limits: []engine.Limit{per(t, "k", 1, "1h")}}
		for range 2 {
			ask(t, e, consume)
		}
		store.say.Store(true)
		if _, err := storetest.Settle(t.Context(), e, "unknown", 1); err == nil {
			t.Fatal("settled what was not there")
		}
		before := store.count()
		if ask(t, e, consume); store.count() == before {
			t.Error("denied from memory what another worker changed")
		}
	})
}

// changedByOthers says once that others have changed a counter.
type changedByOthers struct {
	*tap
	say atomic.Bool
}

func (s *changedByOthers) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	return s.tap.Update(ctx, b, func(snap engine.Snapshot) engine.Changes {
		if s.say.CompareAndSwap(true, false) {
			snap.Others.IDs = []engine.CounterID{{Key: "k", Name: "1h"}}
		}
		return decide(snap)
	})
}

// An answer that was lost on its way from the store is found as a receipt, and was not tallied yet.
func TestInDoubtChargeIsTalliedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		var tallied atomic.Int64
		e := start(t, engine.Config{Store: store, Tally: func(*engine.Request, *engine.Decision) { tallied.Add(1) }})
		var failed atomic.Bool
		store.fail(func(committed bool) error {
			if committed && failed.CompareAndSwap(false, true) {
				return engine.ErrCommitUnknown
			}
			return nil
		})
		for range 3 {
			ask(t, e, engine.Request{ID: "a", Limits: []engine.Limit{per(t, "k", 10, "1h")}})
		}
		if got := tallied.Load(); got != 1 || !failed.Load() {
			t.Errorf("one charge, asked for three times, counted %d times", got)
		}
	})
}
