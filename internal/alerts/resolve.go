package alerts

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// resolveBatch is how many alerts are resolved in one transaction.
	resolveBatch = 100
	// resolveLag is how far events may lag behind, untaken or unpublished, before no alert is resolved. Together with the
	// 10 s between two events of a counter it is less than minResolve, so an alert whose denials go on is not resolved.
	resolveLag = 15 * time.Second
)

// Resolve is a job. It resolves the alerts whose denials have stopped, and notifies the channels to which they were sent, if
// those are configured for it.
func (s *Service) Resolve(ctx context.Context) (note string, err error) {
	switch waits, err := s.waiting(ctx); {
	case err != nil:
		return "", err
	case waits != "":
		return "resolved 0: " + waits, nil
	}
	total := 0
	for {
		var names []string
		n, err := s.Store.ResolveAlerts(ctx, resolveBatch, func(a Alert) ([]Delivery, error) {
			names = append(names, a.Rule)
			return s.Rules().resolved(&a)
		})
		total += n
		note = fmt.Sprintf("resolved %d", total)
		if err != nil {
			return note, err
		}
		for _, rule := range names[len(names)-n:] { // the names before are of attempts that were rolled back
			s.Observer.AlertChanged("resolved", rule)
		}
		if n > 0 {
			s.Delivered()
		}
		if n < resolveBatch {
			return note, nil
		}
	}
}

// waiting says why events may come that are older than resolveLag; it is empty if none may.
func (s *Service) waiting(ctx context.Context) (string, error) {
	if s.CaughtUp != nil && time.Since(s.CaughtUp()) > resolveLag {
		return "events are waiting to be processed", nil
	}
	if s.Unpublished == nil {
		return "", nil
	}
	age, err := s.Unpublished(ctx)
	if err != nil || age <= resolveLag {
		return "", err
	}
	return "events are waiting to be published", nil
}

// resolved returns the deliveries for an alert that was resolved; none if it was never sent.
func (r *Rules) resolved(a *Alert) ([]Delivery, error) {
	if a.Notice != Sent {
		return nil, nil
	}
	m, err := resolvedMessage(a)
	if err != nil {
		return nil, err
	}
	return deliveries(m, r.wantResolved(r.channelsOf(a))), nil
}

// channelsOf returns the channels to which an alert is sent. They are those of its rule when it was raised. If the file no
// longer has one of them, the rule's current channels are added, so that renaming a channel loses no alert; the missing
// ones stay, because another process may still have them. If the file has none of them, they are the rule's current
// channels alone, or the built-in ones if the rule is gone too.
func (r *Rules) channelsOf(a *Alert) []string {
	missing := 0
	for _, name := range a.Channels {
		if r.channel(name) == nil {
			missing++
		}
	}
	rule, current := r.rule(a.Rule), []string{ChannelNATS, ChannelLog}
	if rule != nil {
		current = rule.Channels
	}
	switch {
	case missing == len(a.Channels):
		return current
	case missing == 0 || rule == nil:
		return a.Channels
	}
	added := slices.DeleteFunc(slices.Clone(current), func(name string) bool { return slices.Contains(a.Channels, name) })
	return slices.Concat(a.Channels, added)
}

// wantResolved selects the channels that are configured to be notified of resolved alerts.
func (r *Rules) wantResolved(channels []string) (want []string) {
	for _, name := range channels {
		if c := r.channel(name); c != nil && c.Resolved {
			want = append(want, name)
		}
	}
	return want
}
