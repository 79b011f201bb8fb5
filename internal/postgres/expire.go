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

// What expires is looked for behind the index, and removed by its place in the table, where whether it has expired is looked at
// again on the version that is locked. What somebody else holds is about to be charged, or removed. The deletion sees the versions
// that were there when the statement began: a row that moved before it was locked stays for the next time.
//
// The time is that of the statement's beginning, because the planner uses no index for clock_timestamp(), which may
// differ from row to row. The cast alone would round it up.
const (
	toNowSQL = ` <= floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint`

	expiredRangeSQL = `
WHERE expires_at >= $1 AND expires_at` + toNowSQL + ` ORDER BY expires_at LIMIT $2`

	// No index serves the sum, which leaves the planner no choice but to look at the places.
	lockExpiredSQL = `
	WHERE ctid = ANY ($1::tid[]) AND expires_at + 0` + toNowSQL + ` FOR UPDATE SKIP LOCKED))`

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

	// For one transaction.
	asyncCommitSQL = `
SELECT set_config('synchronous_commit', 'off', true)`
)

const (
	// expireAtOnce is how many counters are removed before decisions get in between.
	expireBatch = 100
	// lookAtOnce is how many places are looked for at once. Each may be a read from the disk.
	scanBatch = 2000
)

// expiry is what is known of the rows of a table that have expired.
//
// As long as any transaction of the database may still see what was removed, a look goes over all of that, row by row. So it is for
// many rows, and goes on from where the one before ended; not from behind it, since many rows expire in the same moment. Behind the
// last row it begins at the front, where rows may have come since, or were held by somebody.
type expiryScan struct {
	// look is the statement that looks for rows, most at once.
	query string
	limit int
	// places are those that were found and not tried yet, and from is what the next look begins with.
	ctids []pgtype.TID
	from  int64
}

// next looks for more places; last says that there are no others.
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

// expire has up to max rows removed, a few at a time: remove gives how many of these places it emptied, and how many of them count. It ends
// where there are no more, or others hold all that was found.
func (e *expiryScan) expire(ctx context.Context, conn *pgxpool.Conn, max int, remove func([]pgtype.TID) (n, emptied int, err error)) (total int, err error) {
	for last, idle := false, false; total < max; {
		if len(e.ctids) == 0 {
			if last || idle {
				break
			}
			idle = true
			if last, err = e.next(ctx, conn); err != nil || len(e.ctids) == 0 {
				return total, err
			}
		}
		some := e.ctids[:min(len(e.ctids), max-total, expireBatch)]
		n, emptied, err := remove(some)
		if total += n; err != nil {
			return total, err
		}
		e.ctids, idle = e.ctids[len(some):], idle && emptied == 0
	}
	return total, nil
}

// Expire removes up to max counters and up to max receipts that have expired, and returns how many of both: those counters first of
// which the table does not have the last word, and then those that expired first. It waits for no lock of another process: what is
// being charged stays.
func (s *Store) Expire(ctx context.Context, max int) (n int, err error) {
	release, err := acquire(ctx, s.expireLock)
	if err != nil {
		return 0, fmt.Errorf("wait for the expiry before: %w", err)
	}
	defer release()
	conn, err := s.relay.Acquire(ctx) // ahead of the turn, in which decisions would wait for it
	if err != nil {
		return 0, fmt.Errorf("remove what expired: %w", err)
	}
	defer conn.Release()
	if n, err = s.expireCounters(ctx, conn, max); err != nil {
		return n, fmt.Errorf("remove expired counters: %w", err)
	}
	receipts, err := s.receipts.expire(ctx, conn, max, func(places []pgtype.TID) (int, int, error) {
		ids, err := removeExpired(ctx, conn, removeReceiptsSQL, places, pgx.RowTo[string])
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
	clean, err := s.counters.expire(ctx, conn, max-dirty, func(places []pgtype.TID) (int, int, error) {
		return s.expireClean(ctx, conn, places)
	})
	return dirty + clean, err
}

// removeExpired removes what has expired of the rows at these places, without the wait for the disk that others would have to wait
// behind: after a crash of the server some are there again, as expired as they were.
func removeExpired[R any](ctx context.Context, conn *pgxpool.Conn, sql string, places []pgtype.TID, read pgx.RowToFunc[R]) (gone []R, err error) {
	var b pgx.Batch
	b.Queue(asyncCommitSQL)
	b.Queue(sql, places).Query(func(rows pgx.Rows) (err error) {
		gone, err = pgx.CollectRows(rows, read)
		return err
	})
	err = conn.SendBatch(ctx, &b).Close()
	return gone, err
}

// expireDirty removes up to max dirty counters that have expired. Each goes as a row of the journal says that it does.
func (s *Store) expireDirty(ctx context.Context, max int) (n int, err error) {
	ids, err := s.dirtyExpired(ctx, max)
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

// dirtyExpired gives up to max dirty counters that have expired, those that did first. A process that decides nothing need not know them.
func (s *Store) dirtyExpired(ctx context.Context, max int) (ids []engine.CounterID, err error) {
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
	rows := s.cache.expiredDirty(now)
	slices.SortStableFunc(rows, func(a, b *row) int { return cmp.Compare(a.expires, b.expires) })
	for _, r := range rows[:min(len(rows), max)] {
		ids = append(ids, r.id)
	}
	return ids, nil
}

// decides is false for a process that leaves the journal alone. The caller holds turn.
func (s *Store) usesJournal() bool { return s.loaded && !s.resting.Load() }

// removeDirty removes those that are still dirty and expired when all others have written.
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

// expireClean removes what has expired of the rows at these places, and gives how many counters are no more for it. One that is dirty
// stays as the journal says it is, and is written to the table anew. The others go without a word: no process takes for granted what
// it remembers of a clean counter that has expired. But of one the journal may still speak, for those who read it from its beginning.
func (s *Store) expireClean(ctx context.Context, conn *pgxpool.Conn, places []pgtype.TID) (n, emptied int, err error) {
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
	ids, err := removeExpired(ctx, conn, removeCountersSQL, places, pgx.RowToStructByPos[engine.CounterID])
	if !decides || err != nil {
		return len(ids), len(ids), err
	}
	var named []engine.CounterID
	for _, id := range ids {
		switch r := s.cache.rows[id]; {
		case r == nil: // if the journal speaks of it, who reads that from its beginning has it again until the next time, expired
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

// nameRemoved says in the journal that counters are no more.
func (s *Store) journalRemoved(ctx context.Context, ids []engine.CounterID) error {
	if len(ids) == 0 {
		return nil
	}
	known := s.cache
	return s.runInTurn(ctx, engine.Batch{}, func(*tx, moment) (*draft, error) {
		if s.cache != known {
			return nil, nil // the rows that named them are gone, and who was charged meanwhile is not known
		}
		// Others may have charged one anew before this turn: then it is remembered again.
		ids = slices.DeleteFunc(ids, func(id engine.CounterID) bool { return s.cache.rows[id] != nil })
		return &draft{removed: ids}, nil
	})
}
