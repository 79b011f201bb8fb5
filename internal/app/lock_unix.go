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

// lockFile locks a file, and a hidden one beside it, until they are closed or the process ends, however it ends. If
// somebody removes the first as a leftover, the next process would create and lock a new one; the hidden one still
// stops it.
func lockFile(path string) (io.Closer, error) {
	var l lockedFiles
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
	// The pid is for the error of the next process; the lock does not depend on it.
	if err := l[0].Truncate(0); err == nil {
		_, _ = l[0].WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return l, nil
}

type lockedFiles []*os.File

// Close unlocks before it closes: a child process between fork and exec still holds the files, and the locks would
// last until its exec.
func (l lockedFiles) Close() error {
	var all []error
	for _, f := range l {
		_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) // harmless for a file that another process has locked
		all = append(all, f.Close())
	}
	return errors.Join(all...)
}
