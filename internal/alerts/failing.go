package alerts

import (
	"context"
	"fmt"
	"time"
)

const (
	// failingAfter is how long the store must have failed before that counts as a failure.
	failingAfter = 5 * time.Second
	// failingFor is for how long a failure counts that is not seen again, as while the limiter does not answer. Two tries may
	// be 10 s and more apart.
	failingFor = time.Minute
)

// failure is why the store does not give pending alerts or take what was decided about them, since when, and when that was last
// seen.
type failure struct {
	err       error
	since, at time.Time
}

// noteStore notes for Failure whether the store failed. A pass without its pending alerts may work meanwhile, so that it works
// only one that polled tells; and not while an alert is undecided: it is claimed, and the poll did not find it.
func (s *Service) noteStore(ctx context.Context, polled bool, err error) {
	switch {
	case err != nil:
		now := time.Now()
		next := &failure{err: err, since: now, at: now}
		if last := s.failing.Load(); last != nil && now.Sub(last.at) < failingFor {
			next.since = last.since
		}
		s.failing.Store(next)
	case polled && s.failing.Load() != nil && !s.stillUndecided(ctx):
		s.failing.Store(nil)
	}
}

// Failure is why the store has kept alerts from being sent for some seconds, such as one that is damaged; nil while it works. A
// limiter that does not answer is none.
func (s *Service) Failure() error {
	if f := s.failing.Load(); f != nil && f.at.Sub(f.since) >= failingAfter && time.Since(f.at) < failingFor {
		return fmt.Errorf("send alerts: %w", f.err)
	}
	return nil
}
