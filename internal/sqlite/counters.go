package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/seed503877ad/limits/internal/engine"
)

// row is a row of counters.
type row struct {
	state   []byte
	expires int64
}

const readCounterSQL = `SELECT state, expires_at FROM counters WHERE key = ? AND name = ?`

// readStates gives the rows of a batch, nil for a counter that is not stored, and their states.
func (s *Store) readStates(ids []engine.CounterID) (rows []*row, states [][]byte, err error) {
	rows, states = make([]*row, len(ids)), make([][]byte, len(ids))
	for i, id := range ids {
		r, known := s.recent.Get(id)
		if !known {
			r = new(row)
			err := s.st.readCounter.QueryRow(id.Key, id.Name).Scan(&r.state, &r.expires)
			if errors.Is(err, sql.ErrNoRows) {
				continue
			}
			if err != nil {
				return nil, nil, err
			}
			r.state = blob(r.state) // nil is a counter that is not stored
			s.recent.Add(id, r)
		}
		rows[i], states[i] = r, r.state
	}
	return rows, states, nil
}

const (
	// Without expires_at, which seldom changes: SQLite rewrites an index for every column that is set, changed or
	// not.
	updateStateSQL = `UPDATE counters SET state = ? WHERE key = ? AND name = ?`

	updateCounterSQL = `
UPDATE counters SET state = ?, expires_at = ?, spec = coalesce(?, spec) WHERE key = ? AND name = ?`

	insertCounterSQL = `INSERT INTO counters (state, expires_at, spec, key, name) VALUES (?, ?, ?, ?, ?)`
)

func (s *Store) writeCounters(rows []*row, ids []engine.CounterID, changes []engine.CounterChange) error {
	for i := range changes {
		c := &changes[i]
		if c.Slot < 0 || c.Slot >= len(ids) {
			return fmt.Errorf("slot %d of %d", c.Slot, len(ids))
		}
		id, r := ids[c.Slot], rows[c.Slot]
		var spec any
		if c.Spec != nil {
			spec = string(c.Spec)
		}
		var err error
		switch {
		case r == nil && c.Spec == nil:
			err = errors.New("a new counter without a spec")
		case r == nil:
			_, err = s.st.insertCounter.Exec(blob(c.State), c.ExpiresAt, spec, id.Key, id.Name)
		case c.Spec == nil && c.ExpiresAt == r.expires:
			_, err = s.st.updateState.Exec(blob(c.State), id.Key, id.Name)
		default:
			_, err = s.st.updateAll.Exec(blob(c.State), c.ExpiresAt, spec, id.Key, id.Name)
		}
		if err != nil {
			return err
		}
		if r == nil {
			r = new(row)
			s.recent.Add(id, r)
		}
		r.state, r.expires = append(r.state[:0], c.State...), c.ExpiresAt
	}
	return nil
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
	all, err := s.stored(ctx, countersOfKeySQL, key)
	if err != nil {
		return nil, 0, fmt.Errorf("read counters: %w", err)
	}
	return all, s.now().UnixMilli(), nil
}

const listCountersSQL = `
SELECT key, name, spec, state FROM counters
WHERE (key, name) > (?1, ?2) AND key < ?3
ORDER BY key, name LIMIT ?4`

// List implements [engine.Store].
func (s *Store) List(ctx context.Context, prefix string, after engine.CounterID, max int) ([]engine.StoredCounter, int64, error) {
	from, end := keyRange(engine.Selection{Prefix: prefix})
	if after.Compare(from) > 0 {
		from = after
	}
	page, err := s.stored(ctx, listCountersSQL, from.Key, from.Name, end, max)
	if err != nil {
		return nil, 0, fmt.Errorf("list counters: %w", err)
	}
	return page, s.now().UnixMilli(), nil
}

func (s *Store) stored(ctx context.Context, query string, args ...any) (all []engine.StoredCounter, err error) {
	found, err := s.reader.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	for found.Next() {
		var c engine.StoredCounter
		if err := found.Scan(&c.Key, &c.Name, &c.Spec, &c.State); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, found.Err()
}

// resetBatch is how many rows one transaction of Reset removes, so that decisions get in between.
const resetBatch = 1000

const (
	countCountersSQL = `SELECT count(*) FROM counters WHERE (key, name) > (?1, ?2) AND key < ?3`

	lastOfRangeSQL = `
SELECT key, name FROM (
	SELECT key, name FROM counters WHERE (key, name) > (?1, ?2) AND key < ?3 ORDER BY key, name LIMIT ?4
) ORDER BY key DESC, name DESC LIMIT 1`

	deleteRangeSQL = `DELETE FROM counters WHERE (key, name) > (?1, ?2) AND (key, name) <= (?3, ?4)`
)

// Reset implements [engine.Store]. It works through the selection in small transactions: what they removed stays
// removed when a later one fails, and the number says how many.
func (s *Store) Reset(ctx context.Context, sel engine.Selection, dryRun bool) (n int64, err error) {
	from, end := keyRange(sel)
	if dryRun {
		if err := s.reader.QueryRowContext(ctx, countCountersSQL, from.Key, from.Name, end).Scan(&n); err != nil {
			return 0, fmt.Errorf("count counters: %w", err)
		}
		return n, nil
	}
	for {
		removed, last, err := s.resetSome(ctx, from, end)
		n += removed
		if err != nil {
			return n, fmt.Errorf("reset counters: %w", err)
		}
		if removed < resetBatch {
			return n, nil
		}
		from = last
	}
}

func (s *Store) resetSome(ctx context.Context, from engine.CounterID, end any) (n int64, last engine.CounterID, err error) {
	err = s.transact(ctx, func() (bool, error) {
		bg := context.Background()
		err := s.conn.QueryRowContext(bg, lastOfRangeSQL, from.Key, from.Name, end, resetBatch).Scan(&last.Key, &last.Name)
		if errors.Is(err, sql.ErrNoRows) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		res, err := s.conn.ExecContext(bg, deleteRangeSQL, from.Key, from.Name, last.Key, last.Name)
		if err != nil {
			return false, err
		}
		s.recent.Purge()
		n, err = res.RowsAffected()
		return true, err
	})
	if err != nil {
		return 0, last, err
	}
	return n, last, nil
}

// keyRange gives the bounds of a selection: ids behind from whose key is below end. A blob sorts behind every text,
// and is the end where there is no other.
func keyRange(sel engine.Selection) (from engine.CounterID, end any) {
	if sel.Key != "" {
		return engine.CounterID{Key: sel.Key}, sel.Key + "\x00"
	}
	from = engine.CounterID{Key: sel.Prefix}
	upper := []byte(sel.Prefix)
	for len(upper) > 0 && upper[len(upper)-1] == math.MaxUint8 {
		upper = upper[:len(upper)-1]
	}
	if len(upper) == 0 {
		return from, []byte{}
	}
	upper[len(upper)-1]++
	return from, string(upper)
}
