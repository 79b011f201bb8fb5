package engine

import (
	"context"
	"crypto/sha256"
	"errors"
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
	// hanging is closed when a read ends that has run past its deadline; nil for none.
	hanging chan struct{}
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
		rs, oldest := e.refuseLate(rs)
		if len(rs) == 0 {
			continue
		}
		receipts, err := e.consumeReceipts(rs, oldest)
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

// refuseLate answers the settles that have waited too long to be read for, and returns the others and
// the time since when the oldest of them waits.
func (e *Engine) refuseLate(rs []*Request) (kept []*Request, oldest time.Time) {
	oldest = e.failLate(rs, e.heartbeat.runningSince())
	return slices.DeleteFunc(rs, func(r *Request) bool {
		if r.err == nil {
			return false
		}
		e.answerWithoutStore(r)
		e.finish(r, time.Since(r.Received))
		return true
	}), oldest
}

// consumeReceipts reads the receipts of the consumes that are settled, in time for the one that waits
// since oldest. It fails at once while the store is known to fail.
//
// A read that fails is a failure of the store. One that succeeds says nothing: a store may be readable
// and not writable, and a lock that all transactions wait for does not hold up a read.
func (e *Engine) consumeReceipts(rs []*Request, oldest time.Time) ([]*Receipt, error) {
	const act = "read receipts"
	if state := e.breaker.State(); e.hung.Load() || state == gobreaker.StateOpen || state != gobreaker.StateClosed && e.probeTimedOut.Load() {
		return nil, unavailable(act, e.cause())
	}
	began := time.Now()
	ctx, cancel := contextUntil(e.endOf(began, oldest))
	defer cancel()
	ids := make([]string, len(rs))
	for i, r := range rs {
		ids[i] = r.ConsumeID()
	}
	receipts, err := e.receiptReads.read(ctx, e.cfg.Store, ids)
	switch {
	case errors.Is(err, errReadHangs): // which has failed already
	case err != nil:
		if err = e.transact(ctx, began, func() error { return err }); isCircuitOpen(err) {
			err = e.cause()
		}
	}
	if err != nil {
		return nil, unavailable(act, err)
	}
	return receipts, nil
}

// errReadHangs says that nothing was read, because an earlier read still runs after its deadline.
var errReadHangs = fmt.Errorf("%w (a read)", errHung)

// read reads receipts. It does not wait for a read that runs past its deadline, see hung.go, nor begin
// another one beside it. Only one goroutine may call it.
func (x *receiptReads) read(ctx context.Context, store Store, ids []string) ([]*Receipt, error) {
	if x.hanging != nil {
		select {
		case <-x.hanging:
			x.hanging = nil
		default:
			return nil, errReadHangs
		}
	}
	var receipts []*Receipt
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		receipts, err = store.Receipts(ctx, ids)
	}()
	select {
	case <-done:
		return receipts, err
	case <-ctx.Done():
	}
	select {
	case <-done:
		return receipts, err
	case <-time.After(hungAfter):
		x.hanging = done
		return nil, errHung
	}
}

// loadReservation reads what the settle corrects from the receipt of its consume, nil if there is
// none. A settle that cannot be made is refused, unless it was made before.
func (r *Request) loadReservation(consume *Receipt) {
	err := ErrUnknownID
	if consume != nil {
		r.consumeExpiry = consume.ExpiresAt
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
