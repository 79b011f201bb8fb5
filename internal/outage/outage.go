// Package outage logs lasting failures: when they begin, why, and when they are over, rather than
// each attempt.
package outage

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// newReasonAfter is how long after a line of the log another reason is not logged.
	newReasonAfter = 10 * time.Second
	// calmFor is how long nothing may fail before an outage counts as over: what works and fails by
	// turns is one outage.
	calmFor = 5 * time.Second
)

// Log takes the outcome of every attempt at something. Its methods may be called from several
// goroutines.
type Log struct {
	logger       *slog.Logger
	level        slog.Level
	begins, ends string

	mu       sync.Mutex
	reason   string // why it fails, as last logged; empty if it works
	loggedAt time.Time
	// failure is the last error of the outage, since and failedAt are when it began and last failed.
	failure         error
	since, failedAt time.Time
	// calmAt is when attempts began to succeed again; zero if the last one failed. timerRuns says
	// that a timer will check whether they have done so for long enough.
	calmAt    time.Time
	timerRuns bool
}

// New makes a log that logs begins at that level when something fails, and ends when it has worked
// again for 5 s.
func New(logger *slog.Logger, level slog.Level, begins, ends string) *Log {
	return &Log{logger: logger, level: level, begins: begins, ends: ends}
}

// Tried takes the outcome of an attempt, nil if it succeeded. args go to [slog.Logger.Log], besides
// the error.
func (l *Log) Tried(err error, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.recovered()
		return
	}
	l.calmAt = time.Time{}
	now := time.Now()
	if l.failure, l.failedAt = err, now; l.reason == "" {
		l.since = now
	}
	if err.Error() == l.reason || l.reason != "" && now.Sub(l.loggedAt) < newReasonAfter {
		return
	}
	l.reason, l.loggedAt = err.Error(), now
	l.logger.Log(context.Background(), l.level, l.begins, append(args, "error", err)...)
}

// Failure is why attempts have failed, all or some, for 5 s at least; nil if there is no such outage.
func (l *Log) Failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reason == "" || l.failedAt.Sub(l.since) < calmFor {
		return nil
	}
	return l.failure
}

// recovered lets the outage end, unless something fails before calmFor is over.
func (l *Log) recovered() {
	if l.reason == "" || !l.calmAt.IsZero() {
		return
	}
	l.calmAt = time.Now()
	if !l.timerRuns { // one timer is enough, however often it fails and works in turn
		l.timerRuns = true
		time.AfterFunc(calmFor, l.end)
	}
}

// end ends the outage if it has been calm for long enough, and otherwise looks again when that may
// be so.
func (l *Log) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timerRuns = false
	if l.calmAt.IsZero() {
		return // the next success starts the timer again
	}
	if left := calmFor - time.Since(l.calmAt); left > 0 {
		l.timerRuns = true
		time.AfterFunc(left, l.end)
		return
	}
	l.reason = ""
	l.logger.Info(l.ends)
}
