package sqlite

import (
	"context"
	"fmt"
	"time"
)

// foldPolicy says when dirty counters are written to their table. The longest dirty go first, so that the beginning of
// the journal becomes needless.
type foldPolicy struct {
	// after is how long a counter may be dirty.
	after time.Duration
	// rows is how many may be dirty.
	rows int
	// perRow is how many bytes the journal may have for each dirty counter, within least and most. A counter that is
	// charged all the time is so written to its table once in some dozens of charges, and reading the journal when the
	// file is opened takes two or three seconds at most.
	perRow, least, most int64
	// some is how many are folded with one transaction, and drop how many rows of the journal are removed with one:
	// both keep a transaction short.
	some int
	drop int64
}

var defaultFolding = foldPolicy{
	after: 5 * time.Second, rows: 1 << 16, perRow: 8 << 10, least: 4 << 20, most: 64 << 20, some: 64, drop: 16,
}

// pressed tells whether there are more dirty counters, or there is more of the journal, than may be.
func (s *Store) pressed() bool {
	oldest := s.dirty.oldest()
	if oldest == nil {
		return false
	}
	n := len(s.dirty.rows)
	most := min(max(int64(n)*s.fold.perRow, s.fold.least), s.fold.most)
	return n > s.fold.rows || s.journaled-oldest.dirty.before > most
}

// due is how many of the oldest rows are to be folded with a transaction that changes so many.
func (s *Store) due(changes int) int {
	if s.pressed() {
		return min(max(s.fold.some, changes), len(s.dirty.rows))
	}
	return s.aged(s.fold.after)
}

// aged is how many of the oldest rows have been dirty for longer, up to what one transaction folds.
func (s *Store) aged(after time.Duration) (n int) {
	limit := time.Now().Add(-after)
	for r := s.dirty.oldest(); r != nil && n < s.fold.some && !r.dirty.at.After(limit); r = s.dirty.next(r) {
		n++
	}
	return n
}

const (
	// Without expires_at, which seldom changes: SQLite rewrites an index for every column that is set, changed or
	// not.
	updateStateSQL = `UPDATE counters SET state = ? WHERE key = ? AND name = ?`

	updateCounterSQL = `UPDATE counters SET state = ?, expires_at = ?, spec = ? WHERE key = ? AND name = ?`

	insertCounterSQL = `INSERT INTO counters (state, expires_at, spec, key, name) VALUES (?, ?, ?, ?, ?)`
)

// foldOldest writes the n oldest rows to the table, as they are before the transaction it is part of, and removes
// rows of the journal that nothing needs then. next is the number of the first row of the journal that this
// transaction may write. [Store.folded] is to be called after the commit.
func (s *Store) foldOldest(n int, next int64) error {
	r := s.dirty.oldest()
	s.folding = s.folding[:0]
	for range n {
		if err := s.writeRow(r); err != nil {
			return fmt.Errorf("fold counters: %w", err)
		}
		s.folding = append(s.folding, r)
		r = s.dirty.next(r)
	}
	s.keep = next
	if r != nil {
		s.keep = r.dirty.seq
	}
	s.keep = min(s.keep, s.first+s.fold.drop)
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
		return r.dirty.seq
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

// foldEvery is how often it is looked whether something is left to fold.
const foldEvery = time.Second

// tend folds what has been dirty for long, until the store closes: what no transaction came by to take along. It
// gives the lock back after each chunk. What fails is tried again the next time: it is in the journal.
func (s *Store) tend() {
	defer close(s.tended)
	tick := time.NewTicker(foldEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop.Done():
			return
		case <-tick.C:
		}
		for more := true; more; {
			more, _ = s.foldSome(s.stop, func() int { return s.aged(s.fold.after + foldEvery) })
		}
	}
}

// foldAll leaves nothing in the journal.
func (s *Store) foldAll() {
	for more := true; more; {
		more, _ = s.foldSome(context.Background(), func() int {
			s.fold.drop = closingChunk
			return min(closingChunk, len(s.dirty.rows))
		})
	}
}

// closingChunk is how many rows one transaction takes when nobody waits for it.
const closingChunk = 4096
