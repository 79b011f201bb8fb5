package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/seed503877ad/limits/internal/engine"
)

// The statements of a decision, as indexes into decisionSQL.
const (
	stBegin = iota
	stTurn
	stReadJournal
	stReadWholeJournal
	stReadCounters
	stReadReceipts
	stNextMillisecond
	stAppend
	stDeleteReceipts
	stInsertReceipts
	stInsertEvents
	stDeleteCounters
	stUpdateCounters
	stFoldCounters
	stDeleteJournal
	stCommit
)

const (
	// Read committed, whatever the default of the database: each statement must see what was
	// committed while the transaction waited for its turn.
	beginSQL  = `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`
	commitSQL = `COMMIT`
	// Not now(), which is the start of the transaction, before its turn.
	clockSQL = `SELECT clock_timestamp()`
)

// decisionSQL is prepared on every connection of the pool.
var decisionSQL = [...]string{
	stBegin:            beginSQL,
	stTurn:             turnSQL,
	stReadJournal:      readJournalSQL,
	stReadWholeJournal: readWholeJournalSQL,
	stReadCounters:     readCountersSQL,
	stReadReceipts:     readReceiptsSQL,
	stNextMillisecond:  nextMillisecondSQL,
	stAppend:           appendSQL,
	stDeleteReceipts:   deleteReceiptsSQL,
	stInsertReceipts:   insertReceiptsSQL,
	stInsertEvents:     insertEventsSQL,
	stDeleteCounters:   deleteCountersSQL,
	stUpdateCounters:   updateCountersSQL,
	stFoldCounters:     foldCountersSQL,
	stDeleteJournal:    deleteJournalSQL,
	stCommit:           commitSQL,
}

// errStale says that the journal or the clock was not as the optimistic decision assumed, and that
// nothing was written.
var errStale = errors.New("another process has written to the journal")

// errRowCount says that a statement wrote another number of rows than expected.
var errRowCount = errors.New("unexpected number of rows written")

// errUnsure says that a decision depends on the exact time within its range, and that nothing was
// written.
var errUnsure = errors.New("the decision depends on the exact time")

// moment is when a decision is made, by the server's clock in Unix milliseconds. If until is 0, it
// is made at now. Otherwise it is made at some time from now to latest, and until is the end of the
// range.
type moment struct{ now, latest, until int64 }

// planner decides over s.rows what the transaction writes; nil for nothing.
type planner func(t *tx, at moment) (*draft, error)

// backoff makes transactions take their turn without an optimistic attempt after one that failed:
// twice as many after each failure in a row. skips counts them down, from length the last time.
type backoff struct{ skips, length int }

const maxBackoff = 64

func (b *backoff) failed() {
	b.length = min(max(1, 2*b.length), maxBackoff)
	b.skips = b.length
}

// skip reports whether the next transaction is to take its turn.
func (b *backoff) skip() bool {
	if b.skips == 0 {
		return false
	}
	b.skips--
	return true
}

// draft is what a transaction is going to write.
type draft struct {
	ids     []engine.CounterID
	rows    []*row // of ids; nil for a counter that is not stored
	changes engine.Changes
	// removed are counters to remove. reset says that they may be made again at once.
	removed []engine.CounterID
	reset   bool
	// foldRows is how many dirty rows to fold. foldOnly makes folding a reason to commit by itself.
	foldRows int
	foldOnly bool
	// soleWriter says that no other process has written since this one did.
	soleWriter bool
}

func (d *draft) empty() bool {
	c := &d.changes
	return len(c.Counters)+len(c.Receipts)+len(c.Events)+len(d.removed) == 0 && !d.foldOnly
}

// Update implements [engine.Store]. Transactions of a process run one after another.
//
// If the connection turns out to be dead before anything was written, or its prepared statements to
// be outdated, Update discards all idle connections and runs the transaction once more. So no
// decision fails only because the pool still holds connections from before a restart or a change of
// the schema.
func (s *Store) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	decide = s.others.Hand(decide)
	plan := func(t *tx, at moment) (*draft, error) {
		s.states = s.states[:0]
		for _, r := range s.rows {
			s.states = append(s.states, r.snapshotState())
		}
		changes := decide(engine.Snapshot{
			Now: at.now, Latest: at.latest, Until: at.until, States: s.states,
			Receipts: t.receipts[:len(b.IDs)], ConsumeReceipts: t.receipts[len(b.IDs):],
		})
		d := &draft{ids: b.Counters, rows: s.rows, changes: changes, foldRows: s.foldPolicy.Due(s.dirtyStats(), len(changes.Counters))}
		return d, d.check()
	}
	if t, ok := b.Turn.(*turn); ok && t.s == s {
		return t.write(ctx, b, plan)
	}
	release, err := acquire(ctx, s.writeLock)
	if err != nil {
		return fmt.Errorf("wait for the previous transaction: %w", err)
	}
	defer release()
	s.cache.evict()
	if tried, err := s.updateOptimistically(ctx, b, decide); tried {
		return s.resolveInDoubt(ctx, err)
	}
	return s.resolveInDoubt(ctx, s.runInTurn(ctx, b, plan))
}

// snapshotState returns the state for a snapshot, where nil means that the counter is not stored.
func (r *row) snapshotState() []byte {
	switch {
	case r == nil:
		return nil
	case r.state == nil:
		return []byte{}
	}
	return r.state
}

// check returns an error if the changes cannot be written.
func (d *draft) check() error {
	for i := range d.changes.Counters {
		c := &d.changes.Counters[i]
		if c.Slot < 0 || c.Slot >= len(d.ids) {
			return fmt.Errorf("write counters: slot %d is out of range for %d counters", c.Slot, len(d.ids))
		}
		if d.rows[c.Slot] == nil && c.Spec == nil {
			return fmt.Errorf("write counters: counter %q %q is new and has no spec", d.ids[c.Slot].Key, d.ids[c.Slot].Name)
		}
	}
	return nil
}

// updateOptimistically tries to decide over cached rows, in one round trip. The changes are written
// on condition that the last row of the journal is still lastSeq, and that the clock is in the
// range that the decision assumed. The ids of the batch are taken for new, which holds if their
// receipts can be inserted. It returns tried=false if this is not possible or the condition failed;
// nothing was written then.
func (s *Store) updateOptimistically(
	ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes,
) (tried bool, err error) {
	if !s.caughtUp || len(b.Counters) == 0 || s.optimistic.skip() || len(b.IDs) > 0 && s.newIDs.skip() {
		return false, nil
	}
	from, latest, ok := s.clock.estimate()
	if !ok || !s.fillFromCache(b.Counters, latest) {
		return false, nil
	}
	d := &draft{ids: b.Counters, rows: s.rows, changes: decide(engine.Snapshot{
		Now: from, Latest: latest, Until: latest + clockMargin, States: s.states, Receipts: make([]*engine.Receipt, len(b.IDs))})}
	until := cmp.Or(d.changes.Until, latest+clockMargin)
	tooBrief := until < latest+max(leastMargin, latest-from)
	if d.changes.Unsure || tooBrief || d.empty() || d.check() != nil || len(d.changes.Receipts) < len(b.IDs) {
		return false, nil
	}
	if err := ctx.Err(); err != nil {
		return true, fmt.Errorf("write changes: %w", err)
	}
	conn, err := s.conns.get(ctx)
	if err != nil {
		return true, err
	}
	defer conn.Release()
	d.foldRows = s.foldPolicy.Due(s.dirtyStats(), len(d.changes.Counters))
	t := s.begin(conn)
	err = s.append(ctx, t, d, from, until)
	switch {
	case errors.Is(err, errStale):
		s.optimistic.failed()
		return false, nil
	case len(b.IDs) > 0 && sqlState(err) == uniqueViolation && errors.Is(err, engine.ErrConflict):
		s.newIDs.failed() // one has a receipt, which is read in turn
		return false, nil
	case err != nil && sqlState(err) != "" && !errors.Is(err, engine.ErrCommitUnknown) && (t.conn.IsClosed() || outdated(err)):
		// The server said that it ended the session, so nothing was written. After a restart all
		// idle connections are dead, and prepared statements are outdated on all of them.
		s.pool.Reset()
		return false, nil
	case err == nil:
		s.optimistic.length = 0
		if len(b.IDs) > 0 {
			s.newIDs.length = 0
		}
	default:
		s.conns.resetIfTimedOut(ctx)
	}
	return true, err
}

// fillFromCache sets s.rows and s.states from the cache. It returns false if a counter is not
// cached or may be removed.
func (s *Store) fillFromCache(ids []engine.CounterID, now int64) bool {
	s.rows, s.states = s.rows[:0], s.states[:0]
	for _, id := range ids {
		r := s.cache.get(id)
		if r == nil || r.mayBeRemoved(now) {
			return false
		}
		s.rows, s.states = append(s.rows, r), append(s.states, r.snapshotState())
	}
	return true
}

// runInTurn runs a transaction of two round trips: one that takes the turn and reads, and one that
// writes what plan returns. The caller holds writeLock.
func (s *Store) runInTurn(ctx context.Context, b engine.Batch, plan planner) error {
	again, err := s.runInTurnOnce(ctx, b, plan)
	if again && ctx.Err() == nil {
		s.lostConns.Tried(err)
		s.pool.Reset()
		_, err = s.runInTurnOnce(ctx, b, plan)
	}
	return err
}

// runInTurnOnce runs the transaction. again says that before anything was written the connection
// was lost, or its prepared statements were found outdated.
func (s *Store) runInTurnOnce(ctx context.Context, b engine.Batch, plan planner) (again bool, err error) {
	conn, err := s.conns.get(ctx)
	if err != nil {
		return false, err
	}
	t := s.begin(conn)
	defer releaseConn(conn) // also if plan panics: the turn has to end
	now, err := s.readInTurn(ctx, t, b, true)
	if err != nil {
		s.conns.resetIfTimedOut(ctx)
		return t.conn.IsClosed() || outdated(err), err
	}
	return false, s.writePlan(ctx, t, moment{now: now}, plan)
}

// writePlan writes what plan returns, and commits.
func (s *Store) writePlan(ctx context.Context, t *tx, at moment, plan planner) error {
	d, err := plan(t, at)
	if err != nil || d == nil {
		return err
	}
	switch {
	case d.changes.Unsure:
		return errUnsure
	case d.empty():
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("write changes: %w", err)
	}
	t.begun = true
	if err = s.append(ctx, t, d, beginningOfTime, endOfTime); errors.Is(err, errStale) {
		s.resetCache() // nobody else can have written, so the cache is of another journal
		err = fmt.Errorf("%w: %w", engine.ErrConflict, err)
	}
	return err
}
