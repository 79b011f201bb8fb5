package alerts

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cenkalti/backoff/v5"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/outage"
)

const (
	// pendingBatch is the default of Config.Batch; pendingParallel of a batch are handled at the same time.
	pendingBatch    = 256
	pendingParallel = 64
	// pendingLease is how long this process alone handles the pending alerts that it claimed. If it dies, another process
	// gets them after that. If it takes longer, two may handle an alert, which is harmless: the event's id is charged once.
	pendingLease = 10 * time.Second
	// pendingPoll is how often the store is asked without a Wake, to find alerts of a process that died.
	pendingPoll = time.Second
	// stopTimeout is how long a stop goes on with claimed alerts.
	stopTimeout = 3 * time.Second
)

// Run notifies channels of pending alerts until ctx ends. Then it handles the alerts that this process has claimed, for
// stopTimeout at most: no other process could until the claim ends. Failures are retried for ever.
func (s *Service) Run(ctx context.Context, log *slog.Logger) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	context.AfterFunc(ctx, func() { time.AfterFunc(stopTimeout, cancel) })
	s.notifyLoop(ctx, work, log)
	for n, err := 1, error(nil); n > 0 && err == nil && s.handover.any(); {
		n, err = s.notify(work)
	}
}

// notifyLoop handles pending alerts until ctx ends. work outlives ctx, so that the current batch is finished.
func (s *Service) notifyLoop(ctx, work context.Context, log *slog.Logger) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 5*time.Second
	outage := outage.New(log, slog.LevelError, "alerts cannot be sent, will retry", "alerts are being sent again")
	for ctx.Err() == nil {
		n, err := s.notify(work)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			outage.Tried(err)
			idle(ctx, wait.NextBackOff(), nil)
		default:
			if n > 0 || !s.stillUndecided(work) {
				outage.Tried(nil)
			}
			wait.Reset()
			if n < s.Batch {
				idle(ctx, pendingPoll, s.wake)
			}
		}
	}
}

// idle waits for d, or until wake or the end of ctx.
func idle(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-t.C:
	}
}

// stillUndecided reports whether an alert whose notice could not be decided is still pending. While it is claimed the store
// does not return it, so an empty pass does not mean that the failure is over.
func (s *Service) stillUndecided(ctx context.Context) bool {
	if s.undecided == "" {
		return false
	}
	if a, found, err := s.Store.Alert(ctx, s.undecided); err == nil && (!found || a.Notice != Pending) {
		s.undecided = "" // another process has decided
	}
	return s.undecided != ""
}

// notify decides the notices of a batch of pending alerts, and stores them with the deliveries. It returns the size of the
// batch. An alert for which the limiter did not answer stays pending until its claim ends; the others are stored.
func (s *Service) notify(ctx context.Context) (int, error) {
	pending, now, polled, err := s.pending(ctx)
	if len(pending) > 0 && s.undecided == "" {
		s.undecided = pending[0].ID
	}
	if err != nil || len(pending) == 0 {
		s.noteStore(ctx, polled, err)
		return 0, err
	}
	silences, err := s.Store.Silences(ctx, false, 2*limits.MaxSilences) // concurrent requests may exceed the bound
	if err != nil {
		s.noteStore(ctx, polled, err)
		return 0, err
	}
	decided, failed := s.decideAll(ctx, pending, now, silences)
	if len(decided) == 0 {
		return 0, failed
	}
	changed, err := s.Store.SaveNotices(ctx, decided)
	if err == nil {
		s.noteDecided(pending, decided)
	}
	s.noteStore(ctx, polled, err)
	if err != nil {
		return 0, errors.Join(failed, err)
	}
	s.reportNotices(pending, decided, changed)
	return len(pending), failed
}

// pending returns the alerts that Take handed over, and from time to time, when it polls, also pending alerts of the store.
// now is the store's clock.
func (s *Service) pending(ctx context.Context) (all []Alert, now int64, polled bool, err error) {
	all, polled = s.handover.take(s.Batch)
	if !polled {
		return all, all[len(all)-1].RaisedAt, false, nil // the store's clock a moment ago
	}
	found, now, err := s.Store.PendingAlerts(ctx, s.Batch, pendingLease)
	return append(all, found...), now, true, err
}

// decideAll decides the notices of pending alerts. It returns those that it could decide, in order, and the first error.
func (s *Service) decideAll(ctx context.Context, pending []Alert, now int64, silences []Silence) ([]NoticeDecision, error) {
	results := make([]*NoticeDecision, len(pending))
	var group errgroup.Group
	group.SetLimit(pendingParallel)
	for i := range pending {
		group.Go(func() error {
			notice, err := s.decideNotice(ctx, &pending[i], now, silences)
			if err == nil {
				results[i] = &notice
			}
			return err
		})
	}
	err := group.Wait()
	var decided []NoticeDecision
	for _, r := range results {
		if r != nil {
			decided = append(decided, *r)
		}
	}
	return decided, err
}

// noteDecided sets undecided after a pass. One of an earlier pass that this one did not have stays undecided.
func (s *Service) noteDecided(pending []Alert, decided []NoticeDecision) {
	for i := range pending { // decided is in the same order
		if i >= len(decided) || decided[i].Alert != pending[i].ID {
			s.undecided = pending[i].ID
			return
		}
	}
	if slices.ContainsFunc(pending, func(a Alert) bool { return a.ID == s.undecided }) {
		s.undecided = ""
	}
}

// decideNotice decides whether one alert is sent, held or silenced. The throttle comes last, so that an alert that is not
// sent is not charged.
func (s *Service) decideNotice(ctx context.Context, a *Alert, now int64, silences []Silence) (NoticeDecision, error) {
	n := NoticeDecision{Alert: a.ID}
	for i := range silences {
		if silences[i].matches(a) {
			n.Notice, n.Reason = Silenced, "silence "+silences[i].ID
			return n, nil
		}
	}
	rules := s.Rules()
	if until, quiet := rules.rule(a.Rule).quietUntil(time.UnixMilli(now)); quiet {
		n.Notice, n.Reason, n.HeldUntil = Held, "quiet hours", holdUntil(until, time.UnixMilli(now))
		return n, nil
	}
	refused, err := s.throttle(ctx, a, now)
	switch {
	case err != nil:
		s.Observer.ThrottleFailed()
		return n, err
	case refused != "":
		n.Notice, n.Reason = Held, refused
		return n, nil
	}
	message, err := raisedMessage(a)
	if err != nil {
		return n, err
	}
	n.Notice, n.Deliveries = Sent, deliveries(message, rules.channelsOf(a))
	return n, nil
}

// reportNotices reports the alerts that were still pending when their notice was stored: those in changed.
func (s *Service) reportNotices(pending []Alert, decided []NoticeDecision, changed []string) {
	rules := make(map[string]string, len(pending))
	for i := range pending {
		rules[pending[i].ID] = pending[i].Rule
	}
	notices := make(map[string]*NoticeDecision, len(decided))
	for i := range decided {
		notices[decided[i].Alert] = &decided[i]
	}
	sent := false
	for _, id := range changed {
		s.Observer.AlertChanged(string(notices[id].Notice), rules[id])
		sent = sent || len(notices[id].Deliveries) > 0
	}
	if sent {
		s.Delivered()
	}
}
