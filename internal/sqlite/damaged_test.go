package sqlite

import (
	"bytes"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	if err == nil || !strings.Contains(err.Error(), "restore a backup") || !strings.Contains(s.Advice(err), "damaged") {
		t.Errorf("%v; want what to do", err)
	}
}

// TestLockedFileErrorSaysWhatToDo: a tool that looks into it may have begun a
// transaction.
func TestLockedFileErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.db")
	s, err := Open(t.Context(), Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
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

// TestReadOnlyFileErrorSaysWhatToDo makes the connection read-only, since the superuser may
// write any file.
func TestReadOnlyFileErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Config{Path: filepath.Join(t.TempDir(), "limits.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.conn.ExecContext(t.Context(), "PRAGMA query_only = 1"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Expire(t.Context(), 1)
	if err == nil || !strings.Contains(err.Error(), "check the permissions of both") || !strings.Contains(s.Advice(err), "read-only") {
		t.Errorf("%v; want what to do", err)
	}
}
