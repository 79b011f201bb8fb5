package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"
	"unique"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/engine"
)

const (
	// The turn: whoever writes to the journal of this database holds this lock until its
	// transaction ends. The server grants it in order of arrival.
	turnSQL = `SELECT pg_advisory_xact_lock('journal'::regclass::oid::bigint)`

	// The arrays are unnested in a select list, which returns elements one by one; in FROM, each
	// array would first be copied to a table of its own. The LIMIT makes the planner look up each
	// counter.
	readCountersSQL = `
SELECT k.ord, c.state, c.expires_at, c.spec, c.ctid
FROM (
	SELECT generate_subscripts($1::text[], 1) AS ord, unnest($1::text[]) AS key, unnest($2::text[]) AS name
) k
CROSS JOIN LATERAL (
	SELECT state, expires_at, spec, ctid FROM counters WHERE key = k.key AND name = k.name LIMIT 1
) c`
)

// turn is the right to write, taken before the batch was known.
type turn struct {
	s       *Store
	conn    conn
	t       *tx
	release func()
}

// Await implements [engine.Waiter]. It returns nil if no other worker writes, since there is
// nothing to wait for then, and if the turn cannot be taken.
func (s *Store) Await(ctx context.Context) engine.Turn {
	release, err := acquire(ctx, s.writeLock)
	if err != nil {
		return nil
	}
	if !s.loaded || s.optimistic.skips == 0 {
		release()
		return nil
	}
	s.cache.evict()
	conn, err := s.conns.get(ctx)
	if err != nil {
		release()
		return nil
	}
	w := &turn{s: s, conn: conn, t: s.begin(conn), release: release}
	if _, err = s.readInTurn(ctx, w.t, engine.Batch{}, true); err != nil {
		w.End()
		return nil // an Update without a turn will fail in the same way, and report it
	}
	return w
}

// End implements [engine.Turn].
func (w *turn) End() {
	releaseConn(w.conn)
	w.release()
}

// releaseConn releases a connection, after a rollback in the background if its transaction is still
// open. It is not worth waiting for: the next transaction uses another connection, and queues for
// the turn after this one at the server. On a connection that hangs, the rollback would never end.
func releaseConn(conn conn) {
	pc := conn.pg()
	if pc.IsClosed() || pc.TxStatus() == 'I' {
		conn.Release()
		return
	}
	go func() {
		defer conn.Release() // which closes it if it is not idle
		ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
		defer cancel()
		_ = pc.Exec(ctx, `ROLLBACK`).Close()
	}()
}

// write decides the batch by plan, writes the changes and ends the turn.
func (w *turn) write(ctx context.Context, b engine.Batch, plan planner) (err error) {
	// Deferred, because the turn has to end even if plan panics.
	defer func() {
		defer w.release()
		releaseConn(w.conn)
		err = w.s.resolveInDoubt(ctx, err)
	}()
	w.s.optimistic.skips--
	// The batch was gathered after the clock was read. If it were decided at that time, a charge
	// would count from before its request arrived. Hence the range up to the latest time that it
	// may be now.
	from, latest, _ := w.s.clock.estimate()
	at := moment{from, latest, latest}
	for {
		w.s.findMissing(w.t, b.Counters)
		// A batch without counters writes nothing, so only a read tells that the turn was not lost.
		if at.until == 0 || len(b.IDs)+len(w.t.missing) > 0 || len(b.Counters) == 0 {
			at = moment{}
			if at.now, err = w.s.readInTurn(ctx, w.t, b, false); err != nil {
				return err
			}
		}
		if err = w.s.writePlan(ctx, w.t, at, plan); !errors.Is(err, errUnsure) {
			return err
		}
		at = moment{}
	}
}

// readInTurn is the first round trip. It takes the turn, applies the rest of the journal to the
// cache, sets s.rows to the rows of the batch, and returns the clock. If the cache is far behind it
// takes more round trips. begin is false if the turn was already taken.
func (s *Store) readInTurn(ctx context.Context, t *tx, b engine.Batch, begin bool) (now int64, err error) {
	for ids := slices.Concat(b.IDs, b.ConsumeIDs); ; ids, begin = nil, false {
		s.findMissing(t, b.Counters)
		sent := time.Now()
		found, more, now, err := s.readInTurnOnce(ctx, t, ids, begin)
		if err != nil {
			return 0, err
		}
		if more || !s.mergeFound(b.Counters, found) {
			continue
		}
		s.clock.record(now, sent, time.Now())
		return now, nil
	}
}

// findMissing sets s.rows to the cached rows of the counters, with nil for those that have to be
// read from the table. It collects these in t.missing.
func (s *Store) findMissing(t *tx, ids []engine.CounterID) {
	t.missing, s.rows = t.missing[:0], s.rows[:0]
	now, _, _ := s.clock.estimate()
	for _, id := range ids {
		r := s.cache.get(id)
		if r == nil || r.mayBeRemoved(now) {
			r = nil
			t.missing = append(t.missing, id)
		}
		s.rows = append(s.rows, r)
	}
}

// mayBeRemoved reports whether another process may have removed the counter since it was cached:
// one that is clean and has expired is removed without a row in the journal.
func (r *row) mayBeRemoved(now int64) bool { return r.dirtySince == nil && r.expires <= now }

// mergeFound completes s.rows, which findMissing has filled with cached rows, by those found in the
// table, in order of t.missing. A row that has become dirty since takes precedence. It returns
// false if a cached row has become clean since and may be removed, so that it has to be read after
// all.
func (s *Store) mergeFound(ids []engine.CounterID, found []*row) bool {
	next := 0
	now, _, _ := s.clock.estimate()
	for i, id := range ids {
		r := s.cache.get(id)
		if s.rows[i] == nil {
			if r == nil || r.dirtySince == nil {
				r = s.cache.replaceClean(r, found[next])
			}
			next++
		} else if r != nil && r.mayBeRemoved(now) {
			return false
		}
		s.rows[i] = r
	}
	return true
}

func (s *Store) readInTurnOnce(ctx context.Context, t *tx, ids []string, begin bool) (found []*row, more bool, now int64, err error) {
	p := t.conn.StartPipeline(ctx)
	defer func() {
		if closeErr := p.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("read the journal: %w", closeErr)
		}
	}()
	if begin {
		t.stmts.send(p, stBegin, nil)
		t.stmts.send(p, stTurn, nil)
	}
	t.sendReceipts(p, ids)
	s.sendReadJournal(t, p)
	t.sendReadCounters(p)
	if err := p.Sync(); err != nil {
		return nil, false, 0, fmt.Errorf("read the journal: %w", err)
	}
	if begin {
		if _, err := done(p); err != nil {
			return nil, false, 0, notCommitted("begin", err)
		}
		if _, err := done(p); err != nil {
			return nil, false, 0, notCommitted("wait for the write lock", err)
		}
	}
	if len(ids) > 0 {
		if t.receipts, err = t.readReceipts(p); err != nil {
			return nil, false, 0, notCommitted("read receipts", err)
		}
	}
	if more, now, err = s.applyJournal(p); err != nil {
		return nil, false, 0, notCommitted("read the journal", err)
	}
	if found, err = t.readCounters(p); err != nil {
		return nil, false, 0, notCommitted("read counters", err)
	}
	return found, more, now, nil
}

func (t *tx) sendReadCounters(p *pgconn.Pipeline) {
	if len(t.missing) == 0 {
		return
	}
	t.params.reset()
	elements(t, textOID, t.missing, func(to *[]byte, id engine.CounterID) { element(to, id.Key) })
	elements(t, textOID, t.missing, func(to *[]byte, id engine.CounterID) { element(to, id.Name) })
	t.stmts.send(p, stReadCounters, t.params.values)
}

// readCounters returns a row for each counter of t.missing; nil for one that is not in the table.
func (t *tx) readCounters(p *pgconn.Pipeline) ([]*row, error) {
	if len(t.missing) == 0 {
		return nil, nil
	}
	rr, err := result(p)
	if err != nil {
		return nil, err
	}
	found := make([]*row, len(t.missing))
	for rr.NextRow() {
		values := rr.Values()
		at := int(binary.BigEndian.Uint32(values[0])) - 1
		found[at] = &row{
			id: t.missing[at], state: append([]byte{}, values[1]...), expires: int64(binary.BigEndian.Uint64(values[2])),
			spec: unique.Make(string(values[3])),
		}
		copy(found[at].ctid[:], values[4])
	}
	_, err = rr.Close()
	return found, err
}
