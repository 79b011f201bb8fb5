package postgres

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestNobodyWaitsForTheDiskBehindAnExpiry: what expired may come back with a crash, so decisions, which wait for the same turn, need not wait
// until that is on the disk. All else is.
func TestNobodyWaitsForTheDiskBehindAnExpiry(t *testing.T) {
	t.Parallel()
	s, resting := pair(t)
	tune(s, s.fold)
	resting.Rest(t.Context(), true)
	conn := connect(t, s)
	for _, sql := range []string{
		`CREATE TABLE seen (setting text)`,
		`CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN INSERT INTO seen VALUES (TG_TABLE_NAME || ' ' || current_setting('synchronous_commit')); RETURN NULL; END $$`,
		`CREATE TRIGGER see AFTER DELETE ON counters EXECUTE FUNCTION see()`,
		`CREATE TRIGGER see AFTER DELETE ON receipts EXECUTE FUNCTION see()`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Update(t.Context(), batch("x"), setUntil("1", 1<<45)); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*Store{"decides": s, "rests": resting} {
		if _, err := conn.Exec(t.Context(), `TRUNCATE seen`); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), `INSERT INTO counters (key, name, spec, state, expires_at) VALUES ('old', '1m', '{}', '', 1)`); err != nil {
			t.Fatal(err)
		}
		if n, err := s.Expire(t.Context(), 1); n != 1 || err != nil {
			t.Errorf("who %s removed %d, %v", name, n, err)
		}
		rows, err := conn.Query(t.Context(), `SELECT setting FROM seen ORDER BY setting`)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || !slices.Equal(got, []string{"counters off", "receipts off"}) {
			t.Errorf("who %s removed with %q, %v", name, got, err)
		}
		var after string
		if err := s.relay.QueryRow(t.Context(), `SHOW synchronous_commit`).Scan(&after); err != nil || after != "on" {
			t.Errorf("who %s goes on with %s, %v", name, after, err)
		}
	}
}
