// Package outage logs failures that last: when they begin, why, and when they are over, instead of each try.
package outage

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// againAfter is how long the log waits to tell of another reason.
const againAfter = 10 * time.Second

// Log is told of every try of something. It may be told from many goroutines.
type Log struct {
	logger       *slog.Logger
	level        slog.Level
	begins, ends string

	mu     sync.Mutex
	reason string // of what lasts; empty for nothing
	at     time.Time
}

// New makes a log that says begins, of that level, when something fails, and ends when it works again.
func New(logger *slog.Logger, level slog.Level, begins, ends string) *Log {
	return &Log{logger: logger, level: level, begins: begins, ends: ends}
}

// Tried takes how a try went, nil for well. args are as those of [slog.Logger.Log], beside the error.
func (l *Log) Tried(err error, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil && l.reason != "":
		l.reason = ""
		l.logger.Info(l.ends)
	case err == nil || err.Error() == l.reason || l.reason != "" && now.Sub(l.at) < againAfter:
	default:
		l.reason, l.at = err.Error(), now
		l.logger.Log(context.Background(), l.level, l.begins, append(args, "error", err)...)
	}
}
