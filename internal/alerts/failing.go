package alerts

import (
	"fmt"
	"time"
)

const (
	// failingAfter is how long the store must have failed before that counts as a failure.
	failingAfter = 5 * time.Second
	// failingFor is for how long a failure counts that is not seen again. Passes without the store's pending alerts may work
	// meanwhile.
	failingFor = 3 * failingAfter
)

// failure is why the store does not give pending alerts or take what was decided about them, since when, and when that was last
// seen.
type failure struct {
	err       error
	since, at time.Time
}

// noteFailure notes that the store failed, for Failure; nothing if err is nil.
func (s *Service) noteFailure(err error) {
	if err == nil {
		return
	}
	now := time.Now()
	next := &failure{err: err, since: now, at: now}
	if last := s.failing.Load(); last != nil && now.Sub(last.at) < failingFor {
		next.since = last.since
	}
	s.failing.Store(next)
}

// Failure is why the store has kept alerts from being sent for some seconds, such as one that is damaged; nil while it works. A
// limiter that does not answer is none.
func (s *Service) Failure() error {
	if f := s.failing.Load(); f != nil && f.at.Sub(f.since) >= failingAfter && time.Since(f.at) < failingFor {
		return fmt.Errorf("send alerts: %w", f.err)
	}
	return nil
}
