package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed503877ad/limits/internal/engine"
)

// Expired rows are found through an index, and removed by their ctid. The DELETE locks each row and
// checks again, on the locked version, that it has expired. Rows that another transaction holds are
// skipped: they are about to be charged, or removed. The DELETE uses the row versions as of the
// statement's start, so a row that moved before it was locked stays until the next time.
const (
	expiredRangeSQL = `
WHERE expires_at >= $1 AND expires_at <= ` + startMillis + ` ORDER BY expires_at LIMIT $2`

	// No index serves the sum, so the planner has to look at each ctid.
	lockExpiredSQL = `
	WHERE ctid = ANY ($1::tid[]) AND expires_at + 0 <= ` + startMillis + ` FOR UPDATE SKIP LOCKED))`

	expiredCountersSQL = `
SELECT ctid, expires_at FROM counters` + expiredRangeSQL

	removeCountersSQL = `
DELETE FROM counters WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM counters` + lockExpiredSQL + `
RETURNING key, name`

	expiredReceiptsSQL = `
SELECT ctid, expires_at FROM receipts` + expiredRangeSQL

	removeReceiptsSQL = `
DELETE FROM receipts WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM receipts` + lockExpiredSQL + `
RETURNING id`

	// Only for the current transaction.
	asyncCommitSQL = `
SELECT set_config('synchronous_commit', 'off', true)`
)

const (
	// expireBatch is how many rows are removed before decisions get in between.
	expireBatch = 100
	// scanBatch is how many expired rows are searched for at once. Each may be a read from the
	// disk.
	scanBatch = 2000
)

// expiryScan is a scan for the expired rows of a table.
//
// As long as any transaction of the database may see deleted rows, a scan goes over each of them
// again. So it finds many rows at once, and the next scan starts at the expiry of the last row
// found. It does not start after it, since many rows may expire in the same millisecond. After the
// last row it starts from the front, where rows may have been added, or were locked.
type expiryScan struct {
	// query finds up to limit rows.
	query string
	limit int
	// ctids are the rows that were found but not tried yet; from is the expiry that the next scan
	// starts at.
	ctids []pgtype.TID
	from  int64
}

// next scans for more rows; last says that there are no others.
func (e *expiryScan) next(ctx context.Context, conn *pgxpool.Conn) (last bool, err error) {
	rows, err := conn.Query(ctx, e.query, e.from, e.limit)
	if err != nil {
		return false, err
	}
	var at pgtype.TID
	var found []pgtype.TID
	from := e.from
	if _, err = pgx.ForEachRow(rows, []any{&at, &from}, func() error { found = append(found, at); return nil }); err != nil {
		return false, err
	}
	if last = len(found) < e.limit; last {
		from = 0
	}
	e.ctids, e.from = found, from
	return last, nil
}

// expire removes up to max rows in batches. remove returns how many rows count towards max, and how
// many it deleted. expire ends when there are no more rows, or when others hold all rows that a
// scan found.
func (e *expiryScan) expire(
	ctx context.Context, conn *pgxpool.Conn, max int,
	remove func([]pgtype.TID) (n, deleted int, err error),
) (total int, err error) {
	for last, allHeld := false, false; total < max; {
		if len(e.ctids) == 0 {
			if last || allHeld {
				break
			}
			allHeld = true
			if last, err = e.next(ctx, conn); err != nil || len(e.ctids) == 0 {
				return total, err
			}
		}
		batch := e.ctids[:min(len(e.ctids), max-total, expireBatch)]
		n, deleted, err := remove(batch)
		if total += n; err != nil {
			return total, err
		}
		e.ctids, allHeld = e.ctids[len(batch):], allHeld && deleted == 0
	}
	return total, nil
}

// Expire removes up to max expired counters and up to max expired receipts, and returns how many of
// both. Dirty counters go first, then those that expired first. It does not wait for row locks: a
// row that is being charged stays.
func (s *Store) Expire(ctx context.Context, max int) (n int, err error) {
	release, err := acquire(ctx, s.expireLock)
	if err != nil {
		return 0, fmt.Errorf("wait for the previous expiry: %w", err)
	}
	defer release()
	conn, err := s.relay.Acquire(ctx) // before writeLock, since decisions wait for whatever is done under it
	if err != nil {
		return 0, fmt.Errorf("remove expired rows: %w", err)
	}
	defer conn.Release()
	if n, err = s.expireCounters(ctx, conn, max); err != nil {
		return n, fmt.Errorf("remove expired counters: %w", err)
	}
	receipts, err := s.receiptScan.expire(ctx, conn, max, func(ctids []pgtype.TID) (int, int, error) {
		ids, err := removeExpired(ctx, conn, removeReceiptsSQL, ctids, pgx.RowTo[string])
		return len(ids), len(ids), err
	})
	if n += receipts; err != nil {
		return n, fmt.Errorf("remove expired receipts: %w", err)
	}
	return n, nil
}

func (s *Store) expireCounters(ctx context.Context, conn *pgxpool.Conn, max int) (int, error) {
	dirty, err := s.expireDirty(ctx, max)
	if err != nil {
		return dirty, err
	}
	clean, err := s.counterScan.expire(ctx, conn, max-dirty, func(ctids []pgtype.TID) (int, int, error) {
		return s.expireClean(ctx, conn, ctids)
	})
	return dirty + clean, err
}

// removeExpired removes those of the rows that have expired. It commits without waiting for the
// disk, since others wait for the transaction: after a crash of the server some rows are back, and
// expired as before.
func removeExpired[R any](
	ctx context.Context, conn *pgxpool.Conn, statement string, ctids []pgtype.TID, read pgx.RowToFunc[R],
) (gone []R, err error) {
	var b pgx.Batch
	b.Queue(asyncCommitSQL)
	b.Queue(statement, ctids).Query(func(rows pgx.Rows) (err error) {
		gone, err = pgx.CollectRows(rows, read)
		return err
	})
	err = conn.SendBatch(ctx, &b).Close()
	return gone, err
}

// expireDirty removes up to max dirty counters that have expired, each by a row of the journal.
func (s *Store) expireDirty(ctx context.Context, max int) (n int, err error) {
	ids, err := s.findExpiredDirty(ctx, max)
	if err != nil {
		return 0, err
	}
	for some := range slices.Chunk(ids, expireBatch) {
		gone, err := s.removeDirty(ctx, some)
		if n += gone; err != nil {
			return n, err
		}
	}
	return n, nil
}

// findExpiredDirty returns up to max dirty counters that have expired, those that expired first. A
// process that decides nothing returns none.
func (s *Store) findExpiredDirty(ctx context.Context, max int) (ids []engine.CounterID, err error) {
	ctx, release, err := s.acquireBounded(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if !s.usesJournal() {
		return nil, nil
	}
	if err := s.catchUp(ctx); err != nil {
		return nil, err
	}
	now, _, _ := s.clock.estimate()
	rows := s.cache.expired(now)
	slices.SortStableFunc(rows, func(a, b *row) int { return cmp.Compare(a.expires, b.expires) })
	for _, r := range rows[:min(len(rows), max)] {
		ids = append(ids, r.id)
	}
	return ids, nil
}

// usesJournal is false for a process that does not read the journal at present. The caller holds
// writeLock.
func (s *Store) usesJournal() bool { return s.loaded && !s.resting.Load() }

// removeDirty removes those of the counters that are still dirty and expired once the turn is
// taken.
func (s *Store) removeDirty(ctx context.Context, ids []engine.CounterID) (n int, err error) {
	ctx, release, err := s.acquireBounded(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	err = s.runInTurn(ctx, engine.Batch{}, func(_ *tx, at moment) (*draft, error) {
		ids = slices.DeleteFunc(ids, func(id engine.CounterID) bool {
			r := s.cache.rows[id]
			return r == nil || r.dirtySince == nil || r.expires > at.now
		})
		return &draft{removed: ids}, nil
	})
	if err != nil {
		return 0, err
	}
	return len(ids), nil
}

// expireClean removes those of the rows that have expired. It returns how many counters no longer
// exist, and how many rows it deleted. The two differ by dirty counters: such a counter stays, as
// the journal has it, and will be folded into the table again. The others need no journal row,
// because no process trusts its cache for a clean counter that has expired. But the journal may
// still name one, for processes that read it from its beginning; so that one is removed in the
// journal too.
func (s *Store) expireClean(ctx context.Context, conn *pgxpool.Conn, ctids []pgtype.TID) (n, deleted int, err error) {
	ctx, release, err := s.acquireBounded(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer release()
	decides := s.usesJournal()
	if decides {
		if err := s.catchUp(ctx); err != nil {
			return 0, 0, err
		}
	}
	ids, err := removeExpired(ctx, conn, removeCountersSQL, ctids, pgx.RowToStructByPos[engine.CounterID])
	if !decides || err != nil {
		return len(ids), len(ids), err
	}
	var named []engine.CounterID
	for _, id := range ids {
		switch r := s.cache.rows[id]; {
		case r == nil: // a process that reads an older journal row of it has it again, expired, until the next Expire
			n++
		case r.dirtySince == nil:
			n++
			if r.lastChange >= s.firstSeq {
				named = append(named, id)
			}
			s.cache.remove(r)
		}
	}
	return n, len(ids), s.journalRemoved(ctx, named)
}

// journalRemoved writes to the journal that counters are removed.
func (s *Store) journalRemoved(ctx context.Context, ids []engine.CounterID) error {
	if len(ids) == 0 {
		return nil
	}
	known := s.cache
	return s.runInTurn(ctx, engine.Batch{}, func(*tx, moment) (*draft, error) {
		if s.cache != known {
			return nil, nil // the rows that named them are gone, and it is unknown which were charged meanwhile
		}
		// Others may have charged one again before this turn. Then it is cached again.
		ids = slices.DeleteFunc(ids, func(id engine.CounterID) bool { return s.cache.rows[id] != nil })
		return &draft{removed: ids}, nil
	})
}
