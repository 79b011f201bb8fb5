//go:build unix

package sqlite

import (
	"path/filepath"
	"syscall"
	"testing"
)

// A process that is being started has what its parent has open, until it runs its own program.
func TestAFileIsFreeOnceItIsClosedThoughAChildHasItOpen(t *testing.T) {
	t.Parallel()
	cfg := Config{Path: filepath.Join(t.TempDir(), "limits.db")}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	child, err := syscall.Dup(int(s.lock.(locked).Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(child)
	s.Close()
	if s, err = Open(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	s.Close()
}
