package bus

import (
	"sync"
	"time"
)

// logInterval is how often something that anybody can cause, any number of times a second, may have
// a line of the log. Without a bound others could fill the log.
const logInterval = 10 * time.Second

// maxThrottledTexts bounds the texts that are told apart.
const maxThrottledTexts = 16

// logThrottles has a [logThrottle] for each text, such as that of an error.
type logThrottles struct {
	mu     sync.Mutex
	byText map[string]*logThrottle
}

// due is [logThrottle.due] for this text.
func (t *logThrottles) due(text string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.byText[text]
	if known == nil {
		if t.byText == nil || len(t.byText) == maxThrottledTexts {
			t.byText = make(map[string]*logThrottle)
		}
		known = new(logThrottle)
		t.byText[text] = known
	}
	return known.due()
}

// logThrottle decides when a repeated event is logged.
type logThrottle struct {
	mu       sync.Mutex
	unlogged int64
	loggedAt time.Time
}

// due counts an event. It returns how many events the next line of the log is about, this one
// included, or 0 if it is too early for a line.
func (t *logThrottle) due() (n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unlogged++
	if now := time.Now(); now.Sub(t.loggedAt) >= logInterval {
		n, t.unlogged, t.loggedAt = t.unlogged, 0, now
	}
	return n
}

// heldLog logs an error at once if there was no line for [logInterval]. It counts the others, and logs the first of them when
// that interval ends. So every error is counted in the log soon, also if no further one comes.
type heldLog struct {
	// write logs an error that stands for n.
	write func(err error, n int64)

	mu       sync.Mutex
	loggedAt time.Time
	held     int64
	first    error       // of those held
	timer    *time.Timer // nil unless some are held
}

func (l *heldLog) add(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held++; l.held > 1 {
		return
	}
	l.first = err
	if wait := logInterval - time.Since(l.loggedAt); wait > 0 {
		l.timer = time.AfterFunc(wait, l.flush)
		return
	}
	l.log()
}

// flush logs what is held.
func (l *heldLog) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil { // another call came first
		return
	}
	l.timer.Stop()
	l.timer = nil
	l.log()
}

func (l *heldLog) log() {
	l.write(l.first, l.held)
	l.held, l.first, l.loggedAt = 0, nil, time.Now()
}
