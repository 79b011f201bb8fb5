package engine

import (
	"errors"
	"time"

	"github.com/sony/gobreaker/v2"
)

// errHung says that a transaction still runs after its deadline.
var errHung = errors.New("a call to the store is stuck: its disk does not respond")

// hungAfter is how long a transaction may run past its deadline. The requests that came with it
// have a little more time left. The PostgreSQL store takes up to 100 ms past the deadline when it
// asks what became of a commit.
const hungAfter = 150 * time.Millisecond

// txnStarted notes that a transaction has begun and should end by until; txnReturned that it has ended.
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

// checkHung detects a transaction that does not end at its deadline: a context cannot end a system
// call on a disk that hangs. Time in which the process itself was held up does not count. There are
// no checks while the engine closes, since Close waits for all answers.
func (e *Engine) checkHung() {
	until := e.txnDeadline.Load()
	end := e.heartbeat.origin.Add(time.Duration(until))
	if until != 0 && time.Since(later(end, e.heartbeat.runningSince())) > hungAfter && e.hung.CompareAndSwap(false, true) {
		e.done.Go(func() { e.answerWhileHung(until) })
	}
}

// answerWhileHung answers queued requests without the store, until the transaction with that
// deadline ends. The requests of the transaction itself get no answer before it ends, because it
// still uses them.
func (e *Engine) answerWhileHung(until int64) {
	e.recordFailure(errHung)
	e.cfg.Observer.StoreFailed(errHung)
	e.cfg.StoreFailing(errHung)
	for e.txnDeadline.Load() == until {
		select {
		case r := <-e.queue:
			e.skipStore(e.dequeued(r), errHung)
			e.answerWithoutStore(r)
			e.finish(r, time.Since(r.Received))
		case <-e.returned: // the value may be an older transaction's
		}
	}
	e.hung.Store(false)
	if e.breaker.State() == gobreaker.StateClosed {
		e.cfg.StoreFailing(nil)
	}
}
