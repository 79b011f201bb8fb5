package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// resetBatch is how many counters one transaction of Reset removes. Decisions run in between.
const resetBatch = 1000

const (
	countCountersSQL = `SELECT count(*) FROM counters WHERE (key, name) > (?1, ?2) AND key < ?3`

	beginReadSQL = `SELECT EXISTS (SELECT 1 FROM counters)`

	idsOfSpanSQL = `
SELECT key, name FROM counters WHERE (key, name) > (?1, ?2) AND key < ?3 ORDER BY key, name LIMIT ?4`

	deleteSpanSQL = `DELETE FROM counters WHERE (key, name) > (?1, ?2) AND (key, name) <= (?3, ?4)`
)

// Reset implements [engine.Store]. It removes the selection in small transactions. If one fails,
// what earlier ones have removed stays removed, and n says how many.
func (s *Store) Reset(ctx context.Context, sel engine.Selection, dryRun bool) (n int64, err error) {
	sp := keySpan(sel)
	if dryRun {
		if n, err = s.count(ctx, sp); err != nil {
			return 0, fmt.Errorf("count counters: %w", err)
		}
		return n, nil
	}
	for {
		ids, err := s.resetSome(ctx, sp)
		n += int64(len(ids))
		if err != nil {
			return n, fmt.Errorf("reset counters: %w", err)
		}
		if len(ids) < resetBatch {
			return n, nil
		}
		sp.from = ids[len(ids)-1]
	}
}

// count counts the counters of a span in the table, and dirty ones that are not there yet.
func (s *Store) count(ctx context.Context, sp span) (n int64, err error) {
	read, err := s.reader.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = read.Rollback() }()
	unfolded, err := s.countUnfolded(ctx, read, sp)
	if err != nil {
		return 0, err
	}
	err = read.QueryRowContext(ctx, countCountersSQL, sp.from.Key, sp.from.Name, sp.bound()).Scan(&n)
	return n + unfolded, err
}

// countUnfolded counts the dirty rows that the table does not have, and makes read see the table as
// of now. So counting the table, which takes long, need not hold up transactions.
func (s *Store) countUnfolded(ctx context.Context, read *sql.Tx, sp span) (n int64, err error) {
	release, err := acquire(ctx, s.writeLock)
	if err != nil {
		return 0, err
	}
	defer release()
	s.dirty.each(sp, func(r *row) bool {
		if !r.table.exists {
			n++
		}
		return true
	})
	var looked bool
	return n, read.QueryRowContext(ctx, beginReadSQL).Scan(&looked)
}

func (s *Store) resetSome(ctx context.Context, sp span) (ids []engine.CounterID, err error) {
	err = s.transactCounters(ctx, func() (func(), error) {
		if ids, err = s.firstIDs(sp); err != nil || len(ids) == 0 {
			return nil, err
		}
		last := ids[len(ids)-1]
		if _, err := s.execInTx(deleteSpanSQL, sp.from.Key, sp.from.Name, last.Key, last.Name); err != nil {
			return nil, err
		}
		for _, id := range ids {
			s.others.Add(id) // before the commit, because its result may be unknown
		}
		s.awaitNextMillisecond()
		return s.journalRemoved(ids)
	})
	if err != nil {
		return nil, err
	}
	return ids, nil
}

// awaitNextMillisecond returns when the clock shows another millisecond. A counter knows by that of its beginning what
// belongs to it, so one that is made after a reset must not begin in the same one as the removed one. A clock that is set
// back meanwhile is not waited for.
func (s *Store) awaitNextMillisecond() {
	const step = 100 * time.Microsecond
	read := s.now().UnixMilli()
	for waited := time.Duration(0); s.now().UnixMilli() == read && waited < 10*time.Millisecond; waited += step {
		time.Sleep(step)
	}
}

// firstIDs returns the first ids of a span, in the running transaction.
func (s *Store) firstIDs(sp span) ([]engine.CounterID, error) {
	var dirty []engine.CounterID
	s.dirty.each(sp, func(r *row) bool {
		dirty = append(dirty, r.id)
		return len(dirty) < resetBatch
	})
	clean, err := readInTx(s, func(id *engine.CounterID) []any { return []any{&id.Key, &id.Name} },
		idsOfSpanSQL, sp.from.Key, sp.from.Name, sp.bound(), resetBatch)
	return journal.Merge(dirty, clean, resetBatch, func(id *engine.CounterID) engine.CounterID { return *id }), err
}

// journalRemoved writes to the journal that counters are removed, so that earlier rows do not
// restore them. It returns the function that updates memory after the commit.
func (s *Store) journalRemoved(ids []engine.CounterID) (func(), error) {
	s.record = journal.Begin(s.record)
	for _, id := range ids {
		s.record = s.record.remove(id)
	}
	if err := s.writeRecord(); err != nil {
		return nil, fmt.Errorf("write journal: %w", err)
	}
	return func() {
		s.finishRecord()
		for _, id := range ids {
			s.clean.Remove(id)
			if r := s.dirty.rows[id]; r != nil {
				s.dirty.remove(r)
			}
		}
	}, nil
}
