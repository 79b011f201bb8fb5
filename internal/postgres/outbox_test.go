package postgres

import (
	"context"
	"errors"
	"testing"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestRelayDies ends the session of a relay in the middle of its publish, as kill -9 of the worker does: its events
// are free at once.
func TestRelayDies(t *testing.T) {
	s := open(t, Config{})
	err := s.Update(t.Context(), engine.Batch{}, func(engine.Snapshot) engine.Changes {
		return engine.Changes{Events: []engine.Event{{ID: "1", Type: engine.EventWarning}}}
	})
	if err != nil {
		t.Fatal(err)
	}
	none := func(context.Context, []engine.Event) ([]string, error) {
		t.Error("an event that is being published was handed out")
		return nil, nil
	}
	_, err = s.Relay(t.Context(), 10, func(ctx context.Context, events []engine.Event) ([]string, error) {
		if _, err := s.Relay(ctx, 10, none); err != nil {
			t.Errorf("second relay: %v", err)
		}
		if _, err := connect(t, s).Exec(ctx, `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
			WHERE datname = current_database() AND state = 'idle in transaction'`); err != nil {
			t.Error(err)
		}
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

// TestRelayDoesNotStarve holds up the relays: decisions go on.
func TestRelayDoesNotStarve(t *testing.T) {
	s := open(t, Config{MaxConns: 1})
	for _, id := range []string{"1", "2"} {
		err := s.Update(t.Context(), batch("a"), func(snap engine.Snapshot) engine.Changes {
			c := set("0")(snap)
			c.Events = []engine.Event{{ID: id, Type: engine.EventWarning}}
			return c
		})
		if err != nil {
			t.Fatal(err)
		}
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
