package sqlite

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestADamagedFileSaysWhatToDo: SQLite's own words name no way out.
func TestADamagedFileSaysWhatToDo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.db")
	if err := os.WriteFile(path, bytes.Repeat([]byte("no database "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Config{Path: path})
	if err == nil {
		s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "restore a backup") || !strings.Contains(s.Ails(err), "damaged") {
		t.Errorf("%v; want what to do", err)
	}
}
