package postgres

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/engine"
)

// TestAdviceAndOwnFaultsOfServerErrors uses errors of a real server. Only those that every value would have are the store's
// own.
func TestAdviceAndOwnFaultsOfServerErrors(t *testing.T) {
	t.Parallel()
	s := open(t, Config{lockTimeout: 10 * time.Millisecond})
	begin(t, s, `LOCK TABLE usage_counts`)
	for statement, want := range map[string]struct {
		advice string
		own    bool
	}{
		`DO $$ BEGIN RAISE 'could not extend file' USING ERRCODE = 'disk_full'; END $$`:      {"full", true},
		`DO $$ BEGIN RAISE 'could not read block' USING ERRCODE = 'io_error'; END $$`:        {"I/O errors", true},
		`DO $$ BEGIN RAISE 'invalid page in block' USING ERRCODE = 'data_corrupted'; END $$`: {"damaged", true},
		`DO $$ BEGIN SET TRANSACTION READ ONLY; CREATE TABLE t (); END $$`:                   {"read-only", true},
		`DO $$ BEGIN SET LOCAL ROLE pg_monitor; PERFORM FROM counters; END $$`:               {"deploy/roles.sql", true},
		`SELECT FROM usage_counts`:                          {"a lock", true},
		`SELECT FROM no_such_table`:                         {"", true},
		`SELECT no_such_function()`:                         {"", true},
		`SELECT 1/0`:                                        {"", false},
		`SELECT E'\000'`:                                    {"", false},
		`INSERT INTO alert_events VALUES ('x', NULL)`:       {"", false},
		`DO $$ BEGIN RAISE 'a trigger of somebody'; END $$`: {"", false},
		`SET statement_timeout = 1; SELECT pg_sleep(10)`:    {"", false},
		`SELECT repeat('x', 1 << 30)`:                       {"", false},
	} {
		_, err := connect(t, s).Exec(t.Context(), statement)
		err = notCommitted("decide", err)
		if got := s.Advice(err); !strings.Contains(got, want.advice) || (got == "") != (want.advice == "") {
			t.Errorf("the advice for %v is %q; want %q", err, got, want.advice)
		}
		if got := s.Locked(err); got != (want.advice == "a lock") {
			t.Errorf("%s: %v tells of a lock: %t", statement, err, got)
		}
		if got := s.OwnFault(err); sqlState(err) == "" || got != want.own {
			t.Errorf("%s: %v is the store's own fault: %t; want %t", statement, err, got, want.own)
		}
	}
	if got := s.Advice(errors.New("connection refused")); got != "" {
		t.Errorf("the advice for an unreachable server is %q", got)
	}
	away := open(t, Config{URL: "postgres://127.0.0.1:1/limits"})
	if err := away.Take(t.Context(), alerts.TakeQuery{}, nil); !s.OwnFault(err) {
		t.Errorf("a server that is not there is not the store's own fault: %v", err)
	}
}

// TestLostRacesAreConflicts, which the engine runs again at once.
func TestLostRacesAreConflicts(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{
		uniqueViolation: true, serializationFailure: true, deadlockDetected: true, lockNotAvailable: false, diskFull: false,
	} {
		if err := notCommitted("write", &pgconn.PgError{Code: code}); errors.Is(err, engine.ErrConflict) != want || sqlState(err) != code {
			t.Errorf("%s: %v; want a conflict: %t", code, err, want)
		}
	}
}

// TestErrorOfADamagedTableSaysWhatToDo: whatever reads the damaged place fails until it is mended.
func TestErrorOfADamagedTableSaysWhatToDo(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	raise(t, s, alerts.Alert{ID: "good"})
	raise(t, s, alerts.Alert{ID: "bad"})
	conn := connect(t, s)
	exec(t, conn, `UPDATE alerts SET body = '{"id":' || chr(127) WHERE id = 'bad'`)
	_, _, ofRow := s.PendingAlerts(t.Context(), 9, time.Minute)
	_, ofPage := s.exec(t.Context(), "read", `DO $$ BEGIN RAISE 'invalid page in block' USING ERRCODE = 'data_corrupted'; END $$`)
	for _, err := range []error{ofRow, ofPage} {
		if err == nil || !strings.Contains(err.Error(), "docs/operations.md says under Damaged tables") {
			t.Errorf("%v; want what to do", err)
		}
	}
	if !strings.Contains(s.Advice(ofRow), "damaged") {
		t.Errorf("callers hear %q", s.Advice(ofRow))
	}
	exec(t, conn, damagedRowsSQL)
	if all, _, err := s.PendingAlerts(t.Context(), 9, time.Minute); err != nil || len(all) != 1 || all[0].ID != "good" {
		t.Errorf("after what docs/operations.md says: %+v, %v", all, err)
	}
}

// damagedRowsSQL removes damaged rows as docs/operations.md says.
const damagedRowsSQL = `
CREATE FUNCTION pg_temp.is_json(t text) RETURNS bool LANGUAGE plpgsql AS
  $$ BEGIN PERFORM t::json; RETURN true; EXCEPTION WHEN data_exception THEN RETURN false; END $$;
DELETE FROM alerts WHERE NOT pg_temp.is_json(body);
DELETE FROM alert_deliveries WHERE NOT pg_temp.is_json(message)`
