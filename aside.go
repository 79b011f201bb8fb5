package limits

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"
)

const (
	// grace is what an act has to end in when its time is over: what does not hang needs far less, and knows the reason.
	grace = 10 * time.Millisecond
	// hangsAfter is how long an act may go on alone before the connection is taken to hang. A busy process may be late, too.
	hangsAfter = time.Second
	// maxAlone bounds the acts that go on alone.
	maxAlone = 1 << 14
)

// over is a context that has ended.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// alone counts the acts that go on though nobody waits for them any more, and those among them that hang.
type alone struct{ all, hanging atomic.Int32 }

// The states of an act.
const (
	awaited int32 = iota
	leftAlone
	hanging
	ended
)

// aside runs act, and tells whether it ended before ctx had ended, or shortly after. If not, act goes on alone. A panic of act
// is one of the caller, who may recover it, unless act was alone by then.
//
// Whatever asks the connection for something goes through here, were it only whether it is connected: where the network
// takes nothing more and does not say so, nats.go holds its lock until a write has failed, which takes a minute, and knows no
// context before that.
func (a *alone) aside(ctx context.Context, act func()) bool {
	done := make(chan struct{})
	var state atomic.Int32
	var panicked any
	go func() {
		defer func() {
			p := recover()
			if p != nil {
				panicked = fmt.Sprintf("%v\n\n%s", p, debug.Stack())
			}
			close(done)
			switch state.Swap(ended) {
			case awaited:
				return
			case hanging:
				a.hanging.Add(-1)
			}
			a.all.Add(-1)
			if p != nil {
				panic(p)
			}
		}()
		act()
	}()
	if !inTime(ctx, done) && a.leave(&state) {
		return false
	}
	if panicked != nil {
		panic(panicked)
	}
	return true
}

// inTime waits for done until ctx has ended, and a little longer.
func inTime(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// leave leaves an act alone unless it has ended.
func (a *alone) leave(state *atomic.Int32) bool {
	a.all.Add(1)
	if !state.CompareAndSwap(awaited, leftAlone) {
		a.all.Add(-1)
		return false
	}
	time.AfterFunc(hangsAfter, func() {
		if state.CompareAndSwap(leftAlone, hanging) {
			a.hanging.Add(1)
		}
	})
	return true
}

// full tells whether too much waits for the connection already.
func (a *alone) full() bool { return a.all.Load() >= maxAlone }

// hangs tells whether the connection takes nothing.
func (a *alone) hangs() bool { return a.hanging.Load() > 0 }
