package sqlite

import (
	"context"
	"fmt"

	"github.com/seed503877ad/limits/internal/journal"
)

// journalMost bounds the journal, in bytes: reading it when the file is opened takes two or three seconds at most.
const journalMost = 64 << 20

// dirt is what the policy looks at.
func (s *Store) dirt() journal.Dirty {
	return journal.Dirty{Rows: len(s.dirty.rows), Since: s.dirty.since, Journaled: s.journaled}
}

const (
	// Without expires_at, which seldom changes: SQLite rewrites an index for every column that is set, changed or
	// not.
	updateStateSQL = `UPDATE counters SET state = ? WHERE key = ? AND name = ?`

	updateCounterSQL = `UPDATE counters SET state = ?, expires_at = ?, spec = ? WHERE key = ? AND name = ?`

	insertCounterSQL = `INSERT INTO counters (state, expires_at, spec, key, name) VALUES (?, ?, ?, ?, ?)`
)

// foldOldest writes the n oldest rows, or all where there are fewer, to the table, as they are before the transaction it
// is part of, and removes rows of the journal that nothing needs then. next is the number of the first row of the journal
// that this transaction may write. [Store.folded] is to be called after the commit.
func (s *Store) foldOldest(n int, next int64) error {
	r := s.dirty.oldest()
	s.folding = s.folding[:0]
	for ; r != nil && len(s.folding) < n; r = s.dirty.next(r) {
		if err := s.writeRow(r); err != nil {
			return fmt.Errorf("fold counters: %w", err)
		}
		s.folding = append(s.folding, r)
	}
	s.keep = next
	if r != nil {
		s.keep = r.dirty.Seq
	}
	s.keep = min(s.keep, s.first+s.fold.Drop)
	if s.keep > s.first {
		if _, err := s.st.deleteJournal.Exec(s.keep); err != nil {
			return fmt.Errorf("shorten the journal: %w", err)
		}
	}
	return nil
}

func (s *Store) writeRow(r *row) (err error) {
	switch {
	case !r.table.there:
		_, err = s.st.insertCounter.Exec(blob(r.state), r.expires, r.spec.Value(), r.id.Key, r.id.Name)
	case r.table.expires == r.expires && r.table.spec == r.spec:
		_, err = s.st.updateState.Exec(blob(r.state), r.id.Key, r.id.Name)
	default:
		_, err = s.st.updateCounter.Exec(blob(r.state), r.expires, r.spec.Value(), r.id.Key, r.id.Name)
	}
	return err
}

// folded makes the rows clean that a committed transaction has folded. It is called under the overlay's lock.
func (s *Store) folded() {
	for _, r := range s.folding {
		s.dirty.remove(r)
		r.table.there, r.table.expires, r.table.spec = true, r.expires, r.spec
		s.recent.Add(r.id, r)
	}
	clear(s.folding)
	s.folding, s.first = s.folding[:0], max(s.first, s.keep)
}

// needed is the number of the first row of the journal that a dirty row needs; the next one's when none is dirty.
func (s *Store) needed() int64 {
	if r := s.dirty.oldest(); r != nil {
		return r.dirty.Seq
	}
	return s.seq + 1
}

// foldSome folds as many rows as count says in a transaction of its own. more tells whether there was any work.
func (s *Store) foldSome(ctx context.Context, count func() int) (more bool, err error) {
	err = s.transact(ctx, func() (func(), error) {
		n := count()
		if n == 0 && s.first >= s.needed() {
			return nil, nil
		}
		if err := s.foldOldest(n, s.seq+1); err != nil {
			return nil, err
		}
		return func() {
			s.folded()
			more = true
		}, nil
	})
	return more, err
}

// tend folds what has been dirty for long, until the store closes. It gives the lock back after each chunk.
func (s *Store) tend() {
	defer close(s.tended)
	journal.Tend(s.stop, s.log, func() (more bool, err error) {
		return s.foldSome(s.stop, func() int { return s.fold.Aged(s.dirt(), s.fold.After+journal.TendEvery) })
	})
}

// foldAll leaves nothing in the journal.
func (s *Store) foldAll() {
	for more := true; more; {
		more, _ = s.foldSome(context.Background(), func() int {
			s.fold.Drop = closingChunk
			return min(closingChunk, len(s.dirty.rows))
		})
	}
}

// closingChunk is how many rows one transaction takes when nobody waits for it.
const closingChunk = 4096
