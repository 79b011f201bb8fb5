package sqlite

import (
	"context"
	"fmt"
	"math"
	"time"
	"unique"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

const readCounterSQL = `SELECT state, expires_at, spec FROM counters WHERE key = ? AND name = ?`

// readStates returns the rows of a batch, nil for a counter that is not stored, and their states.
// Both are valid until the transaction ends.
func (s *Store) readStates(ids []engine.CounterID) (rows []*row, states [][]byte, err error) {
	rows, states = s.rows[:0], s.states[:0]
	for _, id := range ids {
		r, err := s.getRow(id)
		if err != nil {
			return nil, nil, err
		}
		var state []byte
		if r != nil {
			state = blob(r.state)
		}
		rows, states = append(rows, r), append(states, state)
	}
	s.rows, s.states = rows, states
	return rows, states, nil
}

func (s *Store) getRow(id engine.CounterID) (*row, error) {
	if r := s.dirty.rows[id]; r != nil {
		return r, nil
	}
	if r, known := s.clean.Get(id); known {
		return r, nil
	}
	r, err := readRow(s.stmts.readCounter, id)
	if r != nil {
		s.clean.Add(id, r)
	}
	return r, err
}

// writeCounters writes changes to the journal.
func (s *Store) writeCounters(rows []*row, ids []engine.CounterID, changes []engine.CounterChange) error {
	s.record = journal.Begin(s.record)
	for i := range changes {
		c := &changes[i]
		if c.Slot < 0 || c.Slot >= len(ids) {
			return fmt.Errorf("slot %d is out of range for %d counters", c.Slot, len(ids))
		}
		if rows[c.Slot] == nil && c.Spec == nil {
			return fmt.Errorf("counter %q %q is new and has no spec", ids[c.Slot].Key, ids[c.Slot].Name)
		}
		s.record = s.record.change(ids[c.Slot], c)
	}
	return s.writeRecord()
}

// writeRecord writes the next row of the journal, unless the record is empty.
func (s *Store) writeRecord() error {
	if s.record.empty() {
		return nil
	}
	s.record = journal.Seal(s.record)
	_, err := s.stmts.insertJournal.Exec(s.lastSeq+1, []byte(s.record))
	if alreadyThere(err) {
		return fmt.Errorf("%w: %w", errOtherWriter, err)
	}
	return err
}

// finishRecord counts the row that writeRecord has written, after the commit, and returns its mark;
// nil if the record was empty.
func (s *Store) finishRecord() *journal.Mark {
	if s.record.empty() {
		return nil
	}
	m := &journal.Mark{Seq: s.lastSeq + 1, At: time.Now(), Before: s.journalBytes}
	s.lastSeq++
	s.journalBytes += int64(len(s.record))
	return m
}

// apply brings memory up to what a committed transaction wrote. rows are those of the batch; nil
// for a counter that was not stored.
func (s *Store) apply(rows []*row, ids []engine.CounterID, changes []engine.CounterChange, since *journal.Mark) {
	for i := range changes {
		c := &changes[i]
		r := rows[c.Slot]
		if r == nil {
			r = &row{id: ids[c.Slot]}
		}
		if r.dirtySince == nil {
			s.clean.Remove(r.id)
			s.dirty.add(r, since)
		}
		if c.Spec != nil {
			r.spec = unique.Make(string(c.Spec))
		}
		r.state, r.expires = append(r.state[:0], c.State...), c.ExpiresAt
	}
}

// blob keeps nil from being stored as NULL.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

const countersOfKeySQL = `SELECT key, name, spec, state FROM counters WHERE key = ? ORDER BY name LIMIT ?`

// Counters implements [engine.Store].
func (s *Store) Counters(ctx context.Context, key string) ([]engine.StoredCounter, int64, error) {
	const most = engine.MaxKeyCounters + 1
	all, err := s.mergedCounters(ctx, "read counters", keySpan(engine.Selection{Key: key}), most, countersOfKeySQL, key, most)
	if err != nil {
		return nil, 0, err
	}
	return all, s.now().UnixMilli(), nil
}

const listCountersSQL = `
SELECT key, name, spec, state FROM counters
WHERE (key, name) > (?1, ?2) AND key < ?3
ORDER BY key, name LIMIT ?4`

// List implements [engine.Store].
func (s *Store) List(ctx context.Context, prefix string, after engine.CounterID, max int) ([]engine.StoredCounter, int64, error) {
	sp := keySpan(engine.Selection{Prefix: prefix})
	if after.Compare(sp.from) > 0 {
		sp.from = after
	}
	page, err := s.mergedCounters(ctx, "list counters", sp, max, listCountersSQL, sp.from.Key, sp.from.Name, sp.bound(), max)
	if err != nil {
		return nil, 0, err
	}
	return page, s.now().UnixMilli(), nil
}

// mergedCounters returns the first max counters of a span, from memory and from the table by query.
// Dirty counters are read first: a counter that is clean then is in the table, and one that becomes
// clean later is in the table with the same state or a newer one.
func (s *Store) mergedCounters(
	ctx context.Context, act string, sp span, max int, query string, args ...any,
) ([]engine.StoredCounter, error) {
	dirty := s.dirtyCounters(sp, max)
	clean, err := read(ctx, s, act, func(c *engine.StoredCounter) []any {
		return []any{&c.Key, &c.Name, &c.Spec, &c.State}
	}, query, args...)
	if err != nil {
		return nil, err
	}
	return journal.Merge(dirty, clean, max, func(c *engine.StoredCounter) engine.CounterID { return c.CounterID }), nil
}

func (s *Store) dirtyCounters(sp span, max int) (all []engine.StoredCounter) {
	s.dirty.mu.RLock()
	defer s.dirty.mu.RUnlock()
	s.dirty.each(sp, func(r *row) bool {
		all = append(all, r.toStored())
		return len(all) < max
	})
	return all
}

// keySpan returns the ids of a selection.
func keySpan(sel engine.Selection) span {
	if sel.Key != "" {
		return span{engine.CounterID{Key: sel.Key}, sel.Key + "\x00"}
	}
	upper := []byte(sel.Prefix)
	for len(upper) > 0 && upper[len(upper)-1] == math.MaxUint8 {
		upper = upper[:len(upper)-1]
	}
	if len(upper) > 0 {
		upper[len(upper)-1]++
	}
	return span{engine.CounterID{Key: sel.Prefix}, string(upper)}
}
