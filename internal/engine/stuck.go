package engine

import (
	"errors"
	"time"
)

// errStuck says that a transaction goes on though its time is over.
var errStuck = errors.New("the store does not return from a call: its disk does not answer")

// stuckAfter is how long a transaction may go on when its time is over. Requests that came with it have a little more left.
const stuckAfter = 150 * time.Millisecond

// watch finds a transaction that does not end though its time is over, as no context ends a call of the system whose disk hangs.
func (e *Engine) watch() {
	until := e.until.Load()
	end := e.pulse.origin.Add(time.Duration(until))
	if until != 0 && time.Since(end) > stuckAfter && e.pulse.awake().Before(end) && e.stuck.CompareAndSwap(false, true) {
		e.done.Go(func() { e.answerBehind(until) })
	}
}

// answerBehind answers what waits behind the transaction whose time ended then, until that ends. Its own requests have no answer before:
// they are its.
func (e *Engine) answerBehind(until int64) {
	e.failed(errStuck)
	e.cfg.Observer.StoreFailed(errStuck)
	e.cfg.StoreFailing(errStuck)
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for e.until.Load() == until {
		select {
		case r := <-e.queue:
			e.answerStuck(r)
		case <-tick.C:
		}
	}
	e.stuck.Store(false)
	if e.Failure() == nil {
		e.cfg.StoreFailing(nil)
	}
}

func (e *Engine) answerStuck(r *Request) {
	if r.Verb == handBack {
		e.leases.kept(r)
	}
	r.err = errStuck
	e.answerWithout(r)
	if !r.Verb.internal() {
		e.finish(r, time.Since(r.received))
	}
}
