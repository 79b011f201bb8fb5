// Package storetest is the conformance suite of the stores: it checks what [engine.Store] and the
// store interfaces of the other packages promise, and what the outbox owes its relay. Both backends
// pass it, so the rest of the program need not know which one it has.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/jobs"
	apikeys "github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/usage"
)

// Store is what a backend provides.
type Store interface {
	engine.Store
	apikeys.Store
	overrides.Store
	jobs.Store
	alerts.Store
	usage.Store

	Expire(ctx context.Context, max int) (int, error)
	PruneKeys(ctx context.Context, before time.Time, max int) (int, error)
	PruneOverrides(ctx context.Context, before time.Time, max int) (int, error)
	Relay(ctx context.Context, max int, publish func(ctx context.Context, events []engine.Event) (acked []string, err error)) (n int, err error)
	Backlog(ctx context.Context) (int64, error)
	OutboxAge(ctx context.Context) (time.Duration, error)
	RefuseEvents(ctx context.Context, ids []string) error
}

// Run runs the suite. open returns an empty store, which is closed when its test ends.
func Run(t *testing.T, open func(t *testing.T) Store) {
	for _, about := range []struct {
		name  string
		tests []test
	}{
		{"counters", counterTests},
		{"settle", settleTests},
		{"keys", keyTests},
		{"overrides", overrideTests},
		{"jobs", jobTests},
		{"alerts", alertTests},
		{"deliveries", deliveryTests},
		{"usage", usageTests},
	} {
		t.Run(about.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range about.tests {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(t, open(t))
				})
			}
		})
	}
}

// test is one test of the suite.
type test struct {
	name string
	run  func(t *testing.T, s Store)
}

// counterTests cover counters, receipts and the outbox.
var counterTests = []test{
	{"absent counters read nil", absent},
	{"what is written is read back byte by byte", writeThenRead},
	{"a spec stays until it changes", specs},
	{"a batch keeps its order", batchOrder},
	{"3,000 counters in a batch", largeBatch},
	{"an empty batch reads the clock", emptyBatch},
	{"a decision that changes nothing leaves nothing", noChange},
	{"the clock is read after locking and never runs backwards", clock},
	{"a slot out of range or a new counter without a spec writes nothing", badChanges},
	{"a canceled context writes nothing", canceled},
	{"canceled while deciding writes nothing", canceledInside},
	{"a panic in decide leaves no locks", panics},
	{"receipts", receipts},
	{"an existing receipt id is a conflict and writes nothing", receiptTaken},
	{"requests with one id charge once", receiptRace},
	{"updates of one counter run one after another", serialized},
	{"overlapping batches never deadlock", overlappingBatches},
	{"creators of one counter lose no charge", concurrentCreates},
	{"updates and resets never deadlock", updatesAndResets},
	{"events are relayed in order", relayOrder},
	{"the outbox is as old as its first event", outboxAge},
	{"refused events do not count for the outbox age", outboxAgeOfRefused},
	{"an unacknowledged event stays", relayPartial},
	{"a failed publish keeps all events", relayFails},
	{"a publish that panics keeps all events", relayPanics},
	{"acknowledged events are removed after the context ended", relayCanceled},
	{"two relays never share an event", relaysAtOnce},
	{"an event keeps all its fields", eventFields},
	{"an event whose text is not UTF-8 is relayed", eventOfInvalidText},
	{"counters of a key, in order of name", counters},
	{"counters of a key that has very many", manyOfOneKey},
	{"list by prefix", listPrefix},
	{"list page by page", listPages},
	{"reset a key", resetKey},
	{"reset a prefix", resetPrefix},
	{"reset all, in several transactions", resetAll},
	{"resets are reported to the next decision", resetIsReported},
	{"a counter after a reset begins in a later millisecond", resetTakesTime},
	{"only expired rows are removed", onlyExpired},
	{"at most max rows are removed, the oldest first", expireMax},
	{"expiry loses no charge", chargedAndExpired},
	{"a counter whose charge postpones its expiry stays", renewedAndExpired},
}

// waitLimit bounds every wait. It is far above what anything takes, so what reaches it hangs.
const waitLimit = 30 * time.Second

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	t.Cleanup(cancel)
	return ctx
}

func id(key, name string) engine.CounterID { return engine.CounterID{Key: key, Name: name} }

func batch(ids ...engine.CounterID) engine.Batch { return engine.Batch{Counters: ids} }

// nothing is a decision that changes nothing.
func nothing(engine.Snapshot) engine.Changes { return engine.Changes{} }

// write sets the state of every counter of the batch.
func write(state string) func(engine.Snapshot) engine.Changes {
	return func(snap engine.Snapshot) (c engine.Changes) {
		for i := range snap.States {
			c.Counters = append(c.Counters, change(snap, i, state))
		}
		return c
	}
}

// change sets one state, with a spec if the counter is new.
func change(snap engine.Snapshot, slot int, state string) engine.CounterChange {
	c := engine.CounterChange{Slot: slot, State: []byte(state), ExpiresAt: 4_000_000_000_000}
	if snap.States[slot] == nil {
		c.Spec = []byte(`{"limit":1}`)
	}
	return c
}

func update(t testing.TB, s Store, b engine.Batch, decide func(engine.Snapshot) engine.Changes) {
	t.Helper()
	if err := s.Update(within(t), b, decide); err != nil {
		t.Fatalf("update: %v", err)
	}
}

// retry repeats an update until it has no conflict, as the engine does.
func retry(ctx context.Context, s Store, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	for {
		err := s.Update(ctx, b, decide)
		if !errors.Is(err, engine.ErrConflict) {
			return err
		}
	}
}

// states reads the states of counters; "-" for one that is not stored.
func states(t testing.TB, s Store, ids ...engine.CounterID) []string {
	t.Helper()
	var all []string
	update(t, s, batch(ids...), func(snap engine.Snapshot) engine.Changes {
		all = texts(snap)
		return engine.Changes{}
	})
	return all
}

// texts returns the states of a snapshot; "-" for a counter that is not stored.
func texts(snap engine.Snapshot) (all []string) {
	for _, state := range snap.States {
		if state == nil {
			all = append(all, "-")
		} else {
			all = append(all, string(state))
		}
	}
	return all
}

func equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// numbered returns n distinct ids in order.
func numbered(n int) []engine.CounterID {
	ids := make([]engine.CounterID, n)
	for i := range ids {
		ids[i] = id(fmt.Sprintf("k:%06d", i), "1m")
	}
	return ids
}

// concurrently runs f for every number below n at the same time, and reports the errors.
func concurrently(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- f(i) }()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
