package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
	"unique"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

const readCounterSQL = `SELECT state, expires_at, spec FROM counters WHERE key = ? AND name = ?`

// readStates gives the rows of a batch, nil for a counter that is not stored, and their states. Both are good until
// the transaction ends.
func (s *Store) readStates(ids []engine.CounterID) (rows []*row, states [][]byte, err error) {
	rows, states = s.rows[:0], s.states[:0]
	for _, id := range ids {
		r, err := s.find(id)
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

func (s *Store) find(id engine.CounterID) (*row, error) {
	if r := s.dirty.rows[id]; r != nil {
		return r, nil
	}
	if r, known := s.recent.Get(id); known {
		return r, nil
	}
	r, err := readRow(s.st.readCounter, id)
	if r != nil {
		s.recent.Add(id, r)
	}
	return r, err
}

// writeCounters writes changes into the journal.
func (s *Store) writeCounters(rows []*row, ids []engine.CounterID, changes []engine.CounterChange) error {
	s.record = journal.Begin(s.record)
	for i := range changes {
		c := &changes[i]
		if c.Slot < 0 || c.Slot >= len(ids) {
			return fmt.Errorf("slot %d of %d", c.Slot, len(ids))
		}
		if rows[c.Slot] == nil && c.Spec == nil {
			return errors.New("a new counter without a spec")
		}
		s.record = s.record.change(ids[c.Slot], c)
	}
	return s.writeRecord()
}

// writeRecord writes the next row of the journal, if there is anything in it.
func (s *Store) writeRecord() error {
	if s.record.empty() {
		return nil
	}
	s.record = journal.Seal(s.record)
	_, err := s.st.insertJournal.Exec(s.seq+1, []byte(s.record))
	return err
}

// recorded counts the row that writeRecord wrote, after the commit, and gives the mark for what it made dirty.
func (s *Store) recorded() *journal.Mark {
	if s.record.empty() {
		return nil
	}
	m := &journal.Mark{Seq: s.seq + 1, At: time.Now(), Before: s.journaled}
	s.seq++
	s.journaled += int64(len(s.record))
	return m
}

// apply brings memory to what a committed transaction made of its counters. rows are those of the batch; nil for a
// counter that was not stored.
func (s *Store) apply(rows []*row, ids []engine.CounterID, changes []engine.CounterChange, since *journal.Mark) {
	for i := range changes {
		c := &changes[i]
		r := rows[c.Slot]
		if r == nil {
			r = &row{id: ids[c.Slot]}
		}
		if r.dirty == nil {
			s.recent.Remove(r.id)
			s.dirty.add(r, since)
		}
		if c.Spec != nil {
			r.spec = unique.Make(string(c.Spec))
		}
		r.state, r.expires = append(r.state[:0], c.State...), c.ExpiresAt
	}
}

// blob keeps an empty value from being NULL.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

const countersOfKeySQL = `SELECT key, name, spec, state FROM counters WHERE key = ? ORDER BY name`

// Counters implements [engine.Store].
func (s *Store) Counters(ctx context.Context, key string) ([]engine.StoredCounter, int64, error) {
	all, err := s.stored(ctx, "read counters", keySpan(engine.Selection{Key: key}), math.MaxInt, countersOfKeySQL, key)
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
	page, err := s.stored(ctx, "list counters", sp, max, listCountersSQL, sp.from.Key, sp.from.Name, sp.bound(), max)
	if err != nil {
		return nil, 0, err
	}
	return page, s.now().UnixMilli(), nil
}

// stored gives the first counters of a span; query reads them from the table. The dirty rows are read first: what is
// clean then is in the table, and what gets clean later is the same there, or newer.
func (s *Store) stored(ctx context.Context, act string, sp span, max int, query string, args ...any) ([]engine.StoredCounter, error) {
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
		if len(all) < max {
			all = append(all, r.stored())
		}
		return len(all) < max
	})
	return all
}

// keySpan gives the ids of a selection.
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
