package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sony/gobreaker/v2"
)

const (
	// maxAttempts bounds how often one batch is written again after lost races or connections.
	maxAttempts = 8
	// probeTimeout bounds a transaction that probes a store whose circuit is open.
	probeTimeout = 250 * time.Millisecond
)

// commit answers every request of the batch: from the store, or without it if that fails. The
// timeout of the transaction covers the wait for a turn too, since a store that hangs delays both.
// It also ends before the oldest request has used up its deadline, because nobody may wait for the
// request any longer.
func (e *Engine) commit(b *batch) {
	running := e.heartbeat.runningSince()
	oldest := e.failLate(b.requests, running)
	e.answerLate(b)
	until, short := e.endOf(later(b.began, running), oldest)
	defer b.endTurn()
	if e.probeTimedOut.Load() && e.breaker.State() != gobreaker.StateClosed { // do not have requests wait for a probe
		for _, r := range b.requests {
			e.skipStore(r, gobreaker.ErrOpenState)
		}
		e.answerFailed(b)
		return
	}
	err := e.writeWithRetries(b, until, short)
	if err != nil && !time.Now().Before(until) && e.heartbeat.runningSince().After(running) {
		// The process was held up, not the store.
		if errors.Is(err, ErrCommitUnknown) {
			b.failUnrepeatable(err)
		}
		err = e.writeWithRetries(b, time.Now().Add(e.txnTimeout()), false)
	}
	if err != nil {
		b.fail(err)
	}
	e.answerFailed(b)
}

// endOf returns when a transaction that began then has to end, for which a request waits since oldest.
// short says that a store that works gets less than its usual time.
func (e *Engine) endOf(began, oldest time.Time) (until time.Time, short bool) {
	usual := began.Add(e.txnTimeout())
	until = earlier(usual, oldest.Add(e.cfg.Deadline*15/16))
	return until, e.storeHealthy() && until.Before(usual)
}

// contextUntil returns a context whose cause tells a short end from another.
func contextUntil(end time.Time, short bool) (context.Context, context.CancelFunc) {
	why := context.DeadlineExceeded
	if short {
		why = errShortTimeout
	}
	return context.WithDeadlineCause(context.Background(), end, why)
}

// skipStore has a request answered without any transaction, because of why. Leases that it was to
// settle stay with the worker until the next sweep.
func (e *Engine) skipStore(r *Request, why error) {
	r.err = why
	if r.Verb == returnLeases || r.Verb == renewLeases {
		e.leases.settleFailed(r)
	}
}

// maxWait is how long a request may wait until its transaction begins. It leaves the transaction
// enough of the deadline: otherwise, in a flood, transactions would run out of time and a store
// that works would seem to fail.
func (e *Engine) maxWait() time.Duration {
	left := e.cfg.Deadline*59/64 - time.Duration(e.typicalTxn.Load())
	return min(e.cfg.Deadline*3/4, max(left, e.cfg.Deadline/4))
}

// TooLate reports whether a request that arrived then, and was not submitted yet, has waited too
// long already: it should get ErrOverloaded, and need not even be read. The other half of what it
// may wait is for the queue. While the store fails no request is too late, because it gets an answer
// without the store.
func (e *Engine) TooLate(received time.Time) bool {
	now, most := time.Now(), max(e.maxWait()/2, e.cfg.Deadline/4)
	return now.Sub(received) > most && now.Sub(later(received, e.heartbeat.runningSince())) > most && e.storeHealthy()
}

// failLate fails the requests that have waited too long, and returns the time since when the oldest of
// the others waits; now if there are none. running is since when the process has run without a stall:
// earlier waiting does not count.
func (e *Engine) failLate(rs []*Request, running time.Time) (oldest time.Time) {
	now, most, why := time.Now(), e.maxWait(), e.lateError()
	oldest = now
	for _, r := range rs {
		if r.Verb.internal() {
			continue
		}
		since := later(r.Received.Add(-r.Waited), running)
		if waited := now.Sub(since); waited > most {
			r.err = fmt.Errorf("waited %s: %w", waited.Round(time.Millisecond), why)
			continue
		}
		oldest = earlier(oldest, since)
	}
	return oldest
}

// answerLate hands out the answers to requests that waited too long, before the transaction of the
// others begins.
func (e *Engine) answerLate(b *batch) {
	if !slices.ContainsFunc(b.requests, func(r *Request) bool { return r.err != nil }) {
		return
	}
	late, kept := e.newBatch(), b.requests[:0]
	for _, r := range b.requests {
		if r.err == nil {
			kept = append(kept, r)
			continue
		}
		e.answerWithoutStore(r)
		late.requests = append(late.requests, r)
	}
	b.requests = kept
	e.answers <- late
}

// answerFailed answers the requests that the store could not decide.
func (e *Engine) answerFailed(b *batch) {
	for _, r := range b.requests {
		if errors.Is(r.err, ErrCorrupt) {
			e.cfg.Observer.StoreFailed(r.err)
		}
		if r.err != nil {
			e.answerWithoutStore(r)
		}
	}
}

// txnTimeout is how long a transaction may take.
func (e *Engine) txnTimeout() time.Duration {
	if e.breaker.State() != gobreaker.StateClosed {
		return min(e.usualTimeout(), probeTimeout) // every queued request waits for a probe of a store that hangs
	}
	return e.usualTimeout()
}

// usualTimeout bounds a transaction, except for a probe that requests wait for. One that takes half
// of it takes long.
func (e *Engine) usualTimeout() time.Duration { return e.cfg.Deadline * 3 / 4 }

// writeWithRetries writes the batch, and writes it again while that may help. short says that until
// leaves less than a transaction's usual time, because requests have waited for long.
func (e *Engine) writeWithRetries(b *batch, until time.Time, short bool) error {
	ctx, cancel := contextUntil(until, short)
	defer cancel()
	if short { // in a flood the store does not hang: checkHung allows it the usual time
		until = later(until, time.Now().Add(e.txnTimeout()))
	}
	e.txnStarted(until)
	defer e.txnReturned()
	err := e.writeOnce(ctx, b)
	for attempt := 1; err != nil && attempt < maxAttempts && ctx.Err() == nil; attempt++ {
		if errors.Is(err, ErrCommitUnknown) {
			// A request with an id can be repeated; others may be charged already.
			b.failUnrepeatable(err)
		}
		if !waitToRetry(ctx, err, attempt) {
			break
		}
		err = e.writeOnce(ctx, b)
	}
	return err
}

// lateError is why a request waited too long: the store fails, or it works and there are too many
// requests.
func (e *Engine) lateError() error {
	if e.storeHealthy() {
		return ErrOverloaded
	}
	return ErrUnavailable
}

// storeHealthy reports whether the last transaction succeeded, or failed through no fault of the
// store: it lost a race, or had too little time.
func (e *Engine) storeHealthy() bool {
	return e.breaker.State() == gobreaker.StateClosed && e.breaker.Counts().ConsecutiveFailures == 0
}

// waitToRetry waits as long as the failure requires and reports whether to try again: after a lost
// race at once, after another failure a little later and only a few times, and not while the
// circuit is open.
func waitToRetry(ctx context.Context, err error, attempt int) bool {
	switch {
	case errors.Is(err, ErrConflict):
		return true
	case isCircuitOpen(err) || attempt > 3:
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Duration(attempt) * 20 * time.Millisecond):
		return true
	}
}

// errShortTimeout says that a transaction timed out because its requests had waited for long. The
// store works, and is asked for more than it can do.
var errShortTimeout = fmt.Errorf("%w: too little time was left for the transaction", ErrOverloaded)

// maxShortTimeouts is how many such timeouts in a row are ignored; after that they count as
// failures of the store.
const maxShortTimeouts = 8

// timedOutShort reports whether a transaction failed only because it had too little time. If so it
// raises typicalTxn, so that the next transactions get more of their requests' time.
func (e *Engine) timedOutShort(ctx context.Context, err error, took time.Duration) bool {
	if err == nil || ctx.Err() == nil || context.Cause(ctx) != errShortTimeout || errors.Is(err, ErrCommitUnknown) || took >= e.usualTimeout()/2 {
		return false
	}
	e.typicalTxn.Store(max(e.typicalTxn.Load(), int64(took)*5/4))
	return e.shortTimeouts.Add(1) <= maxShortTimeouts
}

// transact runs a transaction through the circuit breaker; it may have begun before.
func (e *Engine) transact(ctx context.Context, began time.Time, update func() error) error {
	probing := e.breaker.State() != gobreaker.StateClosed
	_, err := e.breaker.Execute(func() (struct{}, error) {
		err := update()
		took := time.Since(began)
		if err != nil && probing && ctx.Err() != nil {
			e.probeTimedOut.Store(true)
		}
		switch {
		case e.timedOutShort(ctx, err, took):
			return struct{}{}, errShortTimeout
		case err != nil:
			e.recordFailure(err)
		default:
			e.recordSuccess()
		}
		e.lastTimedOut.Store(err != nil && ctx.Err() != nil && took >= e.usualTimeout()/2 && !e.heartbeat.runningSince().After(began))
		return struct{}{}, err
	})
	if err != nil && !isCircuitOpen(err) && !errors.Is(err, errShortTimeout) {
		e.cfg.Observer.StoreFailed(err)
	}
	return err
}

// writeOnce decides the batch in one transaction.
func (e *Engine) writeOnce(ctx context.Context, b *batch) error {
	b.prepare()
	if len(b.pending) == 0 {
		return nil
	}
	e.leases.takeForBatch(b, e.now())
	if err := e.transact(ctx, time.Now(), func() error { return e.update(ctx, b) }); err != nil {
		if errors.Is(err, ErrCommitUnknown) {
			e.cache.invalidate(Forget{All: true})
		} else {
			e.leases.restore(b)
		}
		b.clearDecisions()
		return err
	}
	e.afterCommit(b)
	return nil
}

// update has the store run the transaction, and reads its clock.
func (e *Engine) update(ctx context.Context, b *batch) error {
	sent, read := time.Now(), time.Time{}
	turn := b.turn
	b.turn = nil
	err := e.cfg.Store.Update(ctx, Batch{Counters: b.ids, IDs: b.receiptIDs, ConsumeIDs: b.consumeIDs, Turn: turn}, func(s Snapshot) Changes {
		read = time.Now()
		// Before this transaction can prove that what is cached still holds.
		e.cache.invalidateOthers(&s.Others)
		b.generations = e.cache.generations()
		changes := b.decide(s, &e.denials, e.cfg.NewID)
		if !changes.Unsure { // else nothing is written, and decided again
			e.broadcastChanges(b)
		}
		return changes
	})
	if err != nil {
		return err
	}
	b.took = time.Since(sent)
	b.clock = &clockReading{now: b.now, ahead: b.ahead, sent: sent, received: read}
	e.clock.Store(b.clock)
	return nil
}

// broadcastChanges tells all workers which counters to forget, while nobody else can write: a
// worker that caches such a counter again has then read it after the commit. If the broadcast came
// later, one worker could deny from memory what another has already seen to be free.
func (e *Engine) broadcastChanges(b *batch) {
	for i := range b.counters {
		c := &b.counters[i]
		if !c.refunded && !c.voidsLeases && !c.freed {
			continue
		}
		e.forgetAndBroadcast(Forget{Key: c.limit.Key, Name: c.limit.Name, Freed: !c.refunded && !c.voidsLeases})
		// The batch's own invalidation must not keep it from caching what it has read.
		b.generations[e.cache.shardIndex(c.limit.CounterID)]++
	}
}

// afterCommit updates memory and measurements after a transaction was committed.
func (e *Engine) afterCommit(b *batch) {
	took := b.took
	e.cfg.Observer.Wrote(len(b.pending), len(b.ids), took)
	e.shortTimeouts.Store(0)
	if e.heartbeat.runningSince().After(b.clock.sent) {
		took = 0 // the process was held up
	}
	// A single slow transaction raises the estimate only partly; several in a row raise it further.
	if more := int64(min(took, e.cfg.Deadline)) - e.typicalTxn.Load(); more > 0 {
		e.typicalTxn.Add(more / 4)
	} else {
		e.typicalTxn.Add(more / 16)
	}
	for i := range b.counters {
		c := &b.counters[i]
		e.denials.afterCommit(c, b.now)
	}
	e.cache.afterCommit(b)
	e.leases.install(b)
	if len(b.events) > 0 {
		e.cfg.Committed()
	}
}
