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
	// maxAttempts bounds how often one batch is written anew after losing races or connections.
	maxAttempts = 8
	// probeTimeout bounds the transaction that tries a store whose circuit is open.
	probeTimeout = 250 * time.Millisecond
)

func (e *Engine) newBatch() *batch {
	select {
	case b := <-e.spare:
		return b
	default:
		return newBatch()
	}
}

func (e *Engine) reuse(b *batch) {
	b.clear()
	select {
	case e.spare <- b:
	default:
	}
}

// storeDenials stores the denials that only this worker remembers, when it goes.
func (e *Engine) storeDenials() {
	for _, r := range e.denials.all() {
		b := e.newBatch()
		b.closing, b.began = true, time.Now()
		b.add(r)
		e.commit(b)
	}
}

// commit answers every request of the batch: from the store, or, where that fails, without it. The time to wait for a turn
// is part of the patience: a store that hangs has both wait. So is, when it gets long, the time that requests have waited for the
// transaction before: each is answered before its deadline, since nobody may wait for it any longer.
func (e *Engine) commit(b *batch) {
	awake := e.heartbeat.runningSince()
	oldest := b.failLate(time.Now(), awake, e.maxWait(), e.lateError())
	e.answerLate(b)
	full := later(b.began, awake).Add(e.txnTimeout())
	until := earlier(full, oldest.Add(e.cfg.Deadline*15/16))
	defer b.endTurn()
	if e.probeTimedOut.Load() && e.breaker.State() != gobreaker.StateClosed { // else all would wait for each probe
		for _, r := range b.requests {
			e.skipStore(r, gobreaker.ErrOpenState)
		}
		e.answerFailed(b)
		return
	}
	err := e.writeWithRetries(b, until, e.storeHealthy() && until.Before(full))
	if err != nil && !time.Now().Before(until) && e.heartbeat.runningSince().After(awake) {
		// The process was held up, and not by the store.
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

// skipStore leaves a request out of every transaction, for that reason. What gives leases back comes again with the next sweep.
func (e *Engine) skipStore(r *Request, why error) {
	r.err = why
	if r.Verb == returnLeases {
		e.leases.returnFailed(r)
	}
}

// maxWait is how long a request may have waited for its transaction to begin. What is left of its time has to do for that: in a flood
// the oldest would leave it too little, and a store that works would seem to fail.
func (e *Engine) maxWait() time.Duration {
	left := e.cfg.Deadline*59/64 - time.Duration(e.typicalTxn.Load())
	return min(e.cfg.Deadline*3/4, max(left, e.cfg.Deadline/4))
}

// answerLate hands out the answers to requests that have waited too long, before the transaction of the others.
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

// answerFailed answers what could not be decided, as well as that goes.
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
	most := e.cfg.Deadline * 3 / 4
	if e.breaker.State() != gobreaker.StateClosed {
		most = min(most, probeTimeout) // all that wait pay for a probe of a store that hangs
	}
	return most
}

// writeWithRetries writes the batch, and again while that may help. short says that its requests have left it less than a transaction's time.
func (e *Engine) writeWithRetries(b *batch, until time.Time, short bool) error {
	why := context.DeadlineExceeded
	if short {
		why = errShortTimeout
	}
	ctx, cancel := context.WithDeadlineCause(context.Background(), until, why)
	defer cancel()
	if short { // a flood is no store that does not return: it has the time of any other
		until = later(until, time.Now().Add(e.txnTimeout()))
	}
	e.txnStarted(until)
	defer e.txnReturned()
	err := e.writeOnce(ctx, b)
	for attempt := 1; err != nil && attempt < maxAttempts && ctx.Err() == nil; attempt++ {
		if errors.Is(err, ErrCommitUnknown) {
			// What carries an id can be asked again; the rest may be charged already.
			b.failUnrepeatable(err)
		}
		if !e.waitToRetry(ctx, err, attempt) {
			break
		}
		err = e.writeOnce(ctx, b)
	}
	return err
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// lateError is why a request waits too long: the store fails, or it does all it can, and there is more than that.
func (e *Engine) lateError() error {
	if e.storeHealthy() {
		return ErrOverloaded
	}
	return ErrUnavailable
}

// storeHealthy tells whether the last transaction did not fail, but for want of time.
func (e *Engine) storeHealthy() bool {
	return e.breaker.State() == gobreaker.StateClosed && e.breaker.Counts().ConsecutiveFailures == 0
}

// endTurn gives a turn back that no transaction took.
func (b *batch) endTurn() {
	if b.turn != nil {
		b.turn.End()
		b.turn = nil
	}
}

// waitToRetry waits as long as the failure asks for and tells whether to go on: a lost race at once, a failing store
// a little later and only a few times, one whose circuit is open not at all.
func (e *Engine) waitToRetry(ctx context.Context, err error, attempt int) bool {
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

// errShortTimeout says that a transaction had too little time, because its requests had waited for long: of a store that works, and is asked for
// more than it can do.
var errShortTimeout = fmt.Errorf("%w: the transaction had too little of their time left", ErrOverloaded)

// maxShortTimeouts is how many such may follow each other: after that the store is taken to hang.
const maxShortTimeouts = 8

// timedOutShort tells whether a transaction failed for want of time alone, and has the next ones leave more of it.
func (e *Engine) timedOutShort(ctx context.Context, err error, took time.Duration) bool {
	if err == nil || ctx.Err() == nil || context.Cause(ctx) != errShortTimeout || errors.Is(err, ErrCommitUnknown) || took >= e.cfg.Deadline*3/8 {
		return false
	}
	e.typicalTxn.Store(max(e.typicalTxn.Load(), int64(took)*5/4))
	return e.shortTimeouts.Add(1) <= maxShortTimeouts
}

// transact runs a transaction through the circuit breaker.
func (e *Engine) transact(ctx context.Context, update func() error) error {
	began, probing := time.Now(), e.breaker.State() != gobreaker.StateClosed
	_, err := e.breaker.Execute(func() (struct{}, error) {
		err := update()
		if err != nil && probing && ctx.Err() != nil {
			e.probeTimedOut.Store(true)
		}
		switch {
		case e.timedOutShort(ctx, err, time.Since(began)):
			return struct{}{}, errShortTimeout
		case err != nil:
			e.recordFailure(err)
		default:
			e.recordSuccess()
		}
		e.lastTimedOut.Store(err != nil && ctx.Err() != nil && time.Since(began) >= e.cfg.Deadline*3/8 && !e.heartbeat.runningSince().After(began))
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
	if err := e.transact(ctx, func() error { return e.update(ctx, b) }); err != nil {
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
	sent := time.Now()
	turn := b.turn
	b.turn = nil
	err := e.cfg.Store.Update(ctx, Batch{Counters: b.ids, IDs: b.receiptIDs, Turn: turn}, func(s Snapshot) Changes {
		// Before the transaction can renew what is remembered.
		e.cache.invalidateOthers(&s.Others)
		b.generations = e.cache.generations()
		changes := b.decide(s, &e.denials, e.cfg.NewID)
		e.broadcastChanges(b)
		return changes
	})
	if err != nil {
		return err
	}
	b.clock = &clockReading{now: b.now, ahead: b.ahead, sent: sent, received: time.Now()}
	e.clock.Store(b.clock)
	return nil
}

// broadcastChanges tells all workers of refunds, and of what else voids what they know, while nobody else can write: whoever
// remembers such a counter again has read it after the commit. Told later, a worker could deny from memory what another
// has seen to be free.
func (e *Engine) broadcastChanges(b *batch) {
	for i := range b.counters {
		c := &b.counters[i]
		if !c.refunded && !c.voidsLeases && !c.freed {
			continue
		}
		e.forgetAndBroadcast(Forget{Key: c.limit.Key, Freed: !c.refunded && !c.voidsLeases})
		// What the batch itself has forgotten does not keep it from remembering what it has read.
		b.generations[e.cache.shard(c.limit.CounterID)]++
	}
}

// afterCommit does what follows from a transaction that stands.
func (e *Engine) afterCommit(b *batch) {
	took := b.clock.received.Sub(b.clock.sent)
	e.cfg.Observer.Wrote(len(b.pending), len(b.ids), took)
	e.shortTimeouts.Store(0)
	if e.heartbeat.runningSince().After(b.clock.sent) {
		took = 0 // the process was held up
	}
	// One that is slow for once says little; slow ones that follow each other say more.
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
