package alerts

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cenkalti/backoff/v5"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/outage"
)

const (
	// pendingBatch is how many alerts are looked at together unless said, pendingAtOnce of them at the same time.
	pendingBatch  = 256
	pendingAtOnce = 64
	// pendingLease is how long nobody else looks at them. Who dies with a claim keeps its alerts for so long; who takes
	// longer than that is no harm, because the event's id charges once.
	pendingLease = 10 * time.Second
	// pendingPoll is how long is waited for a Wake: alerts of a process that died are found so.
	pendingPoll = time.Second
	// stopFor is how long a stop waits for what is in hand.
	stopFor = 3 * time.Second
)

// Run tells of pending alerts until ctx ends, and then of what it has in hand, which would be nobody's until its claim ends.
// Failures are tried again for ever.
func (s *Service) Run(ctx context.Context, log *slog.Logger) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	context.AfterFunc(ctx, func() { time.AfterFunc(stopFor, cancel) })
	s.tellUntil(ctx, work, log)
	for n, err := 1, error(nil); n > 0 && err == nil && s.handed.any(); {
		n, err = s.notify(work)
	}
}

// tellUntil tells of pending alerts until ctx ends; work goes on with the batch of that moment.
func (s *Service) tellUntil(ctx, work context.Context, log *slog.Logger) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 5*time.Second
	outage := outage.New(log, slog.LevelError, "alerts wait to be told", "alerts are told again")
	for ctx.Err() == nil {
		n, err := s.notify(work)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			outage.Tried(err)
			s.idle(ctx, wait.NextBackOff(), nil)
		default:
			if n > 0 || !s.waits(work) {
				outage.Tried(nil)
			}
			wait.Reset()
			if n < s.Batch {
				s.idle(ctx, pendingPoll, s.wake)
			}
		}
	}
}

func (s *Service) idle(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-t.C:
	}
}

// waits tells whether an alert still waits that could not be told. While it is claimed the store gives none, and that there is nothing
// to do is no success.
func (s *Service) waits(ctx context.Context) bool {
	if s.untold == "" {
		return false
	}
	if a, found, err := s.Store.Alert(ctx, s.untold); err == nil && (!found || a.Notice != Pending) {
		s.untold = "" // another process has told of it
	}
	return s.untold != ""
}

// notify decides for a batch of pending alerts who is told. What the limiter did not decide stays pending until the claim
// ends; the others are kept all the same.
func (s *Service) notify(ctx context.Context) (int, error) {
	pending, now, err := s.pending(ctx)
	if len(pending) > 0 {
		s.untold = pending[0].ID
	}
	if err != nil || len(pending) == 0 {
		return 0, err
	}
	silences, err := s.Store.Silences(ctx, false, 2*limits.MaxSilences) // those made at one moment may pass the bound
	if err != nil {
		return 0, err
	}
	told, failed := s.tellAll(ctx, pending, now, silences)
	if len(told) == 0 {
		return 0, failed
	}
	changed, err := s.Store.Tell(ctx, told)
	if err != nil {
		return 0, errors.Join(failed, err)
	}
	s.untold = firstUntold(pending, told)
	s.reportTold(pending, told, changed)
	return len(pending), failed
}

// pending gives the alerts that were handed over, and from time to time those that the store has.
func (s *Service) pending(ctx context.Context) ([]Alert, int64, error) {
	all, ask := s.handed.take(s.Batch)
	if !ask {
		return all, all[len(all)-1].RaisedAt, nil // a moment ago, by the store's clock
	}
	found, now, err := s.Store.PendingAlerts(ctx, s.Batch, pendingLease)
	return append(all, found...), now, err
}

func (s *Service) tellAll(ctx context.Context, pending []Alert, now int64, silences []Silence) ([]Told, error) {
	decided := make([]*Told, len(pending))
	var group errgroup.Group
	group.SetLimit(pendingAtOnce)
	for i := range pending {
		group.Go(func() error {
			told, err := s.tell(ctx, &pending[i], now, silences)
			if err == nil {
				decided[i] = &told
			}
			return err
		})
	}
	err := group.Wait()
	var told []Told
	for _, t := range decided {
		if t != nil {
			told = append(told, *t)
		}
	}
	return told, err
}

// firstUntold gives the first of the pending alerts that is not told; empty when all are.
func firstUntold(pending []Alert, told []Told) string {
	for i := range pending { // told is in the same order
		if i >= len(told) || told[i].Alert != pending[i].ID {
			return pending[i].ID
		}
	}
	return ""
}

// tell decides who is told of one alert. The throttle comes last: what nobody would be told of costs nothing.
func (s *Service) tell(ctx context.Context, a *Alert, now int64, silences []Silence) (Told, error) {
	told := Told{Alert: a.ID}
	for i := range silences {
		if silences[i].fits(a) {
			told.Notice, told.Reason = Silenced, "silence "+silences[i].ID
			return told, nil
		}
	}
	rules := s.Rules()
	if until, quiet := rules.find(a.Rule).quietUntil(time.UnixMilli(now)); quiet {
		told.Notice, told.Reason, told.HeldUntil = Held, "quiet hours", heldUntil(until, time.UnixMilli(now))
		return told, nil
	}
	refused, err := s.throttle(ctx, a, now)
	switch {
	case err != nil:
		s.Observer.ThrottleFailed()
		return told, err
	case refused != "":
		told.Notice, told.Reason = Held, refused
		return told, nil
	}
	message, err := raisedMessage(a)
	if err != nil {
		return told, err
	}
	told.Notice, told.Deliveries = Sent, deliveries(message, rules.reached(a))
	return told, nil
}

// reportTold tells of the alerts that were still pending.
func (s *Service) reportTold(pending []Alert, told []Told, changed []string) {
	rules := make(map[string]string, len(pending))
	for i := range pending {
		rules[pending[i].ID] = pending[i].Rule
	}
	notices := make(map[string]*Told, len(told))
	for i := range told {
		notices[told[i].Alert] = &told[i]
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
