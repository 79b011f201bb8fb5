package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// maxJournalBytes bounds the journal: a worker that starts reads that much in two or three seconds.
const maxJournalBytes = 32 << 20

// dirtyStats is what the fold policy looks at.
func (s *Store) dirtyStats() journal.Dirty {
	return journal.Dirty{Rows: s.cache.dirty.n, Since: s.cache.dirty.marks, Journaled: s.journalBytes}
}

const (
	// An upsert, because the row may be missing: the counter is new, or another process has removed
	// it as expired.
	foldCountersSQL = `
INSERT INTO counters (key, name, spec, state, expires_at)
SELECT unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($4::bytea[]), unnest($5::bigint[])
ON CONFLICT (key, name) DO UPDATE SET spec = excluded.spec, state = excluded.state, expires_at = excluded.expires_at`

	// Skips rows that have moved or are gone, which the comparison of keys detects. IS NOT DISTINCT
	// FROM is used because no index serves it, so that the planner has to look at each ctid.
	updateCountersSQL = `
UPDATE counters c SET state = u.state, expires_at = u.expires_at
FROM (
	SELECT unnest($1::tid[]) AS place, unnest($2::text[]) AS key, unnest($3::text[]) AS name,
		unnest($4::bytea[]) AS state, unnest($5::bigint[]) AS expires_at
) u
WHERE c.ctid = u.place AND c.key IS NOT DISTINCT FROM u.key AND c.name IS NOT DISTINCT FROM u.name`

	// The lower bound keeps the scan off dead index entries.
	deleteJournalSQL = `
DELETE FROM journal WHERE seq >= $1 AND seq < $2`

	firstOfJournalSQL = searchSQL + `
SELECT coalesce(min(seq), -1) FROM search`
)

// foldPlan is what the running transaction folds.
type foldPlan struct {
	// rows are written to the table counters.
	rows []*row
	// firstNeeded is the first row of the journal that is needed after the transaction.
	firstNeeded int64
	// deleteBefore bounds the rows of the journal that the transaction deletes.
	deleteBefore int64
}

// chooseFold plans a fold of the n rows that have been dirty longest, or of all if there are fewer.
// They are written as they are before the transaction's own changes.
func (s *Store) chooseFold(n int) {
	s.folding.rows = s.folding.rows[:0]
	r := s.cache.dirty.oldest()
	for ; r != nil && len(s.folding.rows) < n; r = s.cache.dirty.next(r) {
		s.folding.rows = append(s.folding.rows, r)
	}
	s.folding.firstNeeded = s.lastSeq + 1 // the row that the transaction writes
	if r != nil {
		s.folding.firstNeeded = r.dirtySince.Seq
	}
	s.folding.deleteBefore = max(s.firstSeq, min(s.folding.firstNeeded, s.retainedFrom(), s.firstSeq+s.foldPolicy.Drop))
	slices.SortFunc(s.folding.rows, func(a, b *row) int { return a.id.Compare(b.id) })
}

// writesThrough reports whether a change is written to the table at once instead of being folded
// later. That is done for a counter whose ctid is known, because it was read for this change or not
// long before: its pages are in the server's cache, so the write costs a fifth of what a fold costs
// later. A counter that has changed since it was read is folded. If other processes write too,
// nothing is written through: they would take the counter for dirty, and fold it again.
func (d *draft) writesThrough(c *engine.CounterChange) bool {
	r := d.rows[c.Slot]
	return d.soleWriter && r != nil && r.ctid != (tid{}) && c.Spec == nil
}

// sendWriteThrough sends the statement for the changes that are written through.
func (t *tx) sendWriteThrough(p *pgconn.Pipeline, d *draft) {
	t.writeThrough, t.writtenThrough = t.writeThrough[:0], 0
	for i := range d.changes.Counters {
		if c := &d.changes.Counters[i]; d.writesThrough(c) {
			t.writeThrough = append(t.writeThrough, c)
		}
	}
	if len(t.writeThrough) == 0 {
		return
	}
	row := func(c *engine.CounterChange) *row { return d.rows[c.Slot] }
	t.params.reset()
	elements(t, tidOID, t.writeThrough, func(to *[]byte, c *engine.CounterChange) { element(to, row(c).ctid[:]) })
	elements(t, textOID, t.writeThrough, func(to *[]byte, c *engine.CounterChange) { element(to, row(c).id.Key) })
	elements(t, textOID, t.writeThrough, func(to *[]byte, c *engine.CounterChange) { element(to, row(c).id.Name) })
	elements(t, byteaOID, t.writeThrough, func(to *[]byte, c *engine.CounterChange) { element(to, c.State) })
	elements(t, int8OID, t.writeThrough, func(to *[]byte, c *engine.CounterChange) { int8Element(to, c.ExpiresAt) })
	t.send(p, step{"update counters", stUpdateCounters, anyNumber})
}

// sendFold sends the statements of a fold plan.
func (t *tx) sendFold(p *pgconn.Pipeline, f *foldPlan, firstSeq int64) {
	if rows := f.rows; len(rows) > 0 {
		t.params.reset()
		elements(t, textOID, rows, func(to *[]byte, r *row) { element(to, r.id.Key) })
		elements(t, textOID, rows, func(to *[]byte, r *row) { element(to, r.id.Name) })
		elements(t, textOID, rows, func(to *[]byte, r *row) { element(to, r.spec.Value()) })
		elements(t, byteaOID, rows, func(to *[]byte, r *row) { element(to, r.state) })
		elements(t, int8OID, rows, func(to *[]byte, r *row) { int8Element(to, r.expires) })
		t.send(p, step{"fold counters", stFoldCounters, len(rows)})
	}
	if f.deleteBefore > firstSeq {
		t.params.reset()
		t.params.scalar(firstSeq)
		t.params.scalar(f.deleteBefore)
		t.send(p, step{"trim the journal", stDeleteJournal, anyNumber})
	}
}

// finishFold marks the rows clean that the committed transaction has folded.
func (s *Store) finishFold() {
	f := &s.folding
	for _, r := range f.rows {
		s.cache.markClean(r)
	}
	clear(f.rows)
	f.rows, s.firstNeeded, s.firstSeq = f.rows[:0], max(s.firstNeeded, f.firstNeeded), f.deleteBefore
}

// hasRowsToDelete reports whether the journal has rows that name counters and that nobody needs any
// longer. While shutting down, it reports whether the journal is more than one row that names no
// counter.
func (s *Store) hasRowsToDelete() bool {
	if s.shuttingDown {
		return s.firstSeq < max(s.lastSeq, s.lastNaming+1) && s.cache.dirty.n == 0
	}
	return s.firstSeq <= s.lastNaming && s.lastNaming < s.retainedFrom() && s.cache.dirty.n == 0
}

// findFirstSeq updates firstSeq, if others write: they delete rows too, and their rows do not say
// which.
func (s *Store) findFirstSeq(ctx context.Context) error {
	if s.lastSeq == s.lastWritten {
		return nil
	}
	var first int64
	if err := s.onConn(ctx, func(c conn) error { return c.QueryRow(ctx, firstOfJournalSQL).Scan(&first) }); err != nil {
		return fmt.Errorf("find the first row of the journal: %w", err)
	}
	s.firstSeq = max(s.firstSeq, first) // a smaller one is of another journal, which the next read detects
	return nil
}

const (
	// Rows of the journal are retained for retainTime to twice that, or for retainBytes to twice
	// that: a process that finds the last row that it has read gone has to reset its cache.
	retainTime  = 2 * time.Second
	retainBytes = 4 << 20
)

// retainedFrom returns the number of the first row that is retained for others to read. It first
// moves the marks forward, if that is due.
func (s *Store) retainedFrom() int64 {
	next := s.lastSeq + 1
	if s.shuttingDown {
		return next
	}
	if now := time.Now(); now.Sub(s.nextRetainFrom.At) >= retainTime || s.journalBytes-s.nextRetainFrom.Before >= retainBytes {
		s.retainFrom, s.nextRetainFrom = s.nextRetainFrom, journal.Mark{Seq: next, At: now, Before: s.journalBytes}
	}
	return s.retainFrom.Seq
}

// foldSome folds count() rows in a transaction of its own. more reports whether there was any work.
// It takes foldTimeout at most, because decisions wait for it. If that ends while it reads the
// journal, the cache keeps what was read.
func (s *Store) foldSome(ctx context.Context, count func() int) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.foldTimeout)
	defer cancel()
	release, err := acquire(ctx, s.writeLock)
	if err != nil {
		return false, err
	}
	defer release()
	if !s.loaded {
		return false, nil // this process has made nothing dirty; those that have will fold it
	}
	if err := s.findFirstSeq(ctx); err != nil {
		return false, err
	}
	err = s.runInTurn(ctx, engine.Batch{}, func(*tx, moment) (*draft, error) {
		n := count()
		if more = n > 0 || s.hasRowsToDelete(); !more {
			return nil, nil
		}
		return &draft{foldRows: n, foldOnly: true}, nil
	})
	s.cache.evict()
	return more, err
}

// Rest says whether this process rests, which means that it decides nothing for now. While it
// rests, the store does not read what others write, which would cost a tenth of deciding it; a
// transaction that comes nevertheless reads that first. At the end of a rest, Rest reads it at
// once, as far as ctx and foldTimeout allow. Meanwhile transactions of this process wait, but none
// of others.
func (s *Store) Rest(ctx context.Context, resting bool) {
	if s.resting.Swap(resting) == resting || resting {
		return
	}
	if release, err := acquire(ctx, s.writeLock); err == nil {
		s.unconfirmed = true
		release()
	}
	_, _ = s.catchUpBounded(ctx) // the first transaction would fail in the same way, and report it
}

// foldLoop folds counters that have been dirty for long, until the store closes; for that it also
// reads what others wrote. It releases the lock after each chunk.
func (s *Store) foldLoop() {
	defer close(s.foldLoopDone)
	journal.Tend(s.stop, s.log, func() (more bool, err error) { return s.foldAged(s.stop) })
}

// foldAged folds some counters that have been dirty for long, unless this process rests.
func (s *Store) foldAged(ctx context.Context) (more bool, err error) {
	if s.resting.Load() {
		return false, nil
	}
	return s.foldSome(ctx, func() int { return s.foldPolicy.Aged(s.dirtyStats(), s.foldPolicy.After+journal.TendEvery) })
}

const (
	// closeBatch is how many rows one transaction folds when nobody waits for it.
	closeBatch = 2048
	// closeFoldTimeout bounds the folding of a process that shuts down.
	closeFoldTimeout = 5 * time.Second
)

// foldAll folds everything, so that the journal is left with one row. If another process keeps
// writing, it stops and leaves the rest to that one, which also needs the retained rows.
func (s *Store) foldAll() {
	if s.resting.Load() || s.pool.Stat().AcquireCount() == 0 { // or the process never had a database
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeFoldTimeout)
	defer cancel()
	begun, err := s.catchUpBounded(ctx)
	for more, others := true, false; more && !others && err == nil; {
		more, err = s.foldSome(ctx, func() int {
			if others = s.lastSeq != begun && s.lastSeq != s.lastWritten; others {
				return 0
			}
			s.foldPolicy.Drop, s.shuttingDown = closeBatch, true
			return min(closeBatch, s.cache.dirty.n)
		})
	}
	if err != nil {
		s.log.Warn("journal not folded, left to the next limiter", "error", err)
	}
}
