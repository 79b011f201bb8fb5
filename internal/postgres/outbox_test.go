package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestKilledRelayFreesItsEvents ends the session of a relay in the middle of its publish, as kill
// -9 of the worker does: its events are free at once.
func TestKilledRelayFreesItsEvents(t *testing.T) {
	s := open(t, Config{})
	update(t, s, engine.Batch{}, func(engine.Snapshot) engine.Changes {
		return engine.Changes{Events: []engine.Event{{ID: "1", Type: engine.EventWarning}}}
	})
	none := func(context.Context, []engine.Event) ([]string, error) {
		t.Error("an event that is being published was handed out")
		return nil, nil
	}
	_, err := s.Relay(t.Context(), 10, func(ctx context.Context, events []engine.Event) ([]string, error) {
		if _, err := s.Relay(ctx, 10, none); err != nil {
			t.Errorf("second relay: %v", err)
		}
		terminate(t, connect(t, s), "state = 'idle in transaction'")
		return []string{"1"}, nil
	})
	if err == nil {
		t.Error("the first relay did not notice")
	}
	var got int
	n, err := s.Relay(t.Context(), 10, func(_ context.Context, events []engine.Event) ([]string, error) {
		got = len(events)
		return []string{"1"}, nil
	})
	if n != 1 || got != 1 || err != nil {
		t.Errorf("third relay: %d of %d, %v", n, got, err)
	}
}

// TestBlockedRelaysDoNotBlockDecisions blocks the relays: decisions go on.
func TestBlockedRelaysDoNotBlockDecisions(t *testing.T) {
	s := open(t, Config{maxConns: 1})
	for _, id := range []string{"1", "2"} {
		update(t, s, batch("a"), func(snap engine.Snapshot) engine.Changes {
			c := set("0")(snap)
			c.Events = []engine.Event{{ID: id, Type: engine.EventWarning}}
			return c
		})
	}
	publishing, release := make(chan struct{}, 2), make(chan struct{})
	errs := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := s.Relay(t.Context(), 1, func(context.Context, []engine.Event) ([]string, error) {
				publishing <- struct{}{}
				<-release
				return nil, nil
			})
			errs <- err
		}()
	}
	<-publishing
	<-publishing
	if err := s.Update(t.Context(), batch("a"), set("1")); err != nil {
		t.Error(err)
	}
	if n, err := s.Backlog(t.Context()); n != 2 || err != nil {
		t.Errorf("backlog: %d, %v", n, err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	close(release)
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Error(err)
	}
}

// publish relays up to max events, all of which are acknowledged, and returns their ids.
func publish(t *testing.T, s *Store, max int) (ids []string) {
	t.Helper()
	_, err := s.Relay(t.Context(), max, func(_ context.Context, events []engine.Event) ([]string, error) {
		for _, e := range events {
			ids = append(ids, e.ID)
		}
		return ids, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// TestRelayDoesNotScanDeletedEvents, while another transaction, such as a backup, may see them.
func TestRelayDoesNotScanDeletedEvents(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	backup(t, s)
	const gone = 20000
	execute(t, s, fmt.Sprintf(`INSERT INTO outbox (id, type, data) SELECT i, 'limits.warning', '{}' FROM generate_series(1, %d) i`, gone+1))
	if n := len(publish(t, s, gone)); n != gone {
		t.Fatalf("%d events", n)
	}
	if got := publish(t, s, 10); len(got) != 1 {
		t.Fatalf("the last event: %q", got)
	}
	before := indexReads(t, s, "outbox_pkey")
	for range 20 {
		if got := publish(t, s, 10); got != nil {
			t.Fatalf("%q are there again", got)
		}
	}
	if n := indexReads(t, s, "outbox_pkey") - before; n > gone {
		t.Errorf("%d entries were read for no event", n)
	}
}

// TestEventsReleasedByOthersAreRelayed: the outbox starts with locked events as long as they are
// there.
func TestEventsReleasedByOthersAreRelayed(t *testing.T) {
	t.Parallel()
	a, b := twoStores(t)
	insert := `INSERT INTO outbox (id, type, data) SELECT i, 'limits.warning', '{}' FROM generate_series(%d, %d) i`
	execute(t, a, fmt.Sprintf(insert, 1, 9))
	_, err := a.Relay(t.Context(), 1, func(_ context.Context, first []engine.Event) ([]string, error) {
		for i, s := range []*Store{a, b, a, b} {
			if got, want := publish(t, s, 1), []string{fmt.Sprint(2 + i)}; !slices.Equal(got, want) {
				t.Errorf("relay %d has %q, want %q", i, got, want)
			}
		}
		return nil, nil // the stream acknowledges none
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range []*Store{b, a} {
		if got, want := publish(t, s, 2), [][]string{{"1", "6"}, {"7", "8"}}[i]; !slices.Equal(got, want) {
			t.Errorf("relayed %q, want %q", got, want)
		}
	}
}

// TestEventsWithReusedNumbersAreRelayed: a server that took over assigns numbers again
// that it never received.
func TestEventsWithReusedNumbersAreRelayed(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	insert := `INSERT INTO outbox (seq, id, type, data) OVERRIDING SYSTEM VALUE VALUES (%d, 'e%d', 'limits.warning', '{}')`
	execute(t, s, fmt.Sprintf(insert, 100, 100))
	publish(t, s, 10)
	execute(t, s, fmt.Sprintf(insert, 50, 50))
	s.outboxStart.rescannedAt = s.outboxStart.rescannedAt.Add(-rescanEvery)
	if got := publish(t, s, 10); !slices.Equal(got, []string{"e50"}) {
		t.Errorf("relayed %q", got)
	}
}

// TestMarksOfPublishedEventsAreRemoved, with the next events that the stream refuses.
func TestMarksOfPublishedEventsAreRemoved(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	insert := `INSERT INTO outbox (id, type, data) VALUES ('%s', 'limits.warning', '{}')`
	for _, id := range []string{"published", "stays"} {
		execute(t, s, fmt.Sprintf(insert, id))
		if err := s.RefuseEvents(t.Context(), []string{id}); err != nil {
			t.Fatal(err)
		}
		if id == "published" {
			publish(t, s, 1)
		}
	}
	var marks, waiting int
	scan(t, s.pool, `SELECT (SELECT count(*) FROM outbox_refused), (SELECT count(*) FROM outbox)`, &marks, &waiting)
	if marks != 1 || waiting != 1 {
		t.Errorf("%d marks of %d events", marks, waiting)
	}
}
