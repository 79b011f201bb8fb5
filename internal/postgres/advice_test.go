package postgres

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestAdviceForServerErrors uses errors of a real server.
func TestAdviceForServerErrors(t *testing.T) {
	t.Parallel()
	s := open(t, Config{LockTimeout: 10 * time.Millisecond})
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
