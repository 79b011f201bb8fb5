package deliver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/redact"

	"github.com/sony/gobreaker/v2"
)

// MaxErrorBytes bounds the errors that are stored with deliveries.
const MaxErrorBytes = 256

// delays are the times between the maxAttempts attempts of a delivery, together a little under a day.
var delays = []time.Duration{
	5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute,
	time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
}

// delay returns how long to wait after failed attempts, at least as long as the target asks for.
func delay(failed int, retryAfter time.Duration) time.Duration {
	wait := jitter(delays[min(max(failed, 1), len(delays))-1])
	if wait < retryAfter {
		// With jitter, but never earlier than the target asks for.
		wait = retryAfter + time.Duration(rand.Float64()*float64(min(retryAfter/10, time.Minute)))
	}
	return wait
}

// jitter changes a delay randomly by up to a fifth.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// evaluate decides what happens to a delivery after an attempt, and updates the state of the channel.
func (l *loop) evaluate(ctx context.Context, a *attempt) alerts.DeliveryResult {
	t := alerts.DeliveryResult{ID: a.delivery.ID, Counts: true, State: alerts.DeliverySent}
	outcome := Sent
	refusal, refused := errors.AsType[*alerts.Refusal](a.err)
	switch {
	case a.err == nil:
		l.worked(a.target)
		l.enableIfMoved(ctx, a.target)
	case errors.Is(a.err, errStopped):
		outcome = l.putOff(&t, a, 0)
	case errors.Is(a.err, gobreaker.ErrOpenState) || errors.Is(a.err, gobreaker.ErrTooManyRequests):
		outcome = l.putOff(&t, a, jitter(breakFor))
	case refused && refusal.Gone:
		outcome = Disabled
		l.markDead(&t, a.err.Error())
		l.s.disable(ctx, alerts.Disabled{Channel: l.name, Target: a.target, Reason: t.Error, At: l.s.cfg.Now().UnixMilli()})
	default:
		outcome = l.failed(&t, a, refusal)
	}
	l.s.cfg.Observer.DeliveryTried(l.name, string(outcome), a.took)
	return t
}

// enableIfMoved enables the channel if it was disabled with another target than the one that works.
func (l *loop) enableIfMoved(ctx context.Context, target string) {
	if d, found := l.s.disabledEntry(l.name); found && d.Target != target {
		l.s.enable(ctx, l.name)
	}
}

// putOff makes a delivery wait that was not tried to the end. It keeps the error of the attempt before, if there was one.
func (l *loop) putOff(t *alerts.DeliveryResult, a *attempt, wait time.Duration) Outcome {
	t.State, t.Counts = alerts.DeliveryWaiting, false
	t.DueAt = l.dueAt(a, wait)
	t.Error = a.delivery.Error
	if t.Error == "" {
		t.Error = short("put off: " + a.err.Error())
	}
	return PutOff
}

// failed schedules a retry of a failed delivery, or makes it a dead letter if a retry is useless or no attempt is left.
func (l *loop) failed(t *alerts.DeliveryResult, a *attempt, refusal *alerts.Refusal) Outcome {
	attempts := a.delivery.Attempts + 1
	retryAfter := time.Duration(0)
	if refusal != nil {
		retryAfter = refusal.RetryAfter
		if l.pause(a.target, retryAfter) { // this attempt was in flight when the target asked for a pause
			t.Counts, attempts = false, attempts-1
		}
	}
	switch {
	case refusal != nil && refusal.Final:
		l.markDead(t, a.err.Error())
		return Dead
	case attempts >= maxAttempts:
		l.markDead(t, fmt.Sprintf("gave up after %d attempts: %s", attempts, a.err))
		return Dead
	}
	t.State, t.Error = alerts.DeliveryWaiting, short(a.err.Error())
	t.DueAt = l.dueAt(a, delay(attempts, retryAfter))
	l.s.cfg.Logger.Debug("alert delivery failed, will retry", "channel", l.name, "delivery", t.ID, "tries", attempts,
		"error", t.Error)
	return Retry
}

// dueAt returns the time after a wait from now, by the store's clock: the claim set DueAt to the end of the lease by that
// clock. If our own clock were used and were behind, all attempts of a delivery would follow at once.
func (l *loop) dueAt(a *attempt, wait time.Duration) int64 {
	wait += l.s.cfg.Now().Sub(a.claimed) - leaseFor
	return a.delivery.DueAt + wait.Milliseconds()
}

func (l *loop) markDead(t *alerts.DeliveryResult, reason string) {
	t.State, t.Error = alerts.DeliveryDead, short(reason)
	l.s.cfg.Logger.Error("alert delivery dead-lettered", "channel", l.name, "delivery", t.ID, "error", t.Error)
}

// pause pauses the channel, as its target asked, and reports whether it was paused already. It ignores an earlier target of
// the channel.
func (l *loop) pause(target string, d time.Duration) (already bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d <= 0 || target != l.ch.Target {
		return false
	}
	now := l.s.cfg.Now()
	already = now.Before(l.pausedUntil)
	if until := now.Add(d); until.After(l.pausedUntil) {
		l.pausedUntil = until
	}
	l.behind, l.back = true, false
	if !already { // those under way get the same answer, a moment later
		l.s.cfg.Logger.Warn("alert channel paused: its target asked for a pause", "channel", l.name, "for", d)
	}
	return already
}

// paused returns until when the channel is paused; the zero time if it is not.
func (l *loop) paused() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.s.cfg.Now().Before(l.pausedUntil) {
		return time.Time{}
	}
	return l.pausedUntil
}

// giveUp makes deliveries of a disabled channel dead letters.
func (l *loop) giveUp(ctx context.Context, due []alerts.Delivery) {
	d, _ := l.disabled()
	tried := make([]alerts.DeliveryResult, len(due))
	for i := range due {
		tried[i] = alerts.DeliveryResult{ID: due[i].ID, State: alerts.DeliveryDead,
			Error: short("the channel is disabled: " + d.Reason)}
		l.s.cfg.Observer.DeliveryTried(l.name, string(Disabled), 0)
	}
	l.s.cfg.Logger.Error("alert deliveries dead-lettered: the channel is disabled", "channel", l.name,
		"deliveries", len(due))
	l.write(ctx, tried)
}

// sweepRemoved makes deliveries dead letters whose channel this process has not known for removedGrace, and that no process
// has claimed for as long.
func (s *Sender) sweepRemoved(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	var names []string
	for _, ch := range s.cfg.Channels() {
		names = append(names, ch.Name)
	}
	removed := slices.ContainsFunc(s.names, func(name string) bool { return !slices.Contains(names, name) })
	if s.names = names; removed || s.namesSince.IsZero() {
		s.namesSince = s.cfg.Now()
	}
	if s.cfg.Now().Sub(s.namesSince) < removedGrace {
		return // a channel that was removed a moment ago may come back
	}
	others, err := s.cfg.Outbox.OtherDeliveries(ctx, names, removedGrace, sweepMax)
	if err == nil && len(others) > 0 {
		err = s.cfg.Outbox.SaveResults(ctx, s.markRemoved(others))
	}
	s.logStore(ctx, "look for deliveries of removed channels", err)
}

// markRemoved makes deliveries of removed channels dead letters.
func (s *Sender) markRemoved(others []alerts.Delivery) []alerts.DeliveryResult {
	tried, channels := make([]alerts.DeliveryResult, len(others)), make([]string, len(others))
	for i := range others {
		channels[i] = others[i].Channel
		tried[i] = alerts.DeliveryResult{ID: others[i].ID, State: alerts.DeliveryDead,
			Error: short(fmt.Sprintf("channel %q is no longer in the rules", others[i].Channel))}
		s.cfg.Observer.DeliveryTried("", string(Removed), 0)
	}
	s.cfg.Logger.Error("alert deliveries dead-lettered: their channels no longer exist", "channels", listNames(channels),
		"deliveries", len(tried))
	return tried
}

// maxListed bounds the names in a line of the log.
const maxListed = 10

// listNames lists names once each, in order. After maxListed it says how many more there are.
func listNames(names []string) string {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	list := strings.Join(names[:min(len(names), maxListed)], ", ")
	if more := len(names) - maxListed; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}

// record records the result of an attempt, for the log, for LastError, and for the reason of deliveries that are never
// tried. A refusal is no outage: its pause, dead letter or disabled channel is logged where it is handled.
func (l *loop) record(target string, err error) {
	if errors.Is(err, errStopped) {
		return
	}
	var failure error
	if !targetWorks(err) {
		failure = errors.New(short(err.Error()))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if target != l.ch.Target {
		return
	}
	if l.lastError = ""; err != nil {
		l.lastError = short(err.Error())
	}
	l.outage.Tried(failure)
}

// lastErr returns why the last attempt failed; empty if it did not.
func (l *loop) lastErr() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastError
}

// recall makes deliveries due that were scheduled too far ahead while the store's clock was ahead.
func (s *Sender) recall(ctx context.Context) {
	recalled := 0
	s.inBatches(ctx, "look for deliveries put off by a clock that was ahead", func(ctx context.Context) (int, error) {
		n, err := s.cfg.Outbox.RecallDeliveries(ctx, maxWait, leaseFor, sweepMax)
		recalled += n
		return n, err
	})
	if recalled > 0 {
		s.cfg.Logger.Warn("alert deliveries are due now: the store's clock was ahead when they were put off", "deliveries", recalled)
	}
}

// sweepOld makes deliveries dead letters that have waited for maxAge, however often they were tried.
func (s *Sender) sweepOld(ctx context.Context) {
	ended := map[string]int{}
	s.inBatches(ctx, "look for deliveries that are too old", func(ctx context.Context) (int, error) {
		some, err := s.cfg.Outbox.EndDeliveries(ctx, alerts.Overdue{Age: maxAge, Lease: leaseFor, Max: sweepMax}, s.tooOldReason)
		for i := range some {
			ended[some[i].Channel]++
			s.cfg.Observer.DeliveryTried(s.label(some[i].Channel), string(Dead), 0)
		}
		return len(some), err
	})
	for channel, n := range ended {
		s.cfg.Logger.Error("alert deliveries dead-lettered: too old", "channel", channel, "deliveries", n, "age", maxAge)
	}
}

// inBatches calls sweep until it fails, or returns less than a full batch, or sweepFor is over.
func (s *Sender) inBatches(ctx context.Context, act string, sweep func(ctx context.Context) (int, error)) {
	for end := s.cfg.Now().Add(sweepFor); ctx.Err() == nil && s.cfg.Now().Before(end); {
		storeCtx, cancel := context.WithTimeout(ctx, storeTimeout)
		n, err := sweep(storeCtx)
		cancel()
		s.logStore(ctx, act, err)
		if err != nil || n < sweepMax {
			return
		}
	}
}

// tooOldReason says why a delivery was not delivered: the error of its last attempt, or, if there was none, of the channel's
// last attempt.
func (s *Sender) tooOldReason(d *alerts.Delivery) string {
	reason := fmt.Sprintf("not delivered in %d days: ", maxAge/(24*time.Hour))
	if d.Attempts > 0 {
		return short(reason + d.Error)
	}
	if last := s.State(d.Channel).LastError; last != "" {
		return short(reason + "never tried, because the channel is failing: " + last)
	}
	return reason + "never tried, because the channel was failing or had too many deliveries"
}

// label returns a channel's name for metrics. It is empty for an unknown channel, because their number has no bound.
func (s *Sender) label(channel string) string {
	if s.loopOf(channel) == nil {
		return ""
	}
	return channel
}

// short makes an error's text fit to be stored: one line, without secrets, of MaxErrorBytes at most.
func short(text string) string { return redact.Line(text, MaxErrorBytes) }
