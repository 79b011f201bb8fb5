package engine_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

var times = flag.Int("histories", 1, "how many times as many random histories of workers the tests of the engine try")

// histories is how many random histories a test tries: n, or with make fuzz many times as many.
func histories(n int) int { return n * *times }

// tap wraps a real store: it counts transactions, holds them at a gate, and fails them on demand.
type tap struct {
	*sqlite.Store
	mu      sync.Mutex
	updates []engine.Batch
	// While transactions are held, enter receives when one begins, and it goes on when leave
	// receives, or when released is closed.
	enter, leave, released chan struct{}
	// fault, if set, is called before each transaction, and again after it was committed.
	fault func(committed bool) error
}

func (s *tap) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	s.mu.Lock()
	enter, leave, released := s.enter, s.leave, s.released
	s.mu.Unlock()
	if released != nil {
		select {
		case enter <- struct{}{}:
		case <-released:
		}
		select {
		case <-leave:
		case <-released:
		}
	}
	if len(slices.Compact(slices.Sorted(slices.Values(b.IDs)))) != len(b.IDs) || !slices.IsSorted(b.IDs) {
		return fmt.Errorf("the ids %q are not distinct and in order", b.IDs)
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

// hold makes every transaction wait from now on.
func (s *tap) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.enter, s.leave, s.released = make(chan struct{}), make(chan struct{}), make(chan struct{})
}

// release lets all transactions pass, also those that wait.
func (s *tap) release() { close(s.released) }

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

func openTap(t testing.TB) *tap { return openTapAt(t, nil) }

// openTapAt opens one with a clock of its own.
func openTapAt(t testing.TB, now func() time.Time) *tap {
	t.Helper()
	store := eachstore.SQLite(t, now)
	return &tap{Store: store}
}

// eventIDs makes ids that no other engine on the same store uses.
var eventIDs atomic.Int64

func start(t testing.TB, cfg engine.Config) *engine.Engine {
	t.Helper()
	cfg.NewID = func() string { return fmt.Sprintf("event-%d", eventIDs.Add(1)) }
	e, err := engine.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A store that a failed test holds would keep it open for ever.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return e
}

// observed is what an engine told its observer. errors are answers, other than to a request that was answered without the
// store; corrupt are those of the failures that are of counters that cannot be read.
type observed struct {
	answers, errors, failures, corrupt atomic.Int64

	mu      sync.Mutex
	settled []string        // the results of settles
	took    []time.Duration // by transactions
}

func (o *observed) Decided(v engine.Verb, result, algorithm string, degraded bool, _ time.Duration) {
	o.answers.Add(1)
	if result == "error" && !degraded {
		o.errors.Add(1)
	}
	if v == engine.Settle {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.settled = append(o.settled, result+" "+algorithm)
	}
}

func (o *observed) Wrote(_, _ int, took time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.took = append(o.took, took)
}

func (o *observed) StoreFailed(err error) {
	if o.failures.Add(1); errors.Is(err, engine.ErrCorrupt) {
		o.corrupt.Add(1)
	}
}

// withEngine runs a test in a bubble of synctest, with an engine on a store of its own.
func withEngine(t *testing.T, test func(t *testing.T, store *tap, e *engine.Engine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := openTap(t)
		test(t, store, start(t, engine.Config{Store: store}))
	})
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
