package bus

import (
	"sync"
	"time"
)

// sayEvery is how often what anybody may cause, any number of times a second, has a line of the log: it could be filled otherwise.
const sayEvery = 10 * time.Second

// textsMost bounds the texts that are told apart.
const textsMost = 16

// texts counts lines of the log that come again with the same text, such as an error.
type texts struct {
	mu  sync.Mutex
	all map[string]*seldom
}

// due is as that of [seldom], of this text.
func (t *texts) due(text string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.all[text]
	if known == nil {
		if t.all == nil || len(t.all) == textsMost {
			t.all = make(map[string]*seldom)
		}
		known = new(seldom)
		t.all[text] = known
	}
	return known.due()
}

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
