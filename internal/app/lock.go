package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// lockName is the lock file of a data folder.
const lockName = "limits.lock"

// lockDataDir locks the data folder before anything in it is read or written: the SQLite file and the streams of an
// embedded NATS server belong to one process. With PostgreSQL and a NATS cluster nothing is kept in the folder, and it is
// not locked.
func (l *limiter) lockDataDir(context.Context) error {
	if l.DatabaseURL != "" && l.NATSURL != "" {
		return nil
	}
	if err := os.MkdirAll(l.DataDir, 0o700); err != nil {
		return pathError("--data-dir", fmt.Errorf("create the data folder: %w", err))
	}
	if err := l.lock("data folder", l.DataDir, filepath.Join(l.DataDir, lockName)); err != nil || l.DatabaseURL != "" {
		return err
	}
	return l.lockLinkedDatabase()
}

func (l *limiter) lock(what, path, lockPath string) error {
	lock, err := lockFile(lockPath)
	if err != nil {
		return pathError("--data-dir", fmt.Errorf("lock the %s %s: %w", what, path, err))
	}
	l.onStop(what, func(context.Context) error { return lock.Close() })
	return nil
}

// lockLinkedDatabase locks the SQLite file itself if it is not in the data folder under its name: symbolic links of
// several folders may lead to it. The lock is a file beside it, because on some systems flock on the file would keep
// SQLite out. If it could be the file of another data folder, the lock is that folder's.
func (l *limiter) lockLinkedDatabase() error {
	var dir string
	path, err := linkTarget(l.databasePath())
	if err == nil {
		dir, err = filepath.EvalSymlinks(l.DataDir)
	}
	if err != nil {
		return pathError("--data-dir", fmt.Errorf("find the database file of the data folder %s: %w", l.DataDir, err))
	}
	lockPath := path + ".lock"
	switch {
	case path == filepath.Join(dir, databaseName):
		return nil
	case filepath.Base(path) == databaseName:
		lockPath = filepath.Join(filepath.Dir(path), lockName)
	}
	return l.lock("database file", path, lockPath)
}

// linkTarget follows symbolic links, also to a file that is yet to be created.
func linkTarget(path string) (string, error) {
	target, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return target, err
	}
	dir, name := filepath.Split(path) // Dir would take dir/link/.. for dir, as Join below
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	path = filepath.Join(dir, name)
	target, err = os.Readlink(path)
	if err != nil { // it is no link
		return path, nil
	}
	if !filepath.IsAbs(target) {
		target = dir + string(filepath.Separator) + target
	}
	return linkTarget(target)
}

// errInUse is the error for a folder or a database file that another process has locked. It names the process if the lock
// file does.
func errInUse(lockPath string) error {
	text, _ := os.ReadFile(lockPath)
	owner := "another process"
	if pid := strings.TrimSpace(string(text)); pid != "" && runtime.GOOS != "windows" {
		owner += " (pid " + pid + ")"
	}
	return fmt.Errorf("%s is using it (lock %s); stop it, or choose another data folder, "+
		"or let the workers share a PostgreSQL database and a NATS server", owner, lockPath)
}
