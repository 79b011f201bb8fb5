package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed503877ad/limits/internal/engine"
)

// Rows are locked in the order of the batch, which is the same for every worker, so no two ever wait for each other.
// The lock inside a lateral subquery leaves the planner no choice: it must go through the arrays in their order and
// look each row up. (Of a plain join with ORDER BY and FOR UPDATE it makes, when the table was last seen small, a walk
// through the whole index.) The arrays are unnested in a select list, where their elements are handed on one by one; in
// FROM each array is first copied to a table of its own.
const lockCountersSQL = `
SELECT k.ord, c.ctid, c.state
FROM (
	SELECT generate_subscripts($1::text[], 1) AS ord, unnest($1::text[]) AS key, unnest($2::text[]) AS name
) k
CROSS JOIN LATERAL (
	SELECT ctid, state FROM counters WHERE key = k.key AND name = k.name FOR UPDATE
) c`

func (t *tx) sendLock(p *pgconn.Pipeline, ids []engine.CounterID) {
	t.params.reset()
	keys := t.params.add(textOID, len(ids))
	for i := range ids {
		element(keys, ids[i].Key)
	}
	names := t.params.add(textOID, len(ids))
	for i := range ids {
		element(names, ids[i].Name)
	}
	t.all.send(p, stLockCounters, t.params.values)
}

// readStates reads the answer to sendLock; nothing was sent for no counters.
func (t *tx) readStates(p *pgconn.Pipeline, n int) ([][]byte, error) {
	t.arena = t.arena[:0]
	t.tids = cleared(t.tids, n)
	t.spans = cleared(t.spans, n)
	t.states = cleared(t.states, n)
	if n == 0 {
		return t.states, nil
	}
	rr, err := result(p)
	if err != nil {
		return nil, err
	}
	for rr.NextRow() {
		row := rr.Values()
		slot := int(binary.BigEndian.Uint32(row[0])) - 1
		copy(t.tids[slot][:], row[1])
		begin := len(t.arena)
		t.arena = append(t.arena, row[2]...)
		t.spans[slot] = [2]int{begin, len(t.arena)}
	}
	if _, err := rr.Close(); err != nil {
		return nil, err
	}
	// Only now, because the arena may have moved while it grew.
	for i, span := range t.spans {
		if t.tids[i] != (tid{}) {
			t.states[i] = t.arena[span[0]:span[1]:span[1]]
		}
	}
	return t.states, nil
}

func cleared[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, max(n, 2*cap(s)))
	}
	s = s[:n]
	clear(s)
	return s
}

// A locked row stays where it is until the transaction ends, so its place finds it without the index: a third less
// work than by key. All rows are there, so they return in the order of the arrays.
const updateStatesSQL = `
UPDATE counters c SET state = u.state, expires_at = u.expires_at
FROM (SELECT unnest($1::tid[]) AS place, unnest($2::bytea[]) AS state, unnest($3::bigint[]) AS expires_at) u
WHERE c.ctid = u.place
RETURNING c.ctid, c.xmin`

const updateSpecsSQL = `
UPDATE counters c SET state = u.state, expires_at = u.expires_at, spec = u.spec
FROM (
	SELECT unnest($1::tid[]) AS place, unnest($2::bytea[]) AS state, unnest($3::bigint[]) AS expires_at, unnest($4::text[]) AS spec
) u
WHERE c.ctid = u.place
RETURNING c.ctid, c.xmin`

// No ON CONFLICT: a row that somebody else created first was not part of the decision, which must be made again. One
// that was created since the read is looked for first, and fails the statement with division_by_zero: to insert it would
// wait for whoever is updating it, and that may be somebody who waits for a row that is locked here. (With NOT EXISTS
// the planner would read the whole index of a table that it takes for a small one.)
const insertCountersSQL = `
INSERT INTO counters (state, expires_at, spec, key, name)
SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::text[], $4::text[], $5::text[]) AS u (state, expires_at, spec, key, name)
WHERE 1 / ((SELECT true FROM counters c WHERE c.key = u.key AND c.name = u.name) IS NULL)::int = 1
RETURNING ctid, xmin`

// sendCounters inserts first: nobody must wait for a row that is updated here while an insert waits for him.
func (t *tx) sendCounters(p *pgconn.Pipeline, steps []step, ids []engine.CounterID, changes []engine.CounterChange) []step {
	if len(t.inserted) > 0 {
		t.params.reset()
		t.addStates(changes, t.inserted)
		t.addSpecs(changes, t.inserted)
		t.addIDs(ids, changes, t.inserted)
		t.all.send(p, stInsertCounters, t.params.values)
		steps = append(steps, step{"insert counters", len(t.inserted), t.inserted})
	}
	if len(t.updated) > 0 {
		t.params.reset()
		t.addPlaces(changes, t.updated)
		t.addStates(changes, t.updated)
		t.all.send(p, stUpdateStates, t.params.values)
		steps = append(steps, step{"update counters", len(t.updated), t.updated})
	}
	if len(t.respecified) > 0 {
		t.params.reset()
		t.addPlaces(changes, t.respecified)
		t.addStates(changes, t.respecified)
		t.addSpecs(changes, t.respecified)
		t.all.send(p, stUpdateSpecs, t.params.values)
		steps = append(steps, step{"update counters", len(t.respecified), t.respecified})
	}
	return steps
}

func (t *tx) addPlaces(changes []engine.CounterChange, which []int) {
	places := t.params.add(tidOID, len(which))
	for _, i := range which {
		element(places, t.tids[changes[i].Slot][:])
	}
}

func (t *tx) addStates(changes []engine.CounterChange, which []int) {
	states := t.params.add(byteaOID, len(which))
	for _, i := range which {
		element(states, changes[i].State)
	}
	expires := t.params.add(int8OID, len(which))
	for _, i := range which {
		int8Element(expires, changes[i].ExpiresAt)
	}
}

func (t *tx) addIDs(ids []engine.CounterID, changes []engine.CounterChange, which []int) {
	keys := t.params.add(textOID, len(which))
	for _, i := range which {
		element(keys, ids[changes[i].Slot].Key)
	}
	names := t.params.add(textOID, len(which))
	for _, i := range which {
		element(names, ids[changes[i].Slot].Name)
	}
}

func (t *tx) addSpecs(changes []engine.CounterChange, which []int) {
	specs := t.params.add(textOID, len(which))
	for _, i := range which {
		element(specs, changes[i].Spec)
	}
}

const countersOfKeySQL = `
SELECT key, name, spec, state FROM counters WHERE key = $1 ORDER BY name`

// Counters implements [engine.Store].
func (s *Store) Counters(ctx context.Context, key string) ([]engine.StoredCounter, int64, error) {
	if !utf8.ValidString(key) {
		return nil, 0, errors.New("read counters: the key is not UTF-8")
	}
	all, now, err := s.stored(ctx, countersOfKeySQL, key)
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
	page, now, err := s.stored(ctx, listCountersSQL, from.Key, from.Name, end, max)
	if err != nil {
		return nil, 0, fmt.Errorf("list counters: %w", err)
	}
	return page, now, nil
}

// stored runs a query for counters, and reads the clock behind it in the same round trip.
func (s *Store) stored(ctx context.Context, sql string, args ...any) (all []engine.StoredCounter, now int64, err error) {
	var b pgx.Batch
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c engine.StoredCounter, err error) {
			err = row.Scan(&c.Key, &c.Name, &c.Spec, &c.State)
			return c, err
		})
		return err
	})
	b.Queue(clockSQL).QueryRow(func(row pgx.Row) error {
		var at pgtype.Timestamptz
		err := row.Scan(&at, nil)
		now = at.Time.UnixMilli()
		return err
	})
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return nil, 0, err
	}
	return all, now, nil
}

// resetBatch is how many rows one transaction of Reset locks.
const resetBatch = 1000

const (
	countCountersSQL = `
SELECT count(*) FROM counters WHERE (key, name) > ($1, $2) AND key < $3`

	// Locked in key order, like everywhere. What is deleted is found by place in a statement of its own, which sees
	// the version of a row that the lock waited for.
	lockRangeSQL = `
SELECT ctid, key, name FROM counters
WHERE (key, name) > ($1, $2) AND key < $3
ORDER BY key, name LIMIT $4
FOR UPDATE`

	deleteCountersSQL = `
DELETE FROM counters WHERE ctid = ANY ($1::tid[])`
)

// Reset implements [engine.Store]. It works through the selection in small transactions: what they removed stays
// removed when a later one fails, and the number says how many.
func (s *Store) Reset(ctx context.Context, sel engine.Selection, dryRun bool) (n int64, err error) {
	from, end, err := keyRange(sel)
	if err != nil {
		return 0, fmt.Errorf("reset counters: %w", err)
	}
	if dryRun {
		if err := s.pool.QueryRow(ctx, countCountersSQL, from.Key, from.Name, end).Scan(&n); err != nil {
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

func (s *Store) resetSome(ctx context.Context, from engine.CounterID, end string) (n int64, last engine.CounterID, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, lockRangeSQL, from.Key, from.Name, end, resetBatch)
		if err != nil {
			return err
		}
		places := make([]pgtype.TID, 0, resetBatch)
		var place pgtype.TID
		_, err = pgx.ForEachRow(rows, []any{&place, &last.Key, &last.Name}, func() error {
			places = append(places, place)
			return nil
		})
		if err != nil || len(places) == 0 {
			return err
		}
		tag, err := tx.Exec(ctx, deleteCountersSQL, places)
		n = tag.RowsAffected()
		return err
	})
	if err != nil {
		return 0, last, err
	}
	return n, last, nil
}

// keyRange gives the bounds of a selection: ids behind from whose key is below end.
//
// Text parameters must be UTF-8, so the upper bound cannot be made by counting up the last byte. UTF-8 sorts by code
// point, so counting up the last code point does the same.
func keyRange(sel engine.Selection) (from engine.CounterID, end string, err error) {
	if !utf8.ValidString(sel.Key) || !utf8.ValidString(sel.Prefix) {
		return from, "", errors.New("the key or prefix is not UTF-8")
	}
	if sel.Key != "" {
		// Nothing sorts between a key and the key followed by the lowest character that text can hold.
		return engine.CounterID{Key: sel.Key}, sel.Key + "\x01", nil
	}
	return engine.CounterID{Key: sel.Prefix}, prefixEnd(sel.Prefix), nil
}

// maxKey sorts behind every key: it is longer than any, of the last character there is.
var maxKey = strings.Repeat(string(utf8.MaxRune), 65)

// prefixEnd is the least string behind all that begin with prefix.
func prefixEnd(prefix string) string {
	for prefix != "" {
		r, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch r {
		case utf8.MaxRune:
			continue // carry
		case 0xd7ff:
			return prefix + "\ue000" // over the surrogates, which UTF-8 leaves out
		}
		return prefix + string(r+1)
	}
	return maxKey
}
