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
	// resolveLag is how old the newest event may be that was taken, and one that is not published; together with the 10 s between two events of a counter
	// it is less than the least time after which an alert resolves.
	resolveLag = 15 * time.Second
)

// Resolve resolves the alerts whose denials have stopped, and tells the channels that were told they were raised, where
// they want to know. It is a job.
func (s *Service) Resolve(ctx context.Context) (note string, err error) {
	if s.CaughtUp != nil && time.Since(s.CaughtUp()) > resolveLag {
		return "resolved 0: events wait to be taken", nil
	}
	if s.Unpublished != nil {
		age, err := s.Unpublished(ctx)
		switch {
		case err != nil:
			return "", err
		case age > resolveLag:
			return "resolved 0: events wait to be published", nil
		}
	}
	total := 0
	for {
		var names []string
		n, err := s.Store.ResolveAlerts(ctx, resolveBatch, func(a Alert) ([]Delivery, error) {
			names = append(names, a.Rule)
			return s.resolved(&a)
		})
		total += n
		note = fmt.Sprintf("resolved %d", total)
		if err != nil {
			return note, err
		}
		for _, rule := range names[len(names)-n:] { // those of a try before were rolled back
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

// resolved gives the deliveries of an alert that was resolved; none where nobody was told that it was raised.
func (s *Service) resolved(a *Alert) ([]Delivery, error) {
	if a.Notice != Sent {
		return nil, nil
	}
	m, err := resolvedMessage(a)
	if err != nil {
		return nil, err
	}
	rules := s.Rules()
	return deliveries(m, rules.wantResolved(rules.reached(a))), nil
}

// reached gives the channels that are told of an alert: its own, and where the file lacks one of them also those that its rule has now:
// who renames a channel misses nothing. What lacks here another process may have, unless none is left; then it is those of the rule
// alone, or the built-in ones.
func (r *Rules) reached(a *Alert) []string {
	lacking := 0
	for _, name := range a.Channels {
		if r.channel(name) == nil {
			lacking++
		}
	}
	rule, now := r.find(a.Rule), []string{ChannelNATS, ChannelLog}
	if rule != nil {
		now = rule.Channels
	}
	switch {
	case lacking == len(a.Channels):
		return now
	case lacking == 0 || rule == nil:
		return a.Channels
	}
	others := slices.DeleteFunc(slices.Clone(now), func(name string) bool { return slices.Contains(a.Channels, name) })
	return slices.Concat(a.Channels, others)
}

// wantResolved selects the channels that want to know.
func (r *Rules) wantResolved(channels []string) (want []string) {
	for _, name := range channels {
		for i := range r.Channels {
			if r.Channels[i].Name == name && r.Channels[i].Resolved {
				want = append(want, name)
			}
		}
	}
	return want
}
