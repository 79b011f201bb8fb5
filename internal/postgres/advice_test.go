package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/engine"
)

// TestAdviceForServerErrors uses errors of a real server.
func TestAdviceForServerErrors(t *testing.T) {
	t.Parallel()
	s := open(t, Config{lockTimeout: 10 * time.Millisecond})
	begin(t, s, `LOCK TABLE usage_counts`)
	for statement, want := range map[string]string{
		`DO $$ BEGIN RAISE 'could not extend file' USING ERRCODE = 'disk_full'; END $$`:      "full",
		`DO $$ BEGIN RAISE 'could not read block' USING ERRCODE = 'io_error'; END $$`:        "I/O errors",
		`DO $$ BEGIN RAISE 'invalid page in block' USING ERRCODE = 'data_corrupted'; END $$`: "damaged",
		`DO $$ BEGIN SET TRANSACTION READ ONLY; CREATE TABLE t (); END $$`:                   "read-only",
		`DO $$ BEGIN SET LOCAL ROLE pg_monitor; PERFORM FROM counters; END $$`:               "deploy/roles.sql",
		`SELECT FROM usage_counts`:  "a lock",
		`SELECT no_such_function()`: "",
	} {
		_, err := s.relay.Exec(t.Context(), statement)
		if got := s.Advice(notCommitted("decide", err)); err == nil || !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("the advice for %v is %q; want %q", err, got, want)
		}
	}
	if got := s.Advice(errors.New("connection refused")); got != "" {
		t.Errorf("the advice for an unreachable server is %q", got)
	}
}

// TestOwnFaultsAreNotOfWhatIsWritten: only errors that every value would have are the store's own.
func TestOwnFaultsAreNotOfWhatIsWritten(t *testing.T) {
	t.Parallel()
	s := open(t, Config{lockTimeout: 10 * time.Millisecond})
	begin(t, s, `LOCK TABLE usage_counts`)
	for statement, want := range map[string]bool{
		`DO $$ BEGIN RAISE 'could not extend file' USING ERRCODE = 'disk_full'; END $$`:      true,
		`DO $$ BEGIN RAISE 'could not read block' USING ERRCODE = 'io_error'; END $$`:        true,
		`DO $$ BEGIN RAISE 'invalid page in block' USING ERRCODE = 'data_corrupted'; END $$`: true,
		`DO $$ BEGIN SET TRANSACTION READ ONLY; CREATE TABLE t (); END $$`:                   true,
		`DO $$ BEGIN SET LOCAL ROLE pg_monitor; PERFORM FROM counters; END $$`:               true,
		`SELECT FROM usage_counts`:                          true,
		`SELECT FROM no_such_table`:                         true,
		`SELECT 1/0`:                                        false,
		`SELECT E'\000'`:                                    false,
		`INSERT INTO alert_events VALUES ('x', NULL)`:       false,
		`DO $$ BEGIN RAISE 'a trigger of somebody'; END $$`: false,
		`SET statement_timeout = 1; SELECT pg_sleep(10)`:    false,
		`SELECT repeat('x', 1 << 30)`:                       false,
	} {
		conn := connect(t, s)
		_, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
		if got := s.OwnFault(fmt.Errorf("take events: %w", err)); err == nil || got != want {
			t.Errorf("%s: %v is the store's own fault: %t; want %t", statement, err, got, want)
		}
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
	raise := func(id string) {
		t.Helper()
		a := alerts.Alert{ID: id, GroupID: alerts.GroupID{Rule: "r", Key: id}, Notice: alerts.Pending}
		err := s.Take(t.Context(), alerts.TakeQuery{Groups: []alerts.GroupID{a.GroupID}}, func(alerts.TakeState) (alerts.Changes, error) {
			return alerts.Changes{Raised: []alerts.Alert{a}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	raise("good")
	raise("bad")
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
