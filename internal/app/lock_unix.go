//go:build unix

package app

import (
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"
)

// lockFile locks a file until it is closed or the process ends, however it ends.
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
	// For the message to the next one; the lock does not depend on it.
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return locked{f}, nil
}

type locked struct{ *os.File }

// Close unlocks first: a process that is just being started may hold the file until it runs its own program, and the
// lock would live as long.
func (l locked) Close() error {
	return errors.Join(syscall.Flock(int(l.Fd()), syscall.LOCK_UN), l.File.Close())
}
