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

// errStopped is the cause that ends tries when the drain timeout is over.
var errStopped = errors.New("the process stops")

// loop sends what one channel has to. Its run is one goroutine; tries are others.
type loop struct {
	s    *Sender
	name string
	stop context.CancelFunc
	wake chan struct{}
	// ended has room for every try, so that none is ever held up by the loop.
	ended    chan ended
	inFlight int

	mu      sync.Mutex
	ch      Named
	breaker *gobreaker.CircuitBreaker[struct{}]
	// pausedUntil is up to when the target wants to be left alone.
	pausedUntil time.Time
	// lastError is why the last try failed; empty when it did not. failing tells the log of failures when they begin and end.
	lastError string
	failing   *outage.Log
}

// ended is a try that is over.
type ended struct {
	delivery alerts.Delivery
	claimed  time.Time // by this process's clock
	target   string
	err      error
	took     time.Duration // 0 where the circuit was open and nothing was sent
}

func newLoop(s *Sender, ch Named) *loop {
	l := &loop{s: s, name: ch.Name, wake: make(chan struct{}, 1), ended: make(chan ended, MaxParallel)}
	l.use(ch)
	return l
}

// use takes a channel on. One with another target is a stranger: what was learned of the old one does not hold.
func (l *loop) use(ch Named) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.breaker == nil || l.ch.Target != ch.Target {
		l.breaker, l.pausedUntil, l.lastError = l.newBreaker(), time.Time{}, ""
		l.failing = outage.New(l.s.cfg.Logger.With("channel", l.name), slog.LevelWarn,
			"channel of alerts fails; what it did not take is tried again", "channel of alerts works again")
	}
	l.ch = ch
}

// newBreaker makes a breaker, which tells of its changes under a lock of its own, and asks for the loop's there: so whoever
// holds the loop's may not ask a breaker.
func (l *loop) newBreaker() *gobreaker.CircuitBreaker[struct{}] {
	return gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name:         l.name,
		MaxRequests:  1,
		Timeout:      breakFor,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakAfter },
		IsSuccessful: answered,
		IsExcluded:   func(err error) bool { return errors.Is(err, errStopped) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			if to == gobreaker.StateOpen && from == gobreaker.StateClosed {
				l.s.cfg.Logger.Warn("channel of alerts goes on failing; it is left alone for a while", "channel", l.name, "for", breakFor,
					"error", l.reason())
			}
		},
	})
}

// answered says that the target is alive: it took the message, or said what to do about it.
func answered(err error) bool {
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

// run sends until ctx ends, then waits for the tries that are under way.
func (l *loop) run(ctx context.Context) {
	sends, endSends := outlive(ctx, drainTimeout)
	defer endSends(nil)
	keeps, endKeeps := outlive(ctx, drainTimeout+drainKeep)
	defer endKeeps(nil)
	poll := time.NewTicker(l.s.cfg.Poll)
	defer poll.Stop()
	look, full := true, false
	for ctx.Err() == nil {
		if look {
			full = l.claim(ctx, sends, keeps)
		}
		select {
		case e := <-l.ended:
			l.keep(keeps, e)
			look = full && l.room() >= l.parallel()/2 // a claim costs the store the same for one as for many
		case <-l.wake:
			look = true
		case <-poll.C:
			look = true
		case <-ctx.Done():
		}
	}
	l.drain(keeps)
}

// outlive gives a context that ends some time after ctx has.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelCauseFunc) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(d, func() { cancel(errStopped) }) })
	return longer, cancel
}

// drain waits for tries. A channel that does not heed its context is left behind when keeps ends; its delivery stays claimed
// until its lease is over.
func (l *loop) drain(keeps context.Context) {
	for l.inFlight > 0 {
		select {
		case e := <-l.ended:
			l.keep(keeps, e)
		case <-keeps.Done():
			l.s.cfg.Logger.Error("a channel of alerts does not return from its tries", "channel", l.name, "tries", l.inFlight)
			return
		}
	}
}

// room is how many deliveries may be claimed: none while the target wants to be left alone or its circuit is open, and one to
// try it with after that.
func (l *loop) room() int {
	most := l.parallel()
	l.mu.Lock()
	breaker, pausedUntil := l.breaker, l.pausedUntil
	l.mu.Unlock() // see newBreaker
	switch breaker.State() {
	case gobreaker.StateOpen:
		most = 0
	case gobreaker.StateHalfOpen:
		most = 1
	}
	if l.s.cfg.Now().Before(pausedUntil) {
		most = 0
	}
	return max(most-l.inFlight, 0)
}

// parallel is how many tries may be under way.
func (l *loop) parallel() int {
	ch, _ := l.current()
	if ch.Parallel <= 0 {
		return defaultParallel
	}
	return min(ch.Parallel, MaxParallel)
}

// claim takes what is due and begins to send it. full says that there may be more.
func (l *loop) claim(ctx, sends, keeps context.Context) (full bool) {
	room := l.room()
	if room == 0 {
		return l.inFlight > 0
	}
	asking, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	due, err := l.s.cfg.Outbox.DueDeliveries(asking, l.name, room, leaseFor)
	if l.s.asked(ctx, "read what is due", err); err != nil {
		return false
	}
	full = len(due) == room
	if len(due) > 0 && l.gone(ctx) {
		l.giveUp(keeps, due)
		if full {
			l.wakeUp()
		}
		return full
	}
	for _, d := range due {
		l.inFlight++
		ch, breaker := l.current()
		e := ended{delivery: d, claimed: l.s.cfg.Now(), target: ch.Target}
		go func() {
			l.try(sends, &e, ch.Channel, breaker)
			l.ended <- e
		}()
	}
	return full
}

// gone says that the channel is disabled. Somebody may have enabled it again a moment ago, so the store is asked before
// deliveries are given up.
func (l *loop) gone(ctx context.Context) bool {
	if _, gone := l.disabled(); !gone {
		return false
	}
	err := l.s.refresh(ctx)
	_, gone := l.disabled()
	return err == nil && gone
}

func (l *loop) disabled() (alerts.Disabled, bool) {
	ch, _ := l.current()
	d, found := l.s.disabledAs(l.name)
	return d, found && d.Target == ch.Target
}

// try sends a delivery.
func (l *loop) try(ctx context.Context, e *ended, ch alerts.Channel, breaker *gobreaker.CircuitBreaker[struct{}]) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	_, e.err = breaker.Execute(func() (struct{}, error) {
		began := l.s.cfg.Now()
		err := l.call(ctx, ch, &e.delivery.Message)
		e.took = l.s.cfg.Now().Sub(began)
		l.note(e.target, err)
		return struct{}{}, err
	})
}

// call runs the channel's code; a panic is an error of this try, with its stack in the log.
func (l *loop) call(ctx context.Context, ch alerts.Channel, m *alerts.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			l.s.cfg.Logger.Error("a channel of alerts panicked", "channel", l.name, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	err = ch.Send(ctx, m)
	if err != nil && errors.Is(context.Cause(ctx), errStopped) {
		return errStopped
	}
	return err
}

// keep writes how tries ended, this one and those that have ended meanwhile, in one go.
func (l *loop) keep(ctx context.Context, first ended) {
	all := []ended{first}
	for len(all) < l.inFlight {
		select {
		case e := <-l.ended:
			all = append(all, e)
			continue
		default:
		}
		break
	}
	l.inFlight -= len(all)
	tried := make([]alerts.Tried, len(all))
	for i := range all {
		tried[i] = l.judge(ctx, &all[i])
	}
	l.write(ctx, tried)
}

// write keeps outcomes, with patience: what is not kept is sent again.
func (l *loop) write(ctx context.Context, tried []alerts.Tried) {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		asking, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		return struct{}{}, l.s.cfg.Outbox.Deliver(asking, tried)
	}, backoff.WithMaxElapsedTime(outcomeTimeout))
	if err != nil {
		l.s.cfg.Logger.Error("how deliveries of alerts ended could not be kept; they are sent again, with the same ids",
			"channel", l.name, "deliveries", len(tried), "error", err)
	}
}
