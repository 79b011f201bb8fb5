package alerts

import (
	"context"
	"time"
)

const (
	// eventsKept is how long the ids of events are kept: longer than the stream keeps events, so that a redelivered event is
	// recognized.
	eventsKept = 8 * 24 * time.Hour
	// groupsKept is how much longer than any threshold counts a count of denials is kept, because clocks differ.
	groupsKept = 6 * time.Hour
)

// Forget removes up to max ids of events that cannot come again at now, and up to max counts that no event can add to. While
// events wait, which count at their own time, counts are kept for as long as ids.
func (s *Service) Forget(ctx context.Context, now time.Time, max int) (int, error) {
	old := now.Add(-eventsKept)
	ids, err := s.Store.PruneTaken(ctx, old, max)
	if err != nil {
		return ids, err
	}
	waits, err := s.waiting(ctx)
	if err != nil {
		return ids, err
	}
	if waits == "" {
		old = now.Add(-s.Rules().longestWithin() - groupsKept)
	}
	groups, err := s.Store.PruneGroups(ctx, old, max)
	return ids + groups, err
}

// longestWithin is the longest time that a threshold counts.
func (r *Rules) longestWithin() (longest time.Duration) {
	for i := range r.Rules {
		longest = max(longest, r.Rules[i].Within)
	}
	return longest
}
