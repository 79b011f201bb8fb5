package sqlite

import (
	"errors"
	"fmt"
	"testing"

	"github.com/seed503877ad/limits/internal/alerts"
)

// TestFullFileIsOwnFault: a file that cannot grow takes no events, although it answers a Take that has
// nothing to write. What is wrong with a value is not the file's fault.
func TestFullFileIsOwnFault(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	maxPages := func(n int) {
		t.Helper()
		s.writeLock <- struct{}{}
		defer func() { <-s.writeLock }()
		if _, err := s.conn.ExecContext(t.Context(), fmt.Sprintf(`PRAGMA max_page_count = %d`, n)); err != nil {
			t.Fatal(err)
		}
	}
	take := func(events ...string) error {
		return s.Take(t.Context(), alerts.TakeQuery{Events: events}, func(alerts.TakeState) (alerts.Changes, error) { return alerts.Changes{}, nil })
	}
	var many []string
	for n := range 1000 {
		many = append(many, fmt.Sprintf("an event with an id that needs some room, %d", n))
	}
	maxPages(1) // SQLite makes it as many as there are
	if err := take(many...); !s.OwnFault(err) {
		t.Errorf("%v, want that the file is full", err)
	}
	if err := take(); err != nil {
		t.Errorf("without events: %v", err)
	}
	maxPages(1 << 30)
	if err := take(many...); err != nil {
		t.Errorf("with room: %v", err)
	}
	_, err := s.change(t.Context(), "write", `INSERT INTO alert_events (id, taken_at) VALUES ('x', NULL)`)
	if err == nil || s.OwnFault(err) || s.OwnFault(errors.New("other")) || s.OwnFault(nil) {
		t.Errorf("a value that is not allowed: %v", err)
	}
}
