// Package outage logs failures that last: when they begin, why, and when they are over, instead of each try.
package outage

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// againAfter is how long the log waits to tell of another reason.
	againAfter = 10 * time.Second
	// calmFor is how long nothing may fail until it is over: what works and fails by turns is one outage.
	calmFor = 5 * time.Second
)

// Log is told of every try of something, or of each change. It may be told from many goroutines.
type Log struct {
	logger       *slog.Logger
	level        slog.Level
	begins, ends string

	mu     sync.Mutex
	reason string // of what lasts; empty for nothing
	at     time.Time
	// calmAt is since when nothing has failed; the zero time while the last try failed. waits says that a timer looks whether that
	// has been long enough.
	calmAt time.Time
	waits  bool
}

// New makes a log that says begins, of that level, when something fails, and ends when it has worked again for five seconds.
func New(logger *slog.Logger, level slog.Level, begins, ends string) *Log {
	return &Log{logger: logger, level: level, begins: begins, ends: ends}
}

// Tried takes how a try went, nil for well. args are as those of [slog.Logger.Log], beside the error.
func (l *Log) Tried(err error, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.calmDown()
		return
	}
	l.calmAt = time.Time{}
	now := time.Now()
	if err.Error() == l.reason || l.reason != "" && now.Sub(l.at) < againAfter {
		return
	}
	l.reason, l.at = err.Error(), now
	l.logger.Log(context.Background(), l.level, l.begins, append(args, "error", err)...)
}

// calmDown lets what lasts end, unless something fails before.
func (l *Log) calmDown() {
	if l.reason == "" || !l.calmAt.IsZero() {
		return
	}
	l.calmAt = time.Now()
	if !l.waits { // one timer is enough, however often it fails and works by turns
		l.waits = true
		time.AfterFunc(calmFor, l.end)
	}
}

// end ends what lasts when it has been calm for long enough, and else looks again when that can be.
func (l *Log) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waits = false
	if l.calmAt.IsZero() {
		return // the next that goes well waits anew
	}
	if left := calmFor - time.Since(l.calmAt); left > 0 {
		l.waits = true
		time.AfterFunc(left, l.end)
		return
	}
	l.reason, l.calmAt = "", time.Time{}
	l.logger.Info(l.ends)
}
