package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

func event(id string) engine.Event {
	return engine.Event{ID: id, Type: engine.EventExceeded, Time: 1_700_000_000_000, Key: "k", Name: "1m", Limit: 1, Window: "1m"}
}

// emit writes events with the ids from and up to to, each in a transaction with a counter.
func emit(t *testing.T, s Store, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		update(t, s, batch(id("k", "1m")), func(snap engine.Snapshot) engine.Changes {
			c := add(snap)
			c.Events = []engine.Event{event(fmt.Sprint(i))}
			return c
		})
	}
}

func backlog(t *testing.T, s Store, want int64) {
	t.Helper()
	n, err := s.Backlog(within(t))
	if err != nil {
		t.Fatalf("backlog: %v", err)
	}
	equal(t, "backlog", n, want)
}

func outboxAge(t *testing.T, s Store) {
	const year = 365 * 24 * time.Hour // the event is of 2023
	emitAt := func(ahead time.Duration) func() {
		return func() {
			update(t, s, engine.Batch{}, func(snap engine.Snapshot) engine.Changes {
				e := event("1")
				e.Time = snap.Now + ahead.Milliseconds()
				return engine.Changes{Events: []engine.Event{e}}
			})
		}
	}
	for _, step := range []struct {
		what        string
		do          func()
		least, most time.Duration
	}{
		{"of nothing", func() {}, 0, 0},
		{"of an event of now", emitAt(0), 0, time.Minute},
		{"behind an older one that came later", func() { emit(t, s, 2, 2) }, 0, time.Minute},
		{"of the older one", func() { relayed(t, s, 1) }, year, 100 * year},
		{"of nothing again", func() { relayed(t, s, 1) }, 0, 0},
		{"of an event of a clock that was ahead", emitAt(time.Hour), 0, 0},
	} {
		step.do()
		if age, err := s.OutboxAge(within(t)); err != nil || age < step.least || age > step.most {
			t.Errorf("%s: %s, %v; want %s to %s", step.what, age, err, step.least, step.most)
		}
	}
}

func outboxAgeOfRefused(t *testing.T, s Store) {
	emit(t, s, 1, 3)
	old := func(want bool) {
		t.Helper()
		if age, err := s.OutboxAge(within(t)); err != nil || (age > time.Hour) != want {
			t.Errorf("%s, %v; want it old: %t", age, err, want)
		}
	}
	refuse := func(ids ...string) {
		t.Helper()
		if err := s.RefuseEvents(within(t), ids); err != nil {
			t.Fatal(err)
		}
	}
	old(true)
	refuse("1", "2", "9")
	refuse()
	old(true)
	refuse("2", "3")
	old(false)
	backlog(t, s, 3)
	relayed(t, s, 3) // they are still relayed
	backlog(t, s, 0)
}

// peek returns the first max events, and leaves them in the outbox.
func peek(t *testing.T, s Store, max int) (events []engine.Event) {
	t.Helper()
	if _, err := s.Relay(within(t), max, func(_ context.Context, all []engine.Event) ([]string, error) {
		events = all
		return nil, nil
	}); err != nil {
		t.Fatalf("relay: %v", err)
	}
	return events
}

// relayed publishes the first n events.
func relayed(t *testing.T, s Store, n int) {
	t.Helper()
	got, err := s.Relay(within(t), n, ack)
	if err != nil {
		t.Fatalf("relay: %v", err)
	}
	equal(t, "relayed", got, n)
}

func idsOf(events []engine.Event) (ids []string) {
	for _, e := range events {
		ids = append(ids, e.ID)
	}
	return ids
}

// ack acknowledges everything.
func ack(_ context.Context, events []engine.Event) ([]string, error) { return idsOf(events), nil }

func relayOrder(t *testing.T, s Store) {
	backlog(t, s, 0)
	n, err := s.Relay(within(t), 10, func(context.Context, []engine.Event) ([]string, error) {
		t.Error("published nothing")
		return nil, nil
	})
	if n != 0 || err != nil {
		t.Errorf("relay of nothing: %d, %v", n, err)
	}
	emit(t, s, 1, 5)
	update(t, s, engine.Batch{}, func(engine.Snapshot) engine.Changes { // and two in one transaction
		return engine.Changes{Events: []engine.Event{event("6"), event("7")}}
	})
	backlog(t, s, 7)
	var got [][]string
	for {
		n, err := s.Relay(within(t), 3, func(_ context.Context, events []engine.Event) ([]string, error) {
			got = append(got, idsOf(events))
			return idsOf(events), nil
		})
		if err != nil {
			t.Fatalf("relay: %v", err)
		}
		if n == 0 {
			break
		}
		equal(t, "removed", n, len(got[len(got)-1]))
	}
	equal(t, "events", got, [][]string{{"1", "2", "3"}, {"4", "5", "6"}, {"7"}})
	backlog(t, s, 0)
}

func relayPartial(t *testing.T, s Store) {
	emit(t, s, 1, 4)
	boom := errors.New("boom")
	n, err := s.Relay(within(t), 10, func(context.Context, []engine.Event) ([]string, error) {
		return []string{"4", "unheard of", "2"}, boom
	})
	if n != 2 || !errors.Is(err, boom) {
		t.Errorf("relay: %d, %v", n, err)
	}
	equal(t, "left", idsOf(peek(t, s, 10)), []string{"1", "3"})
	backlog(t, s, 2)
}

func relayFails(t *testing.T, s Store) {
	emit(t, s, 1, 3)
	boom := errors.New("boom")
	for range 20 { // more often than there are connections
		n, err := s.Relay(within(t), 10, func(context.Context, []engine.Event) ([]string, error) { return nil, boom })
		if n != 0 || !errors.Is(err, boom) {
			t.Fatalf("relay: %d, %v", n, err)
		}
	}
	backlog(t, s, 3)
	relayed(t, s, 3)
}

func relayPanics(t *testing.T, s Store) {
	emit(t, s, 1, 2)
	for range 20 {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			_, _ = s.Relay(within(t), 10, func(context.Context, []engine.Event) ([]string, error) { panic("boom") })
		}()
	}
	relayed(t, s, 2)
}

func relayCanceled(t *testing.T, s Store) {
	emit(t, s, 1, 2)
	ctx, cancel := context.WithCancel(t.Context())
	n, err := s.Relay(ctx, 10, func(ctx context.Context, events []engine.Event) ([]string, error) {
		cancel() // the worker stops after its last publish was acknowledged
		return []string{"1"}, ctx.Err()
	})
	if n != 1 || !errors.Is(err, context.Canceled) {
		t.Errorf("relay: %d, %v", n, err)
	}
	backlog(t, s, 1)
}

func relaysAtOnce(t *testing.T, s Store) {
	const total = 120
	emit(t, s, 1, total)
	var mu sync.Mutex
	out, times := make(map[string]bool), make(map[string]int)
	concurrently(t, 6, func(w int) error {
		for {
			left, err := s.Backlog(within(t))
			if err != nil || left == 0 {
				return err
			}
			_, err = s.Relay(within(t), 7, func(_ context.Context, events []engine.Event) ([]string, error) {
				mu.Lock()
				for _, e := range events {
					if out[e.ID] {
						t.Errorf("event %s is with two relays", e.ID)
					}
					out[e.ID] = true
					times[e.ID]++
				}
				mu.Unlock()
				n, err := s.Backlog(within(t)) // publishing takes a while
				_ = n
				mu.Lock()
				for _, e := range events {
					delete(out, e.ID)
				}
				mu.Unlock()
				return idsOf(events), err
			})
			if err != nil {
				return err
			}
		}
	})
	equal(t, "events", len(times), total)
	for id, n := range times {
		if n != 1 {
			t.Errorf("event %s was published %d times", id, n)
		}
	}
}

func eventFields(t *testing.T, s Store) {
	want := engine.Event{
		ID: "01J", Type: engine.EventWarning, Time: 1, Key: "k\"\\\x00ö😀", Name: "n", Policy: "p", Limit: 2, Window: "1m",
		Remaining: 3, Threshold: 4, ResetAt: 5, RetryAfter: 6, Denied: 7, User: "u",
	}
	update(t, s, engine.Batch{}, func(engine.Snapshot) engine.Changes {
		return engine.Changes{Events: []engine.Event{want}}
	})
	equal(t, "events", peek(t, s, 1), []engine.Event{want})
}

// eventOfInvalidText: text that is not UTF-8 holds up neither the decision nor the relay.
func eventOfInvalidText(t *testing.T, s Store) {
	update(t, s, engine.Batch{}, func(engine.Snapshot) engine.Changes {
		e := event("1")
		e.Key, e.User = "a\xffb", "\xc3"
		return engine.Changes{Events: []engine.Event{e}}
	})
	if _, err := s.OutboxAge(within(t)); err != nil {
		t.Error(err)
	}
	want := event("1")
	want.Key, want.User = "a\uFFFDb", "\uFFFD"
	equal(t, "events", peek(t, s, 1), []engine.Event{want})
}
