package postgres

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestOutdatedPreparedStatements has a column with a new type, or the statements
// deallocated: decisions do not fail, whether they have the turn already, take it, or are
// optimistic.
func TestOutdatedPreparedStatements(t *testing.T) {
	s := open(t, Config{maxConns: 2})
	conn := connect(t, s)
	retype := func(table, column, to string) {
		t.Helper()
		exec(t, conn, fmt.Sprintf(`ALTER TABLE %s ALTER COLUMN %s TYPE %s`, table, column, to))
	}
	forget := func() {
		t.Helper()
		for _, c := range s.pool.AcquireAllIdle(t.Context()) {
			if _, err := c.Exec(t.Context(), `DEALLOCATE ALL`, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Error(err)
			}
			c.Release()
		}
	}
	update := func(what string, b engine.Batch) {
		t.Helper()
		if err := s.Update(t.Context(), b, set("1")); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	update("the first", batch("a"))
	retype("counters", "spec", "varchar")
	update("a counter that has to be read", batch("b"))
	retype("receipts", "answer", "text USING ''")
	update("receipts that have to be read", engine.Batch{Counters: batch("b").Counters, IDs: []string{"x"}})
	retype("counters", "spec", "text")
	if err := s.Update(t.Context(), engine.Batch{Counters: batch("c").Counters, Turn: awaitTurn(t, s)}, set("1")); !outdated(err) {
		t.Errorf("in a turn that is lost: %v", err)
	}
	update("behind it", batch("c"))
	forget()
	update("over what is remembered", batch("a"))
	forget()
	update("in turn", batch("d"))
}
