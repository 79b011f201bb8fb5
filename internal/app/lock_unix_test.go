//go:build unix

package app

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A child process has its parent's files open until its exec.
func TestCloseUnlocksWhileAChildHasTheFileOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range lock.(lockedFiles) {
		child, err := syscall.Dup(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(child)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if lock, err = lockFile(path); err != nil {
		t.Fatal(err)
	}
	_ = lock.Close()
}

// TestLockSurvivesRemovalOfItsFile: somebody may remove the file as a leftover.
func TestLockSurvivesRemovalOfItsFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if second, err := lockFile(path); err == nil || !strings.Contains(err.Error(), "is using it") {
			t.Fatalf("locked twice: %v, %v", second, err)
		}
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if lock, err = lockFile(path); err != nil {
		t.Fatal(err)
	}
	_ = lock.Close()
}
