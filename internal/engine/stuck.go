package engine

import (
	"errors"
	"time"

	"github.com/sony/gobreaker/v2"
)

// errStuck says that a transaction goes on though its time is over.
var errStuck = errors.New("the store does not return from a call: its disk does not answer")

// stuckAfter is how long a transaction may go on when its time is over. Requests that came with it have a little more left. PostgreSQL's
// takes 100 ms, where it asks what became of a commit.
const stuckAfter = 150 * time.Millisecond

// begins notes a transaction that is to return by until, and returns that it has.
func (e *Engine) begins(until time.Time) { e.until.Store(int64(until.Sub(e.pulse.origin))) }

func (e *Engine) returns() {
	e.until.Store(0)
	if e.stuck.Load() {
		select {
		case e.returned <- struct{}{}:
		default:
		}
	}
}

// watch finds a transaction that does not end though its time is over, as no context ends a call of the system whose disk hangs. What the
// process was held up for does not count. When the engine closes nothing is watched any more: who closes it waits for the answers before.
func (e *Engine) watch() {
	until := e.until.Load()
	end := e.pulse.origin.Add(time.Duration(until))
	if until != 0 && time.Since(later(end, e.pulse.awake())) > stuckAfter && e.stuck.CompareAndSwap(false, true) {
		e.done.Go(func() { e.answerBehind(until) })
	}
}

// answerBehind answers what waits behind the transaction whose time ended then, until that ends. Its own requests have no answer before:
// they are its.
func (e *Engine) answerBehind(until int64) {
	e.failed(errStuck)
	e.cfg.Observer.StoreFailed(errStuck)
	e.cfg.StoreFailing(errStuck)
	for e.until.Load() == until {
		select {
		case r := <-e.queue:
			e.answerStuck(r)
		case <-e.returned: // perhaps late, from another one
		}
	}
	e.stuck.Store(false)
	if e.breaker.State() == gobreaker.StateClosed {
		e.cfg.StoreFailing(nil)
	}
}

func (e *Engine) answerStuck(r *Request) {
	e.leave(r, errStuck)
	e.answerWithout(r)
	if !r.Verb.internal() {
		e.finish(r, time.Since(r.Received))
	}
}
