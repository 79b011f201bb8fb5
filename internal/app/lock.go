package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

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
	lock, err := lockFile(filepath.Join(l.DataDir, "limits.lock"))
	if err != nil {
		return pathError("--data-dir", fmt.Errorf("lock the data folder %s: %w", l.DataDir, err))
	}
	l.onStop("data folder", func(context.Context) error { return lock.Close() })
	return nil
}

// errInUse is the error for a folder that another process has locked. It names the process if the lock file does.
func errInUse(lockPath string) error {
	text, _ := os.ReadFile(lockPath)
	owner := "another process"
	if pid := strings.TrimSpace(string(text)); pid != "" && runtime.GOOS != "windows" {
		owner += " (pid " + pid + ")"
	}
	return fmt.Errorf("%s is using it (lock %s); stop it, or choose another data folder, "+
		"or let the workers share a PostgreSQL database and a NATS server", owner, lockPath)
}
