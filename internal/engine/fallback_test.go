package engine_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

func TestOnErrorWhenStoreFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
	})
}

// TestDenialWithoutStoreSaysWhenToRetry: its times lie ahead and agree. A limit in shadow stays free.
func TestDenialWithoutStoreSaysWhenToRetry(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		store.fail(func(bool) error { return errors.New("connection refused") })
		shadow := per(t, "shadow", 2, "1h")
		shadow.Shadow = true
		d := ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 2, "1h"), shadow}, OnError: engine.OnErrorDeny})
		denied, free := d.Results[0], d.Results[1]
		if denied.Allowed || denied.Spared || denied.Remaining != 0 || denied.RetryAfter != 1000 || denied.ResetAt != time.Now().UnixMilli()+denied.RetryAfter {
			t.Errorf("denied at %d: %+v", time.Now().UnixMilli(), denied)
		}
		if !free.Allowed || free.Spared || free.Remaining != 2 || free.RetryAfter != 0 {
			t.Errorf("in shadow: %+v", free)
		}
	})
}

// TestRequestWithoutLimitsWhenStoreFails: nothing can deny then. An id makes no difference,
// except for a refund, which was not written.
func TestRequestWithoutLimitsWhenStoreFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down, gone := errors.New("connection refused"), errors.New("no such policy")
		for _, onError := range []engine.OnError{engine.OnErrorAllow, engine.OnErrorDeny, engine.OnErrorLocal} {
			store := openTap(t)
			e := start(t, engine.Config{Store: store})
			store.fail(func(bool) error { return down })
			for _, id := range []string{"", "x"} {
				if d := ask(t, e, engine.Request{ID: id, OnError: onError}); !d.Allowed || d.Degraded != (id != "") || d.Results == nil {
					t.Errorf("on error %v, id %q: %+v", onError, id, d)
				}
			}
			for _, verb := range []engine.Verb{engine.Consume, engine.Record, engine.Refund} {
				if _, err := e.Do(t.Context(), &engine.Request{Verb: verb, Cost: 1, ID: "y", Refusal: gone, OnError: onError}); err != gone {
					t.Errorf("on error %v, a %s that is refused: %v", onError, verb, err)
				}
			}
			if _, err := e.Do(t.Context(), &engine.Request{Verb: engine.Refund, Cost: 1, ID: "z", OnError: onError}); !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("on error %v, a refund with an id: %v", onError, err)
			}
		}
	})
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
		refund := engine.Request{Verb: engine.Refund, Limits: consume.Limits, Cost: 1}
		if _, err := e.Do(t.Context(), &refund); !errors.Is(err, engine.ErrUnavailable) || !errors.Is(err, down) {
			t.Errorf("a refund while the circuit is open: %v; want why the store fails", err)
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
	synctest.Test(t, func(t *testing.T) {
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
	})
}

func TestLostRaceIsRetried(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
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
	})
}

func TestLateRequestIsAnsweredWithoutStore(t *testing.T) {
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
		store.release()
		for range 2 {
			if d := <-answers; !d.Degraded || d.Allowed {
				t.Errorf("%+v: want a degraded denial", d)
			}
		}
	})
}

// A flood must not open the limits of others: a request that waits too long for a store that works
// is rejected, not allowed.
func TestLateRequestOverHealthyStoreIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		e := start(t, engine.Config{Store: store, Deadline: time.Second, MaxBatch: 1})
		store.fail(func(committed bool) error {
			if !committed {
				time.Sleep(400 * time.Millisecond)
			}
			return nil
		})
		type answer struct {
			d   engine.Decision
			err error
		}
		answers := make(chan answer, 6)
		for range cap(answers) {
			r := &engine.Request{Limits: []engine.Limit{per(t, "k", 100, "1h")}, Cost: 1, Done: func(d engine.Decision, err error) { answers <- answer{d, err} }}
			if err := e.Submit(r); err != nil {
				t.Fatal(err)
			}
		}
		for i := range cap(answers) {
			a := <-answers
			switch intime := i < 2; {
			case intime && (a.err != nil || a.d.Degraded || a.d.Results[0].Used != int64(i+1)):
				t.Errorf("request %d, in time: %+v, %v", i+1, a.d, a.err)
			case !intime && !errors.Is(a.err, engine.ErrOverloaded):
				t.Errorf("request %d: %+v, %v; want %v", i+1, a.d, a.err, engine.ErrOverloaded)
			}
		}
		store.fail(nil)
		if d := ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 100, "1h")}}); d.Degraded || d.Results[0].Used != 3 {
			t.Errorf("afterwards: %+v; want the third charge", d)
		}
	})
}

// TestADegradedAnswerIsNoOther: nothing of the denial that could not be written is in the answer that allows.
func TestADegradedAnswerIsNoOther(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		l := per(t, "k", 2, "1h")
		l.Policy, l.Message = "p", "slow down"
		ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: 2})
		store.fail(func(committed bool) error {
			if committed {
				return fmt.Errorf("cut: %w", engine.ErrCommitUnknown)
			}
			return nil
		})
		d := ask(t, e, engine.Request{Limits: []engine.Limit{l}})
		if r := d.Results[0]; !d.Degraded || !r.Allowed || r.RetryAfter != 0 || r.Message != "" {
			t.Errorf("%+v", d)
		}
	})
}
