package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

const countersOfKeySQL = `
SELECT key, name, spec, state FROM counters WHERE key = $1 ORDER BY name`

// Counters implements [engine.Store].
func (s *Store) Counters(ctx context.Context, key string) ([]engine.StoredCounter, int64, error) {
	from, end, err := keyRange(engine.Selection{Key: key})
	if err != nil {
		return nil, 0, fmt.Errorf("read counters: %w", err)
	}
	all, now, err := s.stored(ctx, from, end, math.MaxInt32, countersOfKeySQL, key)
	if err != nil {
		return nil, 0, fmt.Errorf("read counters: %w", err)
	}
	return all, now, nil
}

const listCountersSQL = `
SELECT key, name, spec, state FROM counters
WHERE (key, name) > ($1, $2) AND key < $3
ORDER BY key, name LIMIT $4`

// List implements [engine.Store].
func (s *Store) List(ctx context.Context, prefix string, after engine.CounterID, max int) ([]engine.StoredCounter, int64, error) {
	from, end, err := keyRange(engine.Selection{Prefix: prefix})
	if err != nil {
		return nil, 0, fmt.Errorf("list counters: %w", err)
	}
	if after.Compare(from) > 0 {
		from = after
	}
	page, now, err := s.stored(ctx, from, end, max, listCountersSQL, from.Key, from.Name, end, max)
	if err != nil {
		return nil, 0, fmt.Errorf("list counters: %w", err)
	}
	return page, now, nil
}

// stored returns the first max counters of a range, from the cache and from the table by query, and
// the clock. Dirty counters are read first: a counter that is clean then is in the table, and one
// that becomes clean later is in the table with the same state or a newer one.
func (s *Store) stored(ctx context.Context, from engine.CounterID, end string, max int, query string, args ...any) (all []engine.StoredCounter, now int64, err error) {
	dirty, err := s.dirtyCounters(ctx, from, end, max)
	if err != nil {
		return nil, 0, err
	}
	var clean []engine.StoredCounter
	var b pgx.Batch
	b.Queue(query, args...).Query(func(rows pgx.Rows) (err error) {
		clean, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c engine.StoredCounter, err error) {
			err = row.Scan(&c.Key, &c.Name, &c.Spec, &c.State)
			return c, err
		})
		return err
	})
	b.Queue(clockSQL).QueryRow(func(row pgx.Row) error {
		var at pgtype.Timestamptz
		err := row.Scan(&at)
		now = at.Time.UnixMilli()
		return err
	})
	if err := s.readBatch(ctx, &b); err != nil {
		return nil, 0, err
	}
	return journal.Merge(dirty, clean, max, func(c *engine.StoredCounter) engine.CounterID { return c.CounterID }), now, nil
}

// readBatch runs queries on a connection for decisions, but not on more than half of them.
func (s *Store) readBatch(ctx context.Context, b *pgx.Batch) error {
	release, err := acquire(ctx, s.readSlots)
	if err != nil {
		return fmt.Errorf("wait for the reads before: %w", err)
	}
	defer release()
	return s.pool.SendBatch(ctx, b).Close()
}

// dirtyCounters catches up with the journal and returns the first max dirty counters of a range.
func (s *Store) dirtyCounters(ctx context.Context, from engine.CounterID, end string, max int) (all []engine.StoredCounter, err error) {
	ctx, release, err := s.acquireBounded(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := s.catchUp(ctx); err != nil {
		return nil, err
	}
	s.cache.eachDirty(from, end, func(r *row) bool {
		if len(all) < max {
			all = append(all, r.stored())
		}
		return len(all) < max
	})
	return all, nil
}

// resetBatch is how many counters one transaction of Reset removes. Decisions run in between.
const resetBatch = 1000

const (
	idsOfRangeSQL = `
SELECT key, name FROM counters
WHERE (key, name) > ($1, $2) AND key < $3
ORDER BY key, name LIMIT $4`

	countCountersSQL = `
SELECT count(*) FROM counters WHERE (key, name) > ($1, $2) AND key < $3`

	countThoseSQL = `
SELECT count(*) FROM (SELECT unnest($1::text[]) AS key, unnest($2::text[]) AS name) k
CROSS JOIN LATERAL (SELECT FROM counters WHERE key = k.key AND name = k.name LIMIT 1) c`

	// The planner has to look up each ctid first.
	deleteCountersSQL = `
DELETE FROM counters WHERE ctid = ANY (ARRAY(
	SELECT l.ctid FROM (SELECT unnest($1::text[]) AS key, unnest($2::text[]) AS name) k
	CROSS JOIN LATERAL (SELECT ctid FROM counters WHERE key = k.key AND name = k.name LIMIT 1) l))`
)

// Reset implements [engine.Store]. It removes the selection in small transactions. If one fails,
// what earlier ones have removed stays removed, and n says how many.
func (s *Store) Reset(ctx context.Context, sel engine.Selection, dryRun bool) (n int64, err error) {
	from, end, err := keyRange(sel)
	if err != nil {
		return 0, fmt.Errorf("reset counters: %w", err)
	}
	if dryRun {
		if n, err = s.count(ctx, from, end); err != nil {
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

// count counts the counters of a range in the table, and dirty ones that are not there yet.
func (s *Store) count(ctx context.Context, from engine.CounterID, end string) (n int64, err error) {
	dirty, err := s.dirtyCounters(ctx, from, end, math.MaxInt32)
	if err != nil {
		return 0, err
	}
	keys, names := make([]string, len(dirty)), make([]string, len(dirty))
	for i := range dirty {
		keys[i], names[i] = dirty[i].Key, dirty[i].Name
	}
	var both int64
	var b pgx.Batch
	b.Queue(countCountersSQL, from.Key, from.Name, end).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
	b.Queue(countThoseSQL, keys, names).QueryRow(func(row pgx.Row) error { return row.Scan(&both) })
	err = s.readBatch(ctx, &b)
	return n + int64(len(dirty)) - both, err
}

func (s *Store) resetSome(ctx context.Context, from engine.CounterID, end string) (n int64, last engine.CounterID, err error) {
	ctx, release, err := s.acquireBounded(ctx)
	if err != nil {
		return 0, last, err
	}
	defer release()
	err = s.runInTurn(ctx, engine.Batch{}, func(t *tx, _ moment) (*draft, error) {
		ids, err := s.firstOf(ctx, t, from, end)
		if err != nil || len(ids) == 0 {
			return nil, err
		}
		n, last = int64(len(ids)), ids[len(ids)-1]
		for _, id := range ids {
			s.others.Add(id) // before the commit, because its answer may be lost
		}
		return &draft{removed: ids}, nil
	})
	if err != nil {
		return 0, last, err
	}
	return n, last, nil
}

// firstOf returns the first ids of a range, in the running transaction.
func (s *Store) firstOf(ctx context.Context, t *tx, from engine.CounterID, end string) ([]engine.CounterID, error) {
	var dirty []engine.CounterID
	s.cache.eachDirty(from, end, func(r *row) bool {
		dirty = append(dirty, r.id)
		return len(dirty) < resetBatch
	})
	t.params.reset()
	t.params.blob([]byte(from.Key))
	t.params.blob([]byte(from.Name))
	t.params.blob([]byte(end))
	t.params.scalar(resetBatch)
	var clean []engine.CounterID
	found := t.conn.ExecParams(ctx, idsOfRangeSQL, t.params.values, []uint32{textOID, textOID, textOID, int8OID}, binaryFormat, binaryFormat).Read()
	for _, values := range found.Rows {
		clean = append(clean, engine.CounterID{Key: string(values[0]), Name: string(values[1])})
	}
	return journal.Merge(dirty, clean, resetBatch, func(id *engine.CounterID) engine.CounterID { return *id }), found.Err
}

// sendRemoved deletes counters from the table. The journal row names them too, so that earlier rows
// do not restore them.
func (t *tx) sendRemoved(p *pgconn.Pipeline, ids []engine.CounterID) {
	if len(ids) == 0 {
		return
	}
	t.params.reset()
	elements(t, textOID, ids, func(to *[]byte, id engine.CounterID) { element(to, id.Key) })
	elements(t, textOID, ids, func(to *[]byte, id engine.CounterID) { element(to, id.Name) })
	t.send(p, step{"delete counters", stDeleteCounters, anyNumber})
}

// keyRange returns the bounds of a selection: ids greater than from with a key below end.
//
// Text parameters must be UTF-8, so the upper bound cannot be made by incrementing the last byte.
// UTF-8 sorts by code point, so the last code point is incremented instead.
func keyRange(sel engine.Selection) (from engine.CounterID, end string, err error) {
	if !utf8.ValidString(sel.Key) || !utf8.ValidString(sel.Prefix) {
		return from, "", errors.New("the key or prefix is not UTF-8")
	}
	if sel.Key != "" {
		// Nothing sorts between a key and the key followed by the lowest character that text can
		// have.
		return engine.CounterID{Key: sel.Key}, sel.Key + "\x01", nil
	}
	return engine.CounterID{Key: sel.Prefix}, prefixEnd(sel.Prefix), nil
}

// maxKey sorts after every key: it is longer than any, and made of the last character.
var maxKey = strings.Repeat(string(utf8.MaxRune), 65)

// prefixEnd returns the least string that sorts after every string with the prefix.
func prefixEnd(prefix string) string {
	for prefix != "" {
		r, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch r {
		case utf8.MaxRune:
			continue // carry
		case 0xd7ff:
			return prefix + "\ue000" // skips the surrogates, which UTF-8 does not have
		}
		return prefix + string(r+1)
	}
	return maxKey
}
