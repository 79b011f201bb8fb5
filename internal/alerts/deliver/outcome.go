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

// MaxErrorBytes bounds what is kept of an error.
const MaxErrorBytes = 256

// delays are between a delivery's tries, one more than they: together a little under a day.
var delays = []time.Duration{
	5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute,
	time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
}

// delay is how long to wait after so many tries that failed, at least as long as the target asks for.
func delay(failed int, retryAfter time.Duration) time.Duration {
	wait := jitter(delays[min(max(failed, 1), len(delays))-1])
	if wait < retryAfter {
		// Not earlier than asked, and not all at the same moment.
		wait = retryAfter + time.Duration(rand.Float64()*float64(min(retryAfter/10, time.Minute)))
	}
	return wait
}

// jitter moves a delay by up to a fifth.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// judge says what becomes of a delivery after a try, and what the channel learns of it.
func (l *loop) judge(ctx context.Context, e *ended) alerts.Tried {
	t := alerts.Tried{ID: e.delivery.ID, Counts: true, State: alerts.DeliverySent}
	outcome := Sent
	refusal, refused := errors.AsType[*alerts.Refusal](e.err)
	switch {
	case e.err == nil:
		l.works(ctx, e.target)
	case errors.Is(e.err, errStopped):
		outcome = l.putOff(&t, e, 0)
	case errors.Is(e.err, gobreaker.ErrOpenState) || errors.Is(e.err, gobreaker.ErrTooManyRequests):
		outcome = l.putOff(&t, e, jitter(breakFor))
	case refused && refusal.Gone:
		outcome = Disabled
		l.dead(&t, e.err.Error())
		l.s.disable(ctx, alerts.Disabled{Channel: l.name, Target: e.target, Reason: t.Error, At: l.s.cfg.Now().UnixMilli()})
	default:
		outcome = l.failed(&t, e, refusal)
	}
	l.s.cfg.Observer.DeliveryTried(l.name, string(outcome), e.took)
	return t
}

// works forgets that the channel was gone at another target.
func (l *loop) works(ctx context.Context, target string) {
	if d, found := l.s.disabledAs(l.name); found && d.Target != target {
		l.s.enable(ctx, l.name)
	}
}

// putOff lets a delivery wait that was not tried, or not to its end. The error that is kept is that of the try before.
func (l *loop) putOff(t *alerts.Tried, e *ended, wait time.Duration) Outcome {
	t.State, t.Counts = alerts.DeliveryWaiting, false
	t.DueAt = l.dueAt(e, wait)
	t.Error = e.delivery.Error
	if t.Error == "" {
		t.Error = short("put off: " + e.err.Error())
	}
	return PutOff
}

// failed lets a delivery be tried again, unless that is of no use, or was done often enough.
func (l *loop) failed(t *alerts.Tried, e *ended, refusal *alerts.Refusal) Outcome {
	tries := e.delivery.Attempts + 1
	retryAfter := time.Duration(0)
	if refusal != nil {
		retryAfter = refusal.RetryAfter
		if l.pause(e.target, retryAfter) { // it was under way when the target asked for that
			t.Counts, tries = false, tries-1
		}
	}
	switch {
	case refusal != nil && refusal.Final:
		l.dead(t, e.err.Error())
		return Dead
	case tries >= maxAttempts:
		l.dead(t, fmt.Sprintf("given up after %d tries: %s", tries, e.err))
		return Dead
	}
	t.State, t.Error = alerts.DeliveryWaiting, short(e.err.Error())
	t.DueAt = l.dueAt(e, delay(tries, retryAfter))
	l.s.cfg.Logger.Debug("a delivery of an alert failed; it is tried again", "channel", l.name, "delivery", t.ID, "tries", tries,
		"error", t.Error)
	return Retry
}

// dueAt gives a moment from now on by the store's clock, which the claim told: with a clock of our own that is late, all
// tries of a delivery would follow at once.
func (l *loop) dueAt(e *ended, wait time.Duration) int64 {
	wait += l.s.cfg.Now().Sub(e.claimed) - leaseFor
	return e.delivery.DueAt + wait.Milliseconds()
}

func (l *loop) dead(t *alerts.Tried, reason string) {
	t.State, t.Error = alerts.DeliveryDead, short(reason)
	l.s.cfg.Logger.Error("a delivery of an alert is a dead letter", "channel", l.name, "delivery", t.ID, "error", t.Error)
}

// pause leaves a target alone that asked for it, and tells whether it was left alone already; one that the channel does not
// lead to any more has no say.
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
		l.s.cfg.Logger.Warn("channel of alerts paused: its target asks for that", "channel", l.name, "for", d)
	}
	return already
}

// paused gives up to when the target is left alone; the zero time when it is not.
func (l *loop) paused() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.s.cfg.Now().Before(l.pausedUntil) {
		return time.Time{}
	}
	return l.pausedUntil
}

// resume leaves the target alone no longer.
func (l *loop) resume() {
	l.mu.Lock()
	paused := l.s.cfg.Now().Before(l.pausedUntil)
	l.pausedUntil = time.Time{}
	l.mu.Unlock()
	if paused {
		l.s.cfg.Logger.Info("channel of alerts goes on: a replay ended its pause", "channel", l.name)
		l.wakeUp()
	}
}

// giveUp makes dead letters of deliveries of a channel that is gone.
func (l *loop) giveUp(ctx context.Context, due []alerts.Delivery) {
	d, _ := l.disabled()
	tried := make([]alerts.Tried, len(due))
	for i := range due {
		tried[i] = alerts.Tried{ID: due[i].ID, State: alerts.DeliveryDead,
			Error: short("the channel is disabled: " + d.Reason)}
		l.s.cfg.Observer.DeliveryTried(l.name, string(Disabled), 0)
	}
	l.s.cfg.Logger.Error("deliveries of alerts are dead letters: the channel is disabled", "channel", l.name,
		"deliveries", len(due))
	l.write(ctx, tried)
}

// sweep makes dead letters of deliveries whose channel this process has not known for the grace, and that nobody has cared for.
func (s *Sender) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	var names []string
	for _, ch := range s.cfg.Channels() {
		names = append(names, ch.Name)
	}
	gone := slices.ContainsFunc(s.names, func(name string) bool { return !slices.Contains(names, name) })
	if s.names = names; gone || s.named.IsZero() {
		s.named = s.cfg.Now()
	}
	if s.cfg.Now().Sub(s.named) < grace {
		return // a channel that was here a moment ago may come back
	}
	others, err := s.cfg.Outbox.OtherDeliveries(ctx, names, grace, sweepMax)
	if err == nil && len(others) > 0 {
		err = s.cfg.Outbox.Deliver(ctx, s.removed(others))
	}
	s.asked(ctx, "look for deliveries of channels that are no more", err)
}

// removed gives up deliveries whose channel is no more.
func (s *Sender) removed(others []alerts.Delivery) []alerts.Tried {
	tried, channels := make([]alerts.Tried, len(others)), make([]string, len(others))
	for i := range others {
		channels[i] = others[i].Channel
		tried[i] = alerts.Tried{ID: others[i].ID, State: alerts.DeliveryDead,
			Error: short(fmt.Sprintf("there is no channel %q in the rules any more", others[i].Channel))}
		s.cfg.Observer.DeliveryTried("", string(Removed), 0)
	}
	s.cfg.Logger.Error("deliveries of alerts are dead letters: no channel has their name any more", "channels", listed(channels),
		"deliveries", len(tried))
	return tried
}

// mostListed bounds the names in a line of the log.
const mostListed = 10

// listed gives names, each once, and of many how many more there are.
func listed(names []string) string {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	list := strings.Join(names[:min(len(names), mostListed)], ", ")
	if more := len(names) - mostListed; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}

// note keeps how the last try of the channel ended, for the log, for who asks, and for those that are never tried. What a target
// says by its answer has a line of the log of its own: a pause, a dead letter, a channel that is disabled.
func (l *loop) note(target string, err error) {
	if errors.Is(err, errStopped) {
		return
	}
	var failure error
	if !answered(err) {
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
	l.failing.Tried(failure)
}

// reason gives why the last try failed.
func (l *loop) reason() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastError
}

// recall has deliveries tried that the store's clock put off while it was ahead: they would wait until that time.
func (s *Sender) recall(ctx context.Context) {
	recalled := 0
	for end := s.cfg.Now().Add(sweepFor); ctx.Err() == nil && s.cfg.Now().Before(end); {
		asking, cancel := context.WithTimeout(ctx, storeTimeout)
		n, err := s.cfg.Outbox.RecallDeliveries(asking, maxWait, leaseFor, sweepMax)
		cancel()
		s.asked(ctx, "look for deliveries of a clock that was ahead", err)
		recalled += n
		if err != nil || n < sweepMax {
			break
		}
	}
	if recalled > 0 {
		s.cfg.Logger.Warn("deliveries of alerts are due again: the store's clock was ahead when they were put off", "deliveries", recalled)
	}
}

// sweepOld makes dead letters of deliveries that have waited for too long, however often they were tried.
func (s *Sender) sweepOld(ctx context.Context) {
	ended := map[string]int{}
	for end := s.cfg.Now().Add(sweepFor); ctx.Err() == nil && s.cfg.Now().Before(end); {
		asking, cancel := context.WithTimeout(ctx, storeTimeout)
		some, err := s.cfg.Outbox.EndDeliveries(asking, alerts.Overdue{Age: maxAge, Lease: leaseFor, Max: sweepMax}, s.tooOld)
		cancel()
		s.asked(ctx, "look for deliveries that are too old", err)
		for i := range some {
			ended[some[i].Channel]++
			s.cfg.Observer.DeliveryTried(s.label(some[i].Channel), string(Dead), 0)
		}
		if err != nil || len(some) < sweepMax {
			break
		}
	}
	for channel, n := range ended {
		s.cfg.Logger.Error("deliveries of alerts are dead letters: they are too old", "channel", channel, "deliveries", n, "age", maxAge)
	}
}

// tooOld says why a delivery is given up: the error of its last try, or, where there was none, that of its channel's.
func (s *Sender) tooOld(d *alerts.Delivery) string {
	reason := fmt.Sprintf("not delivered in %d days: ", maxAge/(24*time.Hour))
	if d.Attempts > 0 {
		return short(reason + d.Error)
	}
	last := ""
	if l := s.loopOf(d.Channel); l != nil {
		last = l.reason()
	}
	if last == "" {
		return reason + "it was never tried, as the channel failed or had too much to send"
	}
	return short(reason + "it was never tried, as the channel fails: " + last)
}

// label is a channel's name where it is in force: others may be any.
func (s *Sender) label(channel string) string {
	if s.loopOf(channel) == nil {
		return ""
	}
	return channel
}

// short makes a text one that is kept.
func short(text string) string { return redact.Line(text, MaxErrorBytes) }
