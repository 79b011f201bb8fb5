package sqlite

import (
	"bytes"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/engine"
)

// TestDamagedFileErrorSaysWhatToDo: SQLite's own message does not.
func TestDamagedFileErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.db")
	if err := os.WriteFile(path, bytes.Repeat([]byte("no database "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Config{Path: path})
	if err == nil {
		s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "restore a backup") || !strings.Contains(err.Error(), path) || !strings.Contains(s.Advice(err), "damaged") {
		t.Errorf("%v; want which file, and what to do", err)
	}
}

// TestUnreadableSchemaVersionErrorSaysWhatToDo: goose makes its table anew if it finds no first row in it, whatever the reason,
// and all that it says then is that there is one.
func TestUnreadableSchemaVersionErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.db")
	s := open(t, Config{Path: path})
	if _, err := s.conn.ExecContext(t.Context(), "DELETE FROM goose_db_version"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	synctest.Test(t, func(t *testing.T) { // goose tries it for 3 s
		_, err := Open(t.Context(), Config{Path: path})
		if err == nil || !strings.Contains(err.Error(), "restore a backup") || !strings.Contains(err.Error(), path) {
			t.Errorf("%v; want which file, and what to do", err)
		}
	})
}

// TestLockedFileErrorSaysWhatToDo: a tool that looks into it may have begun a
// transaction.
func TestLockedFileErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.db")
	s := open(t, Config{Path: path})
	tool, err := sql.Open("sqlite", dsn(path, "rw"))
	if err != nil {
		t.Fatal(err)
	}
	defer tool.Close()
	tool.SetMaxOpenConns(1)
	if _, err := tool.Exec(beginSQL); err != nil {
		t.Fatal(err)
	}
	_, err = s.Expire(t.Context(), 1)
	if err == nil || !strings.Contains(err.Error(), "stop it") {
		t.Errorf("%v; want what to do", err)
	}
}

// TestErrorOfSecondWriterSaysWhatToDo: another process that writes to the file takes the next number of the journal. What
// this one has in memory is wrong from then on.
func TestErrorOfSecondWriterSaysWhatToDo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.db")
	s, other := open(t, Config{Path: path}), open(t, Config{Path: path})
	update(t, other, one, set("1"))
	err := s.Update(t.Context(), one, set("2"))
	if err == nil || !strings.Contains(err.Error(), "another process") || !strings.Contains(err.Error(), "stop it") ||
		!strings.Contains(s.Advice(err), "another process") {
		t.Errorf("%v; advice %q; want what to do", err, s.Advice(err))
	}
}

// TestReadOnlyFileErrorSaysWhatToDo makes the connection read-only, since the superuser may
// write any file.
func TestReadOnlyFileErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	if _, err := s.conn.ExecContext(t.Context(), "PRAGMA query_only = 1"); err != nil {
		t.Fatal(err)
	}
	_, err := s.Expire(t.Context(), 1)
	if err == nil || !strings.Contains(err.Error(), "check the permissions of both") || !strings.Contains(s.Advice(err), "read-only") {
		t.Errorf("%v; want what to do", err)
	}
}

// TestDamagedReceiptIsAnError: with a part of its fingerprint, another request could be taken for
// the first one with its id.
func TestDamagedReceiptIsAnError(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	update(t, s, engine.Batch{}, func(engine.Snapshot) engine.Changes {
		return engine.Changes{Receipts: []engine.Receipt{{ID: "a", ExpiresAt: 1 << 45}}}
	})
	if _, err := s.conn.ExecContext(t.Context(), `UPDATE receipts SET fingerprint = x'00'`); err != nil {
		t.Fatal(err)
	}
	err := s.Update(t.Context(), engine.Batch{IDs: []string{"a"}}, func(engine.Snapshot) engine.Changes {
		t.Error("a decision was made over it")
		return engine.Changes{}
	})
	if err == nil || !strings.Contains(err.Error(), `receipt "a" has a fingerprint of 1 bytes`) {
		t.Error(err)
	}
}

// TestErrorOfADamagedRowSaysWhatToDo: no pending alert is sent until it is removed.
func TestErrorOfADamagedRowSaysWhatToDo(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	a := alerts.Alert{ID: "a", GroupID: alerts.GroupID{Rule: "r", Key: "k"}, Notice: alerts.Pending}
	err := s.Take(t.Context(), alerts.TakeQuery{Groups: []alerts.GroupID{a.GroupID}}, func(alerts.TakeState) (alerts.Changes, error) {
		return alerts.Changes{Raised: []alerts.Alert{a}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.conn.ExecContext(t.Context(), `UPDATE alerts SET body = '{"id":'`); err != nil {
		t.Fatal(err)
	}
	_, _, pending := s.PendingAlerts(t.Context(), 9, time.Minute)
	_, _, read := s.Alert(t.Context(), "a")
	for _, err := range []error{pending, read} {
		if err == nil || !strings.Contains(err.Error(), "docs/operations.md says under Damaged tables") || !strings.Contains(s.Advice(err), "damaged") {
			t.Errorf("%v; want what to do", err)
		}
	}
	for _, statement := range []string{`DELETE FROM alerts WHERE NOT json_valid(body)`, `DELETE FROM alert_deliveries WHERE NOT json_valid(message)`} { // docs/operations.md
		if _, err := s.conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.PendingAlerts(t.Context(), 9, time.Minute); err != nil {
		t.Error(err)
	}
}
