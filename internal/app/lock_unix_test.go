//go:build unix

package app

import (
	"path/filepath"
	"syscall"
	"testing"
)

// A process that is being started has what its parent has open, until it runs its own program.
func TestALockIsFreeOnceItIsClosedThoughAChildHasItOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	child, err := syscall.Dup(int(lock.(locked).Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(child)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if lock, err = lockFile(path); err != nil {
		t.Fatal(err)
	}
	_ = lock.Close()
}
