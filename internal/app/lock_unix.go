//go:build unix

package app

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// lockFile locks a file and its folder until it is closed or the process ends, however it ends: a file that somebody takes for a
// leftover, and removes, would be another one to the next. Where folders cannot be locked, as on some network mounts, it is the file
// alone.
func lockFile(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errInUse(path)
		}
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	dir, err := os.Open(filepath.Dir(path))
	if err == nil {
		err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		_ = dir.Close()
		_ = f.Close()
		return nil, errInUse(path)
	}
	// For the message to the next one; the lock does not depend on it.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return locked{f, dir}, nil
}

// locked is a file and its folder, which is nil where it could not be opened.
type locked [2]*os.File

// Close unlocks first: a process that is just being started may hold the files until it runs its own program, and the
// locks would live as long.
func (l locked) Close() error {
	var all []error
	for _, f := range l {
		if f != nil {
			_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) // of one that was not locked
			all = append(all, f.Close())
		}
	}
	return errors.Join(all...)
}
