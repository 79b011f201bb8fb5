package engine

import (
	"errors"
	"time"

	"github.com/sony/gobreaker/v2"
)

// errHung says that a transaction goes on though its time is over.
var errHung = errors.New("the store does not return from a call: its disk does not answer")

// hungAfter is how long a transaction may go on when its time is over. Requests that came with it have a little more left. PostgreSQL's
// takes 100 ms, where it asks what became of a commit.
const hungAfter = 150 * time.Millisecond

// txnStarted notes a transaction that is to return by until, and returns that it has.
func (e *Engine) txnStarted(until time.Time) {
	e.txnDeadline.Store(int64(until.Sub(e.heartbeat.origin)))
}

func (e *Engine) txnReturned() {
	e.txnDeadline.Store(0)
	if e.hung.Load() {
		select {
		case e.returned <- struct{}{}:
		default:
		}
	}
}

// checkHung finds a transaction that does not end though its time is over, as no context ends a call of the system whose disk hangs. What the
// process was held up for does not count. When the engine closes nothing is watched any more: who closes it waits for the answers before.
func (e *Engine) checkHung() {
	until := e.txnDeadline.Load()
	end := e.heartbeat.origin.Add(time.Duration(until))
	if until != 0 && time.Since(later(end, e.heartbeat.runningSince())) > hungAfter && e.hung.CompareAndSwap(false, true) {
		e.done.Go(func() { e.answerWhileHung(until) })
	}
}

// answerWhileHung answers what waits behind the transaction whose time ended then, until that ends. Its own requests have no answer before:
// they are its.
func (e *Engine) answerWhileHung(until int64) {
	e.recordFailure(errHung)
	e.cfg.Observer.StoreFailed(errHung)
	e.cfg.StoreFailing(errHung)
	for e.txnDeadline.Load() == until {
		select {
		case r := <-e.queue:
			e.answerHung(r)
		case <-e.returned: // perhaps late, from another one
		}
	}
	e.hung.Store(false)
	if e.breaker.State() == gobreaker.StateClosed {
		e.cfg.StoreFailing(nil)
	}
}

func (e *Engine) answerHung(r *Request) {
	e.skipStore(r, errHung)
	e.answerWithoutStore(r)
	if !r.Verb.internal() {
		e.finish(r, time.Since(r.Received))
	}
}
