package engine

import (
	"context"
	"errors"
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

// keepDenials stores the denials that only this worker remembers, when it goes.
func (e *Engine) keepDenials() {
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
	awake := e.pulse.awake()
	oldest := b.dropLate(time.Now(), awake, e.cfg.Deadline*3/4, e.whyLate())
	until := earlier(later(b.began, awake).Add(e.patience()), oldest.Add(e.cfg.Deadline*15/16))
	defer b.endTurn()
	err := e.persist(b, until)
	if err != nil && !time.Now().Before(until) && e.pulse.awake().After(awake) {
		// The process was held up, and not by the store.
		if errors.Is(err, ErrCommitUnknown) {
			b.keepRepeatable(err)
		}
		err = e.persist(b, time.Now().Add(e.patience()))
	}
	if err != nil {
		b.fail(err)
	}
	for _, r := range b.requests {
		if errors.Is(r.err, ErrCorrupt) {
			e.cfg.Observer.StoreFailed(r.err)
		}
		if r.err != nil {
			e.answerWithout(r)
		}
	}
}

// patience is how long a transaction may take.
func (e *Engine) patience() time.Duration {
	most := e.cfg.Deadline * 3 / 4
	if e.breaker.State() != gobreaker.StateClosed {
		most = min(most, probeTimeout) // all that wait pay for a probe of a store that hangs
	}
	return most
}

// persist writes the batch, and again while that may help.
func (e *Engine) persist(b *batch, until time.Time) error {
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	err := e.write(ctx, b)
	for attempt := 1; err != nil && attempt < maxAttempts && ctx.Err() == nil; attempt++ {
		if errors.Is(err, ErrCommitUnknown) {
			// What carries an id can be asked again; the rest may be charged already.
			b.keepRepeatable(err)
		}
		if !e.mayRetry(ctx, err, attempt) {
			break
		}
		err = e.write(ctx, b)
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

// whyLate is why a request waits too long: the store fails, or it does all it can, and there is more than that.
func (e *Engine) whyLate() error {
	if e.breaker.State() == gobreaker.StateClosed && e.breaker.Counts().ConsecutiveFailures == 0 {
		return ErrOverloaded
	}
	return ErrUnavailable
}

// endTurn gives a turn back that no transaction took.
func (b *batch) endTurn() {
	if b.turn != nil {
		b.turn.End()
		b.turn = nil
	}
}

// mayRetry waits as long as the failure asks for and tells whether to go on: a lost race at once, a failing store
// a little later and only a few times, one whose circuit is open not at all.
func (e *Engine) mayRetry(ctx context.Context, err error, attempt int) bool {
	switch {
	case errors.Is(err, ErrConflict):
		return true
	case isOpen(err) || attempt > 3:
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Duration(attempt) * 20 * time.Millisecond):
		return true
	}
}

// transact runs a transaction through the circuit breaker.
func (e *Engine) transact(ctx context.Context, update func() error) error {
	began := time.Now()
	_, err := e.breaker.Execute(func() (struct{}, error) {
		err := update()
		if err != nil {
			e.failed(err)
		} else {
			e.succeeded()
		}
		e.hangs.Store(err != nil && ctx.Err() != nil && time.Since(began) >= e.cfg.Deadline*3/8 && !e.pulse.awake().After(began))
		return struct{}{}, err
	})
	if err != nil && !isOpen(err) {
		e.cfg.Observer.StoreFailed(err)
	}
	return err
}

// write decides the batch in one transaction.
func (e *Engine) write(ctx context.Context, b *batch) error {
	b.prepare()
	if len(b.pending) == 0 {
		return nil
	}
	e.leases.take(b, e.now())
	if err := e.transact(ctx, func() error { return e.update(ctx, b) }); err != nil {
		if errors.Is(err, ErrCommitUnknown) {
			e.exhausted.forget(Forget{All: true})
		} else {
			e.leases.restore(b)
		}
		b.undecide()
		return err
	}
	e.committed(b)
	return nil
}

// update has the store run the transaction, and reads its clock.
func (e *Engine) update(ctx context.Context, b *batch) error {
	sent := time.Now()
	turn := b.turn
	b.turn = nil
	err := e.cfg.Store.Update(ctx, Batch{Counters: b.ids, IDs: b.receiptIDs, Turn: turn}, func(s Snapshot) Changes {
		// Before the transaction can renew what is remembered.
		e.exhausted.forgetOthers(&s.Others)
		b.generations = e.exhausted.generations()
		changes := b.decide(s, &e.denials, e.cfg.NewID)
		e.forgetChanged(b)
		return changes
	})
	if err != nil {
		return err
	}
	b.clock = reading{now: b.now, ahead: b.ahead, sent: sent, received: time.Now()}
	clock := b.clock
	e.clock.Store(&clock)
	return nil
}

// forgetChanged tells all workers of refunds, and of what else voids what they know, while nobody else can write: whoever
// remembers such a counter again has read it after the commit. Told later, a worker could deny from memory what another
// has seen to be free.
func (e *Engine) forgetChanged(b *batch) {
	for i := range b.counters {
		c := &b.counters[i]
		if !c.refunded && !c.void && !c.freed {
			continue
		}
		e.forgetEverywhere(Forget{Key: c.limit.Key, Freed: !c.refunded && !c.void})
		// What the batch itself has forgotten does not keep it from remembering what it has read.
		b.generations[e.exhausted.shard(c.limit.CounterID)]++
	}
}

// committed does what follows from a transaction that stands.
func (e *Engine) committed(b *batch) {
	e.cfg.Observer.Wrote(len(b.pending), len(b.ids), b.clock.received.Sub(b.clock.sent))
	for i := range b.counters {
		c := &b.counters[i]
		e.denials.settle(c, b.now)
	}
	e.exhausted.committed(b)
	e.leases.install(b)
	if len(b.events) > 0 {
		e.cfg.Committed()
	}
}
