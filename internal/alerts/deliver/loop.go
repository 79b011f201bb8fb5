package deliver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/outage"

	"github.com/cenkalti/backoff/v5"
	"github.com/sony/gobreaker/v2"
)

const (
	// breakAfter failures in a row open a target's circuit, for breakFor.
	breakAfter = 5
	breakFor   = 30 * time.Second
)

// errStopped is the cause that ends attempts after drainTimeout.
var errStopped = errors.New("the process is stopping")

// loop sends the deliveries of one channel. run is one goroutine; each attempt in flight has another.
type loop struct {
	s    *Sender
	name string
	stop context.CancelFunc
	wake chan struct{}
	// results has room for all attempts in flight, so that none ever waits for the loop.
	results  chan attempt
	inFlight int

	mu      sync.Mutex
	ch      Named
	breaker *gobreaker.CircuitBreaker[struct{}]
	// pausedUntil is until when the target asked to be sent nothing.
	pausedUntil time.Time
	// lastError is why the last attempt failed; empty if it did not.
	lastError string
	// outage logs when failures begin and end.
	outage *outage.Log
	// behind says that deliveries may wait for a next try which failures have put off, and back that the target works again.
	// caughtUpAt is when such deliveries were last brought forward.
	behind, back bool
	caughtUpAt   time.Time
}

// attempt is an attempt to send a delivery. err and took are set when it has ended.
type attempt struct {
	delivery alerts.Delivery
	claimed  time.Time // by this process's clock
	target   string
	err      error
	took     time.Duration // 0 if the circuit was open and nothing was sent
}

func newLoop(s *Sender, ch Named) *loop {
	l := &loop{s: s, name: ch.Name, wake: make(chan struct{}, 1), results: make(chan attempt, MaxParallel)}
	l.setChannel(ch)
	return l
}

// setChannel sets the channel. If its target is another one than before, the state of the old target is dropped.
func (l *loop) setChannel(ch Named) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.breaker == nil || l.ch.Target != ch.Target {
		l.breaker, l.pausedUntil, l.lastError = l.newBreaker(), time.Time{}, ""
		l.behind, l.back = true, false // an earlier process, or the earlier target, may have failed
		l.outage = outage.New(l.s.cfg.Logger.With("channel", l.name), slog.LevelWarn,
			"alert channel is failing; failed deliveries will be retried", "alert channel works again")
	}
	l.ch = ch
}

// newBreaker makes a circuit breaker. It calls OnStateChange while it holds its own lock, and that takes the loop's lock; so
// no method of a breaker may be called while the loop's lock is held.
func (l *loop) newBreaker() *gobreaker.CircuitBreaker[struct{}] {
	return gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name:         l.name,
		MaxRequests:  1,
		Timeout:      breakFor,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakAfter },
		IsSuccessful: targetWorks,
		IsExcluded:   func(err error) bool { return errors.Is(err, errStopped) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			if to == gobreaker.StateOpen {
				l.fellBehind()
			}
			if to == gobreaker.StateOpen && from == gobreaker.StateClosed {
				l.s.cfg.Logger.Warn("alert channel keeps failing; circuit breaker open", "channel", l.name, "for", breakFor,
					"error", l.lastErr())
			}
		},
	})
}

// targetWorks reports whether the target accepted the message, or at least said how to go on.
func targetWorks(err error) bool {
	refusal, ok := errors.AsType[*alerts.Refusal](err)
	return err == nil || ok && (refusal.Final || refusal.Gone || refusal.RetryAfter > 0)
}

func (l *loop) current() (Named, *gobreaker.CircuitBreaker[struct{}]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ch, l.breaker
}

func (l *loop) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run sends until ctx ends, then waits for the attempts in flight.
func (l *loop) run(ctx context.Context) {
	sendCtx, endSends := outlive(ctx, drainTimeout)
	defer endSends(nil)
	saveCtx, endSaves := outlive(ctx, drainTimeout+drainSaveTimeout)
	defer endSaves(nil)
	poll := time.NewTicker(l.s.cfg.Poll)
	defer poll.Stop()
	claim, full := true, false
	for ctx.Err() == nil {
		if l.catchUp(ctx) || claim {
			full = l.claim(ctx, sendCtx, saveCtx)
		}
		select {
		case a := <-l.results:
			l.save(saveCtx, a)
			claim = full && l.room() >= l.parallel()/2 // a claim costs the store the same for one as for many
		case <-l.wake:
			claim = true
		case <-poll.C:
			claim = true
		case <-ctx.Done():
		}
	}
	l.drain(saveCtx)
}

// outlive returns a context that is canceled with errStopped d after ctx has ended.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelCauseFunc) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(d, func() { cancel(errStopped) }) })
	return longer, cancel
}

// drain waits for the attempts in flight. A channel that ignores its context is abandoned when saveCtx ends; its delivery
// stays claimed until the lease is over.
func (l *loop) drain(saveCtx context.Context) {
	for l.inFlight > 0 {
		select {
		case a := <-l.results:
			l.save(saveCtx, a)
		case <-saveCtx.Done():
			l.s.cfg.Logger.Error("alert channel did not stop in time; its attempts were abandoned", "channel", l.name, "tries", l.inFlight)
			return
		}
	}
}

// room returns how many deliveries may be claimed: none while the target is paused or its circuit is open, and one while the
// circuit is half open.
func (l *loop) room() int {
	limit := l.parallel()
	l.mu.Lock()
	breaker, pausedUntil := l.breaker, l.pausedUntil
	l.mu.Unlock() // see newBreaker
	switch breaker.State() {
	case gobreaker.StateOpen:
		limit = 0
	case gobreaker.StateHalfOpen:
		limit = 1
	}
	if l.s.cfg.Now().Before(pausedUntil) {
		limit = 0
	}
	return max(limit-l.inFlight, 0)
}

// parallel returns how many attempts may be in flight.
func (l *loop) parallel() int {
	ch, _ := l.current()
	if ch.Parallel <= 0 {
		return defaultParallel
	}
	return min(ch.Parallel, MaxParallel)
}

// claim claims due deliveries and starts an attempt for each. full says that more may be due.
func (l *loop) claim(ctx, sendCtx, saveCtx context.Context) (full bool) {
	room := l.room()
	if room == 0 {
		return l.inFlight > 0
	}
	storeCtx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	due, err := l.s.cfg.Outbox.DueDeliveries(storeCtx, l.name, room, leaseFor)
	if l.s.logStore(ctx, "read what is due", err); err != nil {
		return false
	}
	full = len(due) == room
	if len(due) > 0 && l.stillDisabled(ctx) {
		l.giveUp(saveCtx, due)
		if full {
			l.wakeUp()
		}
		return full
	}
	for _, d := range due {
		l.inFlight++
		ch, breaker := l.current()
		a := attempt{delivery: d, claimed: l.s.cfg.Now(), target: ch.Target}
		go func() {
			l.send(sendCtx, &a, ch.Channel, breaker)
			l.results <- a
		}()
	}
	return full
}

// stillDisabled reports whether the channel is disabled. It reads the store, because the channel may have been enabled a
// moment ago, and deliveries must not be given up then.
func (l *loop) stillDisabled(ctx context.Context) bool {
	if _, disabled := l.disabled(); !disabled {
		return false
	}
	err := l.s.refresh(ctx)
	_, disabled := l.disabled()
	return err == nil && disabled
}

func (l *loop) disabled() (alerts.Disabled, bool) {
	ch, _ := l.current()
	d, found := l.s.disabledEntry(l.name)
	return d, found && d.Target == ch.Target
}

// send makes an attempt, unless the circuit is open.
func (l *loop) send(ctx context.Context, a *attempt, ch alerts.Channel, breaker *gobreaker.CircuitBreaker[struct{}]) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	_, a.err = breaker.Execute(func() (struct{}, error) {
		began := l.s.cfg.Now()
		err := l.call(ctx, ch, &a.delivery.Message)
		a.took = l.s.cfg.Now().Sub(began)
		l.record(a.target, err)
		return struct{}{}, err
	})
}

// call calls the channel's Send. A panic becomes an error of this attempt, and its stack is logged.
func (l *loop) call(ctx context.Context, ch alerts.Channel, m *alerts.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			l.s.cfg.Logger.Error("alert channel panicked", "channel", l.name, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	err = ch.Send(ctx, m)
	if err != nil && errors.Is(context.Cause(ctx), errStopped) {
		return errStopped
	}
	return err
}

// save stores the results of an attempt and of those that have ended meanwhile, together.
func (l *loop) save(ctx context.Context, first attempt) {
	all := []attempt{first}
	for len(all) < l.inFlight {
		select {
		case a := <-l.results:
			all = append(all, a)
			continue
		default:
		}
		break
	}
	l.inFlight -= len(all)
	tried := make([]alerts.DeliveryResult, len(all))
	for i := range all {
		tried[i] = l.evaluate(ctx, &all[i])
	}
	l.write(ctx, tried)
}

// write stores results, with retries: a delivery whose result is not stored is sent again.
func (l *loop) write(ctx context.Context, tried []alerts.DeliveryResult) {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		storeCtx, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		return struct{}{}, l.s.cfg.Outbox.SaveResults(storeCtx, tried)
	}, backoff.WithMaxElapsedTime(saveTimeout))
	if err != nil {
		l.s.cfg.Logger.Error("cannot save the results of alert deliveries; they will be sent again, with the same ids",
			"channel", l.name, "deliveries", len(tried), "error", err)
	}
}
