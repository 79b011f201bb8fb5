package bus

import (
	"sync"
	"time"
)

// sayEvery is how often what anybody may cause, any number of times a second, has a line of the log: it could be filled otherwise.
const logInterval = 10 * time.Second

// textsMost bounds the texts that are told apart.
const maxThrottledTexts = 16

// texts counts lines of the log that come again with the same text, such as an error.
type logThrottles struct {
	mu     sync.Mutex
	byText map[string]*logThrottle
}

// due is as that of [seldom], of this text.
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

// seldom counts what is told of at times.
type logThrottle struct {
	mu       sync.Mutex
	unlogged int64
	loggedAt time.Time
}

// due counts one more, and gives how many no line has told of, or 0 while it is too early for the next line.
func (s *logThrottle) due() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlogged++
	if now := time.Now(); now.Sub(s.loggedAt) >= logInterval {
		n, s.unlogged, s.loggedAt = s.unlogged, 0, now
	}
	return n
}
