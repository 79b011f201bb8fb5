package bus

import (
	"sync"
	"time"
)

// sayEvery is how often what anybody may cause, any number of times a second, has a line of the log: it could be filled otherwise.
const sayEvery = 10 * time.Second

// seldom counts what is told of at times.
type seldom struct {
	mu     sync.Mutex
	unsaid int64
	saidAt time.Time
}

// due counts one more, and gives how many no line has told of, or 0 while it is too early for the next line.
func (s *seldom) due() (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsaid++
	if now := time.Now(); now.Sub(s.saidAt) >= sayEvery {
		n, s.unsaid, s.saidAt = s.unsaid, 0, now
	}
	return n
}
