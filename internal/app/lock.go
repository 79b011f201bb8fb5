package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// lockData takes the data folder, before anything in it is read or written: the SQLite file and the streams of an embedded
// NATS server belong to one process. Where both are elsewhere nothing is kept in the folder, and it is not taken.
func (l *limiter) lockData(context.Context) error {
	if l.DatabaseURL != "" && l.NATSURL != "" {
		return nil
	}
	if err := os.MkdirAll(l.DataDir, 0o700); err != nil {
		return wrongPath("--data-dir", fmt.Errorf("make the data folder: %w", err))
	}
	lock, err := lockFile(filepath.Join(l.DataDir, "limits.lock"))
	if err != nil {
		return wrongPath("--data-dir", fmt.Errorf("take the data folder %s: %w", l.DataDir, err))
	}
	l.onStop("data folder", func(context.Context) error { return lock.Close() })
	return nil
}

// errInUse is the error for a folder that another process has taken, as far as it can be told who.
func errInUse(lockPath string) error {
	text, _ := os.ReadFile(lockPath)
	who := "another process"
	if pid := strings.TrimSpace(string(text)); pid != "" && runtime.GOOS != "windows" {
		who += " (pid " + pid + ")"
	}
	return fmt.Errorf("%s is using it (lock %s); stop that one, or choose another data folder, "+
		"or share a PostgreSQL database and a NATS server among workers", who, lockPath)
}
