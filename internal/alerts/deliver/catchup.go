package deliver

import (
	"context"
	"time"

	"github.com/sony/gobreaker/v2"
)

// A delivery that failed waits longer the more often it was tried, for hours in the end. When the target works again, that
// is of no use any more: the first alerts of an outage would come last. So what waits is brought forward then.

// fellBehind notes that the target fails.
func (l *loop) fellBehind() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.behind, l.back = true, false
}

// worked notes that the target took a message. If that was under way when the circuit opened or a pause began, it says
// nothing of the target since.
func (l *loop) worked(target string) {
	_, breaker := l.current()
	closed := breaker.State() == gobreaker.StateClosed // see newBreaker
	l.mu.Lock()
	defer l.mu.Unlock()
	if closed && target == l.ch.Target && !l.s.cfg.Now().Before(l.pausedUntil) {
		l.back = l.behind
	}
}

// resume ends a pause. Somebody says that the target is back, so what waits is brought forward.
func (l *loop) resume() {
	l.mu.Lock()
	paused := l.s.cfg.Now().Before(l.pausedUntil)
	l.pausedUntil, l.caughtUpAt = time.Time{}, time.Time{}
	l.behind, l.back = true, true
	l.mu.Unlock()
	if paused {
		l.s.cfg.Logger.Info("alert channel resumed: a replay ended its pause", "channel", l.name)
	}
	l.wakeUp()
}

// catchUp brings deliveries forward if the target works again, and reports whether there were any. Those that are due within
// the lease stay, because an attempt may be in flight.
func (l *loop) catchUp(ctx context.Context) bool {
	if !l.mayCatchUp() {
		return false
	}
	advanced, left := 0, true
	l.s.inBatches(ctx, "bring forward deliveries that wait", func(ctx context.Context) (int, error) {
		// A claim may be a little younger than the store's time in this call.
		n, err := l.s.cfg.Outbox.AdvanceDeliveries(ctx, l.name, leaseFor+storeTimeout, sweepMax)
		advanced += n
		left = err != nil || n == sweepMax
		return n, err
	})
	if advanced > 0 {
		l.s.cfg.Logger.Info("alert deliveries are due now that waited for their next try", "channel", l.name, "deliveries", advanced)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case left:
		l.behind, l.back = true, true
	case advanced > 0:
		l.caughtUpAt = l.s.cfg.Now()
	}
	return advanced > 0
}

// mayCatchUp reports whether deliveries are to be brought forward now, and that only once.
func (l *loop) mayCatchUp() bool {
	_, breaker := l.current()
	open := breaker.State() == gobreaker.StateOpen // see newBreaker
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.s.cfg.Now()
	if !l.back || open || now.Before(l.pausedUntil) || now.Sub(l.caughtUpAt) < catchUpEvery {
		return false
	}
	l.behind, l.back = false, false
	return true
}
