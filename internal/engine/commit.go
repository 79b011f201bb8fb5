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
	oldest := b.dropLate(time.Now(), awake, e.mostWait(), e.whyLate())
	e.answerLate(b)
	full := later(b.began, awake).Add(e.patience())
	until := earlier(full, oldest.Add(e.cfg.Deadline*15/16))
	defer b.endTurn()
	if e.slow.Load() && e.breaker.State() != gobreaker.StateClosed { // else all would wait for each probe
		for _, r := range b.requests {
			e.leave(r, gobreaker.ErrOpenState)
		}
		e.answerFailed(b)
		return
	}
	err := e.persist(b, until, e.works() && until.Before(full))
	if err != nil && !time.Now().Before(until) && e.pulse.awake().After(awake) {
		// The process was held up, and not by the store.
		if errors.Is(err, ErrCommitUnknown) {
			b.keepRepeatable(err)
		}
		err = e.persist(b, time.Now().Add(e.patience()), false)
	}
	if err != nil {
		b.fail(err)
	}
	e.answerFailed(b)
}

// leave leaves a request out of every transaction, for that reason. What gives leases back comes again with the next sweep.
func (e *Engine) leave(r *Request, why error) {
	r.err = why
	if r.Verb == handBack {
		e.leases.kept(r)
	}
}

// mostWait is how long a request may have waited for its transaction to begin. What is left of its time has to do for that: in a flood
// the oldest would leave it too little, and a store that works would seem to fail.
func (e *Engine) mostWait() time.Duration {
	left := e.cfg.Deadline*59/64 - time.Duration(e.took.Load())
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
		e.answerWithout(r)
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

// persist writes the batch, and again while that may help. short says that its requests have left it less than a transaction's time.
func (e *Engine) persist(b *batch, until time.Time, short bool) error {
	why := context.DeadlineExceeded
	if short {
		why = errShort
	}
	ctx, cancel := context.WithDeadlineCause(context.Background(), until, why)
	defer cancel()
	if short { // a flood is no store that does not return: it has the time of any other
		until = later(until, time.Now().Add(e.patience()))
	}
	e.begins(until)
	defer e.returns()
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
	if e.works() {
		return ErrOverloaded
	}
	return ErrUnavailable
}

// works tells whether the last transaction did not fail, but for want of time.
func (e *Engine) works() bool {
	return e.breaker.State() == gobreaker.StateClosed && e.breaker.Counts().ConsecutiveFailures == 0
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

// errShort says that a transaction had too little time, because its requests had waited for long: of a store that works, and is asked for
// more than it can do.
var errShort = fmt.Errorf("%w: the transaction had too little of their time left", ErrOverloaded)

// shortsMost is how many such may follow each other: after that the store is taken to hang.
const shortsMost = 8

// ranShort tells whether a transaction failed for want of time alone, and has the next ones leave more of it.
func (e *Engine) ranShort(ctx context.Context, err error, took time.Duration) bool {
	if err == nil || ctx.Err() == nil || context.Cause(ctx) != errShort || errors.Is(err, ErrCommitUnknown) || took >= e.cfg.Deadline*3/8 {
		return false
	}
	e.took.Store(max(e.took.Load(), int64(took)*5/4))
	return e.shorts.Add(1) <= shortsMost
}

// transact runs a transaction through the circuit breaker.
func (e *Engine) transact(ctx context.Context, update func() error) error {
	began, probing := time.Now(), e.breaker.State() != gobreaker.StateClosed
	_, err := e.breaker.Execute(func() (struct{}, error) {
		err := update()
		if err != nil && probing && ctx.Err() != nil {
			e.slow.Store(true)
		}
		switch {
		case e.ranShort(ctx, err, time.Since(began)):
			return struct{}{}, errShort
		case err != nil:
			e.failed(err)
		default:
			e.succeeded()
		}
		e.hangs.Store(err != nil && ctx.Err() != nil && time.Since(began) >= e.cfg.Deadline*3/8 && !e.pulse.awake().After(began))
		return struct{}{}, err
	})
	if err != nil && !isOpen(err) && !errors.Is(err, errShort) {
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
	b.clock = &reading{now: b.now, ahead: b.ahead, sent: sent, received: time.Now()}
	e.clock.Store(b.clock)
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
	took := b.clock.received.Sub(b.clock.sent)
	e.cfg.Observer.Wrote(len(b.pending), len(b.ids), took)
	e.shorts.Store(0)
	if e.pulse.awake().After(b.clock.sent) {
		took = 0 // the process was held up
	}
	// One that is slow for once says little; slow ones that follow each other say more.
	if more := int64(min(took, e.cfg.Deadline)) - e.took.Load(); more > 0 {
		e.took.Add(more / 4)
	} else {
		e.took.Add(more / 16)
	}
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
