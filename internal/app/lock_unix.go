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

// lockFile locks a file until it is closed or the process ends, however it ends, and a hidden one beside it: a file that somebody takes for
// a leftover, and removes, would be another one to the next.
func lockFile(path string) (io.Closer, error) {
	var l locked
	for _, name := range []string{path, filepath.Join(filepath.Dir(path), "."+filepath.Base(path))} {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err == nil {
			l = append(l, f)
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		}
		if err != nil {
			_ = l.Close()
			if errors.Is(err, syscall.EWOULDBLOCK) {
				return nil, errInUse(path)
			}
			return nil, &os.PathError{Op: "lock", Path: name, Err: err}
		}
	}
	// For the message to the next one; the lock does not depend on it.
	if err := l[0].Truncate(0); err == nil {
		_, _ = l[0].WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return l, nil
}

// locked are files.
type locked []*os.File

// Close unlocks first: a process that is just being started may hold the files until it runs its own program, and the
// locks would live as long.
func (l locked) Close() error {
	var all []error
	for _, f := range l {
		_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) // which may be of one that somebody else has
		all = append(all, f.Close())
	}
	return errors.Join(all...)
}
