package sqlite

import (
	"context"
	"fmt"

	"github.com/seed503877ad/limits/internal/journal"
)

// maxJournalBytes bounds the journal: reading that much when the file is opened takes two or three
// seconds at most.
const maxJournalBytes = 64 << 20

// dirtyStats is what the fold policy looks at.
func (s *Store) dirtyStats() journal.Dirty {
	return journal.Dirty{Rows: len(s.dirty.rows), Since: s.dirty.marks, Journaled: s.journalBytes}
}

const (
	// Without expires_at, which seldom changes: SQLite rewrites the index of every column that is
	// set, even to the same value.
	updateStateSQL = `UPDATE counters SET state = ? WHERE key = ? AND name = ?`

	updateCounterSQL = `UPDATE counters SET state = ?, expires_at = ?, spec = ? WHERE key = ? AND name = ?`

	insertCounterSQL = `INSERT INTO counters (state, expires_at, spec, key, name) VALUES (?, ?, ?, ?, ?)`
)

// foldPlan is what the running transaction folds.
type foldPlan struct {
	// rows are written to the table counters.
	rows []*row
	// deleteBefore bounds the rows of the journal that the transaction deletes.
	deleteBefore int64
}

// foldOldest writes the n rows that have been dirty longest, or all if there are fewer, to the
// table, as they are before the running transaction's own changes. It deletes rows of the journal
// that are not needed then. The caller calls [Store.finishFold] after the commit.
func (s *Store) foldOldest(n int) error {
	r := s.dirty.oldest()
	s.folding.rows = s.folding.rows[:0]
	for ; r != nil && len(s.folding.rows) < n; r = s.dirty.next(r) {
		if err := s.writeRow(r); err != nil {
			return fmt.Errorf("fold counters: %w", err)
		}
		s.folding.rows = append(s.folding.rows, r)
	}
	s.folding.deleteBefore = min(s.neededFrom(r), s.firstSeq+s.foldPolicy.Drop)
	if s.folding.deleteBefore > s.firstSeq {
		if _, err := s.stmts.deleteJournal.Exec(s.folding.deleteBefore); err != nil {
			return fmt.Errorf("trim the journal: %w", err)
		}
	}
	return nil
}

func (s *Store) writeRow(r *row) (err error) {
	switch {
	case !r.table.exists:
		_, err = s.stmts.insertCounter.Exec(blob(r.state), r.expires, r.spec.Value(), r.id.Key, r.id.Name)
	case r.table.expires == r.expires && r.table.spec == r.spec:
		_, err = s.stmts.updateState.Exec(blob(r.state), r.id.Key, r.id.Name)
	default:
		_, err = s.stmts.updateCounter.Exec(blob(r.state), r.expires, r.spec.Value(), r.id.Key, r.id.Name)
	}
	return err
}

// finishFold marks the rows clean that the committed transaction has folded. The caller holds the
// overlay's mu.
func (s *Store) finishFold() {
	f := &s.folding
	for _, r := range f.rows {
		s.dirty.remove(r)
		r.table.exists, r.table.expires, r.table.spec = true, r.expires, r.spec
		s.clean.Add(r.id, r)
	}
	clear(f.rows)
	f.rows, s.firstSeq = f.rows[:0], f.deleteBefore
}

// neededFrom returns the number of the first journal row that is needed if oldest has been dirty longest. If it is nil, none is
// dirty, and the next row is the first one needed.
func (s *Store) neededFrom(oldest *row) int64 {
	if oldest != nil {
		return oldest.dirtySince.Seq
	}
	return s.lastSeq + 1
}

// foldSome folds count() rows in a transaction of its own. more reports whether there was any work.
func (s *Store) foldSome(ctx context.Context, count func() int) (more bool, err error) {
	err = s.transactCounters(ctx, func() (func(), error) {
		n := count()
		if n == 0 && s.firstSeq >= s.neededFrom(s.dirty.oldest()) {
			return nil, nil
		}
		if err := s.foldOldest(n); err != nil {
			return nil, err
		}
		return func() {
			s.finishFold()
			more = true
		}, nil
	})
	return more, err
}

// foldLoop folds counters that have been dirty for long, until the store closes. It releases the
// lock after each chunk.
func (s *Store) foldLoop() {
	defer close(s.foldLoopDone)
	journal.Tend(s.stop, s.log, func() (more bool, err error) {
		if idle, err := s.nothingToFold(); idle || err != nil {
			return false, err
		}
		return s.foldSome(s.stop, func() int { return s.foldPolicy.Aged(s.dirtyStats(), s.foldPolicy.After+journal.TendEvery) })
	})
}

// nothingToFold reports whether the journal is empty, so that an idle process begins no transaction.
func (s *Store) nothingToFold() (bool, error) {
	release, err := acquire(s.stop, s.writeLock)
	if err != nil {
		return false, err
	}
	defer release()
	return !s.stale && s.firstSeq > s.lastSeq, nil
}

// foldAll folds everything, so that the journal is left empty.
func (s *Store) foldAll() {
	for more := true; more; {
		more, _ = s.foldSome(context.Background(), func() int {
			s.foldPolicy.Drop = closeBatch
			return min(closeBatch, len(s.dirty.rows))
		})
	}
}

// closeBatch is how many rows one transaction folds when nobody waits for it.
const closeBatch = 4096
