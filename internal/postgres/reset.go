package postgres

import (
	"context"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// resetBatch is how many counters one transaction of Reset removes. Decisions run in between.
const resetBatch = 1000

const (
	idsOfSpanSQL = `
SELECT key, name FROM counters
WHERE (key, name) > ($1, $2) AND key < $3
ORDER BY key, name LIMIT $4`

	countCountersSQL = `
SELECT count(*) FROM counters WHERE (key, name) > ($1, $2) AND key < $3`

	countThoseSQL = `
SELECT count(*) FROM (SELECT unnest($1::text[]) AS key, unnest($2::text[]) AS name) k
CROSS JOIN LATERAL (SELECT FROM counters WHERE key = k.key AND name = k.name LIMIT 1) c`

	// Looks up each ctid first, which leaves the planner no choice.
	deleteCountersSQL = `
DELETE FROM counters WHERE ctid = ANY (ARRAY(
	SELECT l.ctid FROM (SELECT unnest($1::text[]) AS key, unnest($2::text[]) AS name) k
	CROSS JOIN LATERAL (SELECT ctid FROM counters WHERE key = k.key AND name = k.name LIMIT 1) l))`
)

// nextMillisecondSQL waits until the clock shows another millisecond. A counter knows by that of its beginning what belongs
// to it, so one that is made after a reset must not begin in the same one as the removed one. The turn is held meanwhile.
// It is sent before the row of the journal, whose statement reads the clock that later decisions are made by.
const nextMillisecondSQL = `SELECT pg_sleep(0.001)`

// Reset implements [engine.Store]. It removes the selection in small transactions. If one fails,
// what earlier ones have removed stays removed, and n says how many.
func (s *Store) Reset(ctx context.Context, sel engine.Selection, dryRun bool) (n int64, err error) {
	sp, err := keySpan(sel)
	if err != nil {
		return 0, fmt.Errorf("reset counters: %w", err)
	}
	if dryRun {
		if n, err = s.count(ctx, sp); err != nil {
			return 0, fmt.Errorf("count counters: %w", err)
		}
		return n, nil
	}
	for {
		removed, last, err := s.resetSome(ctx, sp)
		n += removed
		if err != nil {
			return n, fmt.Errorf("reset counters: %w", err)
		}
		if removed < resetBatch {
			return n, nil
		}
		sp.from = last
	}
}

// count counts the counters of a span in the table, and dirty ones that are not there yet.
func (s *Store) count(ctx context.Context, sp span) (n int64, err error) {
	dirty, err := s.dirtyCounters(ctx, sp, math.MaxInt32)
	if err != nil {
		return 0, err
	}
	keys := column(dirty, func(c *engine.StoredCounter) string { return c.Key })
	names := column(dirty, func(c *engine.StoredCounter) string { return c.Name })
	var both int64
	var b pgx.Batch
	b.Queue(countCountersSQL, sp.from.Key, sp.from.Name, sp.end).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
	b.Queue(countThoseSQL, keys, names).QueryRow(func(row pgx.Row) error { return row.Scan(&both) })
	err = s.readBatch(ctx, &b)
	return n + int64(len(dirty)) - both, err
}

func (s *Store) resetSome(ctx context.Context, sp span) (n int64, last engine.CounterID, err error) {
	ctx, release, err := s.acquireBounded(ctx)
	if err != nil {
		return 0, last, err
	}
	defer release()
	err = s.runInTurn(ctx, engine.Batch{}, func(t *tx, _ moment) (*draft, error) {
		ids, err := s.firstIDs(ctx, t, sp)
		if err != nil || len(ids) == 0 {
			return nil, err
		}
		n, last = int64(len(ids)), ids[len(ids)-1]
		for _, id := range ids {
			s.others.Add(id) // before the commit, because its answer may be lost
		}
		return &draft{removed: ids, reset: true}, nil
	})
	if err != nil {
		return 0, last, err
	}
	return n, last, nil
}

// firstIDs returns the first ids of a span, in the running transaction.
func (s *Store) firstIDs(ctx context.Context, t *tx, sp span) ([]engine.CounterID, error) {
	var dirty []engine.CounterID
	s.cache.eachDirty(sp, func(r *row) bool {
		dirty = append(dirty, r.id)
		return len(dirty) < resetBatch
	})
	t.params.reset()
	t.params.blob([]byte(sp.from.Key))
	t.params.blob([]byte(sp.from.Name))
	t.params.blob([]byte(sp.end))
	t.params.scalar(resetBatch)
	var clean []engine.CounterID
	found := t.conn.ExecParams(ctx, idsOfSpanSQL, t.params.values, []uint32{textOID, textOID, textOID, int8OID}, binaryFormat, binaryFormat).Read()
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
