package limits

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"
)

const (
	// abandonGrace is how much longer than its context a call is waited for. A call that is not blocked returns within
	// that, with the reason.
	abandonGrace = 10 * time.Millisecond
	// stalledAfter is how long an abandoned call may go on before the connection counts as stalled. In a busy process
	// calls can be late, too.
	stalledAfter = time.Second
	// maxAbandoned bounds the abandoned calls that still run.
	maxAbandoned = 1 << 14
)

// endedContext is a context that has ended.
var endedContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// blockingCalls runs calls into nats.go that may block for longer than their context lasts. While a network silently
// accepts no data, nats.go holds the connection's lock until a write fails, which takes a minute, and it does not look
// at a context before it has the lock. So everything that uses the connection, even the question whether it is
// connected, runs in a goroutine that the caller abandons when its time is over.
type blockingCalls struct {
	// abandoned counts abandoned calls that have not returned. stuck counts those that were abandoned more than
	// stalledAfter ago.
	abandoned, stuck atomic.Int32
}

// blockingCall is one call of f.
type blockingCall struct {
	calls    *blockingCalls
	f        func()
	returned chan struct{}
	state    atomic.Int32
	panicked any
}

// The states of a call.
const (
	callAwaited int32 = iota
	callAbandoned
	callStuck
	callReturned
)

// run runs f in a goroutine and reports whether it returned before ctx ended, or shortly after. If not, f goes on without
// its caller. A panic of f is raised in the caller, which may recover it, unless f was abandoned by then.
func (b *blockingCalls) run(ctx context.Context, f func()) (returned bool) {
	call := &blockingCall{calls: b, f: f, returned: make(chan struct{})}
	go call.run()
	if !doneInTime(ctx, call.returned) && call.abandon() {
		return false
	}
	if call.panicked != nil {
		panic(call.panicked)
	}
	return true
}

func (c *blockingCall) run() {
	defer func() {
		p := recover()
		if p != nil {
			c.panicked = fmt.Sprintf("%v\n\n%s", p, debug.Stack())
		}
		close(c.returned)
		switch c.state.Swap(callReturned) {
		case callAwaited:
			return
		case callStuck:
			c.calls.stuck.Add(-1)
		}
		c.calls.abandoned.Add(-1)
		if p != nil {
			panic(p)
		}
	}()
	c.f()
}

// doneInTime waits for done until ctx has ended and abandonGrace has passed.
func doneInTime(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	timer := time.NewTimer(abandonGrace)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// abandon marks a call as abandoned. It returns false if the call has returned meanwhile.
func (c *blockingCall) abandon() bool {
	c.calls.abandoned.Add(1)
	if !c.state.CompareAndSwap(callAwaited, callAbandoned) {
		c.calls.abandoned.Add(-1)
		return false
	}
	time.AfterFunc(stalledAfter, func() {
		if c.state.CompareAndSwap(callAbandoned, callStuck) {
			c.calls.stuck.Add(1)
		}
	})
	return true
}

// full reports whether so many abandoned calls still run that no more are started.
func (b *blockingCalls) full() bool { return b.abandoned.Load() >= maxAbandoned }

// stalled reports whether the connection accepts nothing.
func (b *blockingCalls) stalled() bool { return b.stuck.Load() > 0 }
