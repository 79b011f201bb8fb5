package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

// readOnly is a store that can be read, and takes as long as it is told, while nothing can be written.
type readOnly struct {
	*slowStore
	writes atomic.Int64
}

var errReadOnly = errors.New("the file system is mounted read-only")

func (s *readOnly) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	writes := false
	err := s.slowStore.Update(ctx, b, func(snap engine.Snapshot) engine.Changes {
		c := decide(snap)
		writes = len(c.Counters)+len(c.Receipts) > 0
		return engine.Changes{}
	})
	if err == nil && writes {
		s.writes.Add(1)
		return errReadOnly
	}
	return err
}

// TestStoreThatCannotBeWrittenIsNotBack, though it can be read: a probe writes, also a slow one. There is one in two seconds.
func TestStoreThatCannotBeWrittenIsNotBack(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{0, 400 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			store := &readOnly{slowStore: &slowStore{tap: openTap(t)}}
			e := start(t, engine.Config{Store: store})
			store.takes.Store(int64(takes))
			ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 10, "1h")}})
			time.Sleep(10 * time.Second)
			from := store.writes.Load()
			for range 40 {
				time.Sleep(time.Second)
				if err := e.Failure(); !errors.Is(err, errReadOnly) {
					t.Errorf("%s: Failure is %v", takes, err)
				}
			}
			if n := store.writes.Load() - from; n < 10 || n > 20 {
				t.Errorf("%s: %d probes in 40 s", takes, n)
			}
			store.takes.Store(0)
		})
	}
}

// TestFailureIsTheLastOneThatSaysMore: a timeout is told as what came before it, unless the store has worked since.
func TestFailureIsTheLastOneThatSaysMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{tap: openTap(t)}
		e := start(t, engine.Config{Store: store})
		limits := []engine.Limit{per(t, "k", 1000, "1h")}
		want := func(why error) {
			t.Helper()
			if err := e.Failure(); !errors.Is(err, why) || err != nil && why == nil {
				t.Errorf("Failure is %v, want %v", err, why)
			}
		}
		down, full := errors.New("connection refused"), errors.New("disk full")
		for _, why := range []error{down, full} {
			store.fail(func(bool) error { return why })
			ask(t, e, engine.Request{Limits: limits})
			want(why)
			time.Sleep(1100 * time.Millisecond)
		}
		store.takes.Store(int64(time.Hour))
		ask(t, e, engine.Request{Limits: limits}) // times out
		want(full)
		store.takes.Store(0)
		store.fail(nil)
		time.Sleep(5 * time.Second)
		if d := ask(t, e, engine.Request{Limits: limits}); d.Degraded {
			t.Errorf("%+v after it works again", d)
		}
		want(nil)

		// Nothing of this failure is left for the next one, which a request finds to be over as soon as it was over the first time.
		store.fail(func(bool) error { return down })
		ask(t, e, engine.Request{Limits: limits})
		store.fail(nil)
		time.Sleep(1100 * time.Millisecond)
		if d := ask(t, e, engine.Request{Limits: limits}); d.Degraded {
			t.Errorf("%+v after the second failure is over", d)
		}
		store.takes.Store(int64(time.Hour))
		ask(t, e, engine.Request{Limits: limits})
		want(context.DeadlineExceeded)
		store.takes.Store(0)
		time.Sleep(5 * time.Second)
	})
}

// TestALostCommitIsNoFailure of the store: nothing else is answered without it, and nothing probes it.
func TestALostCommitIsNoFailure(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		store.fail(func(committed bool) error {
			if committed {
				return fmt.Errorf("cut: %w", engine.ErrCommitUnknown)
			}
			return nil
		})
		limits := []engine.Limit{per(t, "k", 1000, "1h")}
		if d := ask(t, e, engine.Request{Limits: limits}); !d.Degraded {
			t.Errorf("%+v of a commit in doubt", d)
		}
		store.fail(nil)
		before := store.count()
		if time.Sleep(10 * time.Second); e.Failure() != nil || store.count() != before {
			t.Errorf("Failure is %v, and there were %d transactions", e.Failure(), store.count()-before)
		}
		if d := ask(t, e, engine.Request{Limits: limits}); d.Degraded {
			t.Errorf("the next: %+v", d)
		}
	})
}

// TestASettleThatIsNotWrittenIsAnError, whatever its consume was to get without the store.
func TestASettleThatIsNotWrittenIsAnError(t *testing.T) {
	t.Parallel()
	withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
		ask(t, e, engine.Request{Limits: []engine.Limit{per(t, "k", 10, "1h")}, ID: "x"})
		down := errors.New("down")
		store.fail(func(bool) error { return down })
		if d, err := storetest.Settle(t.Context(), e, "x", 5); !errors.Is(err, engine.ErrUnavailable) || !errors.Is(err, down) {
			t.Errorf("%+v, %v; want why it was not written", d, err)
		}
		store.fail(nil)
		time.Sleep(5 * time.Second)
		if d, err := storetest.Settle(t.Context(), e, "x", 5); err != nil || d.Results[0].Used != 5 {
			t.Errorf("%+v, %v; want 5 used", d, err)
		}
	})
}
