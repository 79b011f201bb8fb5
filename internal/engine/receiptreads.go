package engine

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
)

// receiptReads holds the settles that wait until the receipt of their consume is read. Those that
// arrive during a read wait for the next, which reads for all of them.
type receiptReads struct {
	mu      sync.Mutex
	waiting []*Request
	running bool
}

// add adds a settle, unless most wait, and reports whether the caller has to start the reading.
func (x *receiptReads) add(r *Request, most int) (first bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.waiting) >= most {
		return false, ErrOverloaded
	}
	first = !x.running
	x.waiting, x.running = append(x.waiting, r), true
	return first, nil
}

// take returns up to max of the waiting settles; none ends the reading.
func (x *receiptReads) take(max int) []*Request {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := min(max, len(x.waiting))
	taken := x.waiting[:n:n]
	if x.waiting, x.running = x.waiting[n:], n > 0; len(x.waiting) == 0 {
		x.waiting = nil
	}
	return taken
}

// submitSettle takes in a settle, whose ID is that of the consume. It is queued once the receipt of
// the consume was read, which says what to settle.
func (e *Engine) submitSettle(r *Request) error {
	r.Fingerprint = sha256.Sum256(strconv.AppendInt(nil, r.Cost, 10))
	r.ID = settleID(r.ID)
	e.closing.RLock() // so that Close waits for the reading
	defer e.closing.RUnlock()
	if e.closed {
		return ErrClosed
	}
	first, err := e.receiptReads.add(r, e.cfg.Queue)
	if first {
		e.done.Go(e.readReceipts)
	}
	return err
}

// readReceipts reads until no settle waits.
func (e *Engine) readReceipts() {
	for rs := e.receiptReads.take(e.cfg.MaxBatch); len(rs) > 0; rs = e.receiptReads.take(e.cfg.MaxBatch) {
		if rs = e.refuseLate(rs); len(rs) == 0 {
			continue
		}
		receipts, err := e.consumeReceipts(rs)
		for i, r := range rs {
			failed := err
			if failed == nil {
				r.loadReservation(receipts[i])
				failed = e.enqueue(r) // after which it may be answered at any moment
			}
			if failed != nil {
				r.err = failed
				e.finish(r, time.Since(r.Received))
			}
		}
	}
}

// refuseLate answers the settles that have waited too long to be read for, and returns the others.
func (e *Engine) refuseLate(rs []*Request) []*Request {
	(&batch{requests: rs}).failLate(time.Now(), e.heartbeat.runningSince(), e.maxWait(), e.lateError())
	return slices.DeleteFunc(rs, func(r *Request) bool {
		if r.err == nil {
			return false
		}
		e.answerWithoutStore(r)
		e.finish(r, time.Since(r.Received))
		return true
	})
}

// consumeReceipts reads the receipts of the consumes that are settled. It fails at once while the
// store is known to fail.
func (e *Engine) consumeReceipts(rs []*Request) (receipts []*Receipt, err error) {
	if state := e.breaker.State(); e.hung.Load() || state == gobreaker.StateOpen || state != gobreaker.StateClosed && e.probeTimedOut.Load() {
		return nil, unavailable("read receipts", e.cause())
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.txnTimeout())
	defer cancel()
	ids := make([]string, len(rs))
	for i, r := range rs {
		ids[i] = r.ConsumeID()
	}
	err = e.transact(ctx, func() (err error) {
		receipts, err = e.cfg.Store.Receipts(ctx, ids)
		return err
	})
	if isCircuitOpen(err) {
		err = e.cause()
	}
	if err != nil {
		return nil, unavailable("read receipts", err)
	}
	return receipts, nil
}

// loadReservation reads what the settle corrects from the receipt of its consume, nil if there is
// none. A settle that cannot be made is refused, unless it was made before.
func (r *Request) loadReservation(consume *Receipt) {
	var err error
	if consume == nil {
		err = ErrUnknownID
	} else if r.consumeExpiry = consume.ExpiresAt; true {
		r.reservation, r.Limits, err = consume.reserved()
	}
	if err != nil {
		r.Refusal = fmt.Errorf("settle %q: %w", r.ConsumeID(), err)
	}
}

// reserved returns what the receipt's consume charged, and on which limits.
func (p *Receipt) reserved() (*reservation, []Limit, error) {
	a, err := p.decode()
	if err != nil {
		return nil, nil, err
	}
	if a.Reservation == nil {
		return nil, nil, ErrNothingToSettle
	}
	limits, err := a.Reservation.limits()
	return a.Reservation, limits, err
}
