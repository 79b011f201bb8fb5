package engine

import (
	"context"
	"slices"
	"sync"

	"github.com/sony/gobreaker/v2"
)

// receiptReads batches the receipt lookups of settles: those that arrive while one transaction
// reads wait for the next, which reads for all of them.
type receiptReads struct {
	mu      sync.Mutex
	waiting []*receiptRead
	running bool
}

// receiptRead asks for two receipts; done is closed when they were read. abandoned, guarded by
// receiptReads.mu, says that nobody waits for them any more.
type receiptRead struct {
	ids       [2]string
	found     [2]*Receipt
	err       error
	done      chan struct{}
	abandoned bool
}

// add adds a lookup, and reports whether the caller has to start the reading.
func (x *receiptReads) add(q *receiptRead) (first bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	first = !x.running
	x.waiting, x.running = append(x.waiting, q), true
	return first
}

// take returns up to max of the waiting lookups; none ends the reading.
func (x *receiptReads) take(max int) []*receiptRead {
	x.mu.Lock()
	defer x.mu.Unlock()
	live := slices.DeleteFunc(x.waiting, func(q *receiptRead) bool { return q.abandoned })
	n := min(max, len(live))
	x.waiting, x.running = live[n:], n > 0
	return live[:n:n]
}

func (x *receiptReads) abandon(q *receiptRead) {
	x.mu.Lock()
	defer x.mu.Unlock()
	q.abandoned = true
}

// findReceipts reads two receipts. It fails at once while the store is known to fail, and otherwise
// waits no longer than a transaction may take.
func (e *Engine) findReceipts(ctx context.Context, first, second string) (a, b *Receipt, err error) {
	if state := e.breaker.State(); e.hung.Load() || state == gobreaker.StateOpen || state != gobreaker.StateClosed && e.probeTimedOut.Load() {
		return nil, nil, unavailable("read receipts", e.cause())
	}
	ctx, cancel := context.WithTimeout(ctx, e.txnTimeout())
	defer cancel()
	q := &receiptRead{ids: [2]string{first, second}, done: make(chan struct{})}
	if e.receiptReads.add(q) {
		go func() {
			for qs := e.receiptReads.take(e.cfg.MaxBatch); len(qs) > 0; qs = e.receiptReads.take(e.cfg.MaxBatch) {
				e.readReceipts(qs)
			}
		}()
	}
	select {
	case <-q.done:
		return q.found[0], q.found[1], q.err
	case <-ctx.Done():
		e.receiptReads.abandon(q)
		return nil, nil, unavailable("read receipts", ctx.Err())
	}
}

// readReceipts reads receipts in a transaction that writes nothing.
func (e *Engine) readReceipts(qs []*receiptRead) {
	ctx, cancel := context.WithTimeout(context.Background(), e.txnTimeout())
	defer cancel()
	var ids []string
	for _, q := range qs {
		ids = append(ids, q.ids[:]...)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	err := e.transact(ctx, func() error {
		return e.cfg.Store.Update(ctx, Batch{IDs: ids}, func(s Snapshot) Changes {
			e.cache.invalidateOthers(&s.Others)
			for _, q := range qs {
				for i, id := range q.ids {
					at, _ := slices.BinarySearch(ids, id)
					q.found[i] = s.Receipts[at]
				}
			}
			return Changes{}
		})
	})
	if isCircuitOpen(err) {
		err = e.cause()
	}
	for _, q := range qs {
		if err != nil {
			q.err = unavailable("read receipts", err)
		}
		close(q.done)
	}
}
