package limits

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// maxStuck bounds the calls that have ended and whose act has not.
	maxStuck = 256
	// tick is what an act has to end in when its time is over: what is not stuck needs far less, and knows the reason.
	tick = 10 * time.Millisecond
)

// over is a context that has ended.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// aside runs act, and tells whether it ended before ctx had ended for a tick. If not, act goes on alone, and the client counts
// it as stuck until it ends.
//
// Whatever asks the connection for something goes through here, were it only whether it is connected: where the network
// takes nothing more and does not say so, nats.go holds its lock until a write has failed, which takes a minute, and knows no
// context before that.
func (c *Client) aside(ctx context.Context, act func()) bool {
	ended := make(chan struct{})
	var oneIsThrough atomic.Bool // act, or the wait for it
	go func() {
		act()
		close(ended)
		if oneIsThrough.Swap(true) {
			c.stuck.Add(-1)
		}
	}()
	select {
	case <-ended:
		return true
	case <-ctx.Done():
	}
	timer := time.NewTimer(tick)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
	}
	c.stuck.Add(1)
	if oneIsThrough.Swap(true) {
		c.stuck.Add(-1)
		return true
	}
	return false
}
