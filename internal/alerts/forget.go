package alerts

import (
	"context"
	"errors"
	"time"
)

const (
	// eventsKept is how long the ids of events are kept: longer than the stream keeps events, so that a redelivered event is
	// recognized.
	eventsKept = 8 * 24 * time.Hour
	// clocksDiffer is how much longer what depends on the clocks of others is kept.
	clocksDiffer = 6 * time.Hour
)

// Forget removes up to max ids of events that cannot come again at now, and up to max counts that no event can add to. While
// events wait, which count at their own time and may be published a second time, both are kept for longest.
func (s *Service) Forget(ctx context.Context, now time.Time, max int) (int, error) {
	ids, counts := now.Add(-eventsKept), now.Add(-eventsKept)
	waits, unknown := s.waiting(ctx)
	if unknown == nil && waits == "" {
		counts = now.Add(-s.Rules().longestWithin() - clocksDiffer)
		ids, unknown = s.noLongerInStream(ctx, ids)
	}
	n, err := s.Store.PruneTaken(ctx, ids, max)
	if err != nil || unknown != nil {
		return n, errors.Join(err, unknown)
	}
	groups, err := s.Store.PruneGroups(ctx, counts, max)
	return n + groups, err
}

// noLongerInStream returns the time before which events were taken that the stream has no more, if it is after a time at
// which it has them no more anyway. A stream that is full has them for minutes if many users are denied.
func (s *Service) noLongerInStream(ctx context.Context, anyway time.Time) (time.Time, error) {
	if s.OldestEvent == nil {
		return anyway, nil
	}
	oldest, err := s.OldestEvent(ctx)
	if err != nil || oldest.Add(-clocksDiffer).Before(anyway) {
		return anyway, err
	}
	return oldest.Add(-clocksDiffer), nil
}

// longestWithin is the longest time that a threshold counts.
func (r *Rules) longestWithin() (longest time.Duration) {
	for i := range r.Rules {
		longest = max(longest, r.Rules[i].Within)
	}
	return longest
}
