package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
	"unique"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

const (
	// The turn: whoever writes to the journal of this database holds this lock until its
	// transaction ends. The server grants it in order of arrival.
	turnSQL = `SELECT pg_advisory_xact_lock('journal'::regclass::oid::bigint)`

	// The last row that was read comes once more, without its changes, if it is still there; every
	// row comes with the clock. Rows are numbered without a gap, so the upper bound on seq also
	// bounds their count. A LIMIT would not do: if the last row read is gone, the scan would go
	// over all rows deleted with it, whose index entries stay as long as any transaction of the
	// database may see them.
	readJournalSQL = `
SELECT seq, token, CASE WHEN seq > $1 THEN changes ELSE '' END, clock_timestamp()
FROM journal WHERE seq >= $1 AND seq < $2 ORDER BY seq`

	// searchSQL finds the first row of the journal from its last one, by binary search: a scan from
	// the front would go over deleted rows, as above. Every number between the two has a row and
	// none below has, so steps from 2^40 down to 1, each taken only if it leads to a row, end at
	// the first row.
	searchSQL = `
WITH RECURSIVE search (seq, step) AS (
	(SELECT seq, 1::bigint << 40 FROM journal ORDER BY seq DESC LIMIT 1)
	UNION ALL
	SELECT coalesce((SELECT j.seq FROM journal j WHERE j.seq = s.seq - s.step), s.seq), s.step >> 1 FROM search s WHERE s.step > 0
)`

	// For a process that has read no row yet.
	readWholeJournalSQL = searchSQL + `
SELECT seq, token, changes, clock_timestamp() FROM journal
WHERE seq >= (SELECT min(seq) FROM search) ORDER BY seq LIMIT $1`

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

	// Inserts the next row of the journal. It fails with division_by_zero if the last row is not
	// the expected one, or the clock is not in the range that the decision assumed; random() keeps
	// the planner from evaluating the division. It is a statement of its own, after turnSQL, so
	// that its snapshot is taken while the turn is held. If the expected row is there but not the
	// last, the insert violates the primary key, because rows are deleted from the front only.
	appendSQL = `
INSERT INTO journal (seq, token, changes) VALUES (coalesce((
	SELECT seq + 1 FROM journal
	WHERE seq = $1::bigint AND token = $2 AND clock_timestamp() >= $5 AND clock_timestamp() < $6 LIMIT 1
), 1 / (random() * 0)::bigint), $3, $4) RETURNING clock_timestamp()`

	// appending is how errors call appendSQL.
	appending = "write to the journal"

	// journalPage is how many rows of the journal are read in a round trip.
	journalPage = 2000
	// Marking rows clean scans the dirty rows. So it is done once firstNeeded has advanced by
	// 1/cleanPart of the number of dirty rows, or by maxCleanLag.
	cleanPart   = 64
	maxCleanLag = 64

	beginningOfTime = math.MinInt64
	endOfTime       = math.MaxInt64
)

// turn is the right to write, taken before the batch was known.
type turn struct {
	s       *Store
	conn    *pgxpool.Conn
	t       *tx
	release func()
}

// Await implements [engine.Waiter]. It returns nil if no other worker writes, since there is
// nothing to wait for then.
func (s *Store) Await(ctx context.Context) engine.Turn {
	release, err := acquire(ctx, s.writeLock)
	if err != nil {
		return nil
	}
	if !s.loaded || s.optimisticSkips == 0 {
		release()
		return nil
	}
	s.cache.evict()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		release()
		return nil
	}
	w := &turn{s: s, conn: conn, t: s.begin(conn), release: release}
	if _, err = s.read(ctx, w.t, engine.Batch{}, true); err != nil {
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
func releaseConn(conn *pgxpool.Conn) {
	pc := conn.Conn().PgConn()
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
	w.s.optimisticSkips--
	// The batch was gathered after the clock was read, so at that time a charge could count from
	// before its request arrived. Hence the range up to the latest time that it may be now.
	from, latest, _ := w.s.clock.estimate()
	at := moment{from, latest, latest}
	for {
		w.s.findMissing(w.t, b.Counters)
		// A batch without counters writes nothing, so only a read tells that the turn was not lost.
		if at.until == 0 || len(b.IDs)+len(w.t.missing) > 0 || len(b.Counters) == 0 {
			at = moment{}
			if at.now, err = w.s.read(ctx, w.t, b, false); err != nil {
				return err
			}
		}
		if err = w.s.writePlan(ctx, w.t, at, plan); !errors.Is(err, errUnsure) {
			return err
		}
		at = moment{}
	}
}

// read is the first round trip. It takes the turn, applies the rest of the journal to the cache,
// sets s.rows to the rows of the batch, and returns the clock. If the cache is far behind it takes
// more round trips. begin is false if the turn was already taken.
func (s *Store) read(ctx context.Context, t *tx, b engine.Batch, begin bool) (now int64, err error) {
	for ids := b.IDs; ; ids, begin = nil, false {
		cached := s.findMissing(t, b.Counters)
		sent := time.Now()
		found, more, now, err := s.readOnce(ctx, t, ids, begin)
		if err != nil {
			return 0, err
		}
		if more || !s.mergeFound(b.Counters, cached, found) {
			continue
		}
		s.clock.record(now, sent, time.Now())
		return now, nil
	}
}

// findMissing sets s.rows, which it also returns, to the cached rows of the counters, with nil for
// those that have to be read from the table. It collects these in t.missing.
func (s *Store) findMissing(t *tx, ids []engine.CounterID) []*row {
	t.missing = t.missing[:0]
	cached := s.rows[:0]
	now, _, _ := s.clock.estimate()
	for _, id := range ids {
		r := s.cache.get(id)
		if r == nil || r.mayBeRemoved(now) {
			r = nil
			t.missing = append(t.missing, id)
		}
		cached = append(cached, r)
	}
	s.rows = cached
	return cached
}

// mayBeRemoved reports whether another process may have removed the counter since it was cached:
// one that is clean and has expired is removed without a row in the journal.
func (r *row) mayBeRemoved(now int64) bool { return r.dirtySince == nil && r.expires <= now }

// mergeFound completes s.rows, which findMissing has filled with cached rows, by those found in the
// table, in order of t.missing. A row that has become dirty since takes precedence. It returns
// false if a cached row has become clean since and may be removed, so that it has to be read after
// all.
func (s *Store) mergeFound(ids []engine.CounterID, cached []*row, found []*row) bool {
	next := 0
	now, _, _ := s.clock.estimate()
	for i, id := range ids {
		r := s.cache.get(id)
		if cached[i] == nil {
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

func (s *Store) readOnce(ctx context.Context, t *tx, ids []string, begin bool) (found []*row, more bool, now int64, err error) {
	p := t.conn.StartPipeline(ctx)
	defer func() {
		if closeErr := p.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("read the journal: %w", closeErr)
		}
	}()
	if begin {
		t.all.send(p, stBegin, nil)
		t.all.send(p, stTurn, nil)
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
			return nil, false, 0, notCommitted("wait for the turn to write", err)
		}
	}
	if len(ids) > 0 {
		if t.receipts, err = t.readReceipts(p, len(ids)); err != nil {
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

func (s *Store) sendReadJournal(t *tx, p *pgconn.Pipeline) {
	t.params.reset()
	if !s.loaded {
		t.params.scalar(journalPage)
		t.all.send(p, stReadWholeJournal, t.params.values)
		return
	}
	t.params.scalar(s.lastSeq)
	t.params.scalar(s.lastSeq + journalPage)
	t.all.send(p, stReadJournal, t.params.values)
}

// applyJournal applies the journal rows that the server sends to the cache, and returns the clock.
// more says that there may be further rows, or that the last row read is gone. In that case the
// cache was reset, and the journal has to be read from its beginning.
func (s *Store) applyJournal(p *pgconn.Pipeline) (more bool, now int64, err error) {
	rr, err := result(p)
	if err != nil {
		return false, 0, err
	}
	n, continues := 0, !s.loaded
	if !s.loaded {
		s.others.AddAll()
	}
	from := s.lastSeq
	for rr.NextRow() {
		values := rr.Values()
		seq, token := int64(binary.BigEndian.Uint64(values[0])), int64(binary.BigEndian.Uint64(values[1]))
		switch n++; {
		case err != nil:
		case n == 1 && s.loaded:
			continues = seq == s.lastSeq && token == s.lastToken
		case continues:
			err = s.replay(seq, token, values[2])
		}
		if err == nil {
			now, err = unixMillis(values[3])
		}
	}
	if _, closeErr := rr.Close(); closeErr != nil {
		return false, 0, closeErr
	}
	switch {
	case err != nil:
		return false, 0, err
	case n == 0 && !s.loaded:
		return false, 0, errors.New("table journal is empty, which it never is; put its first row back: INSERT INTO journal VALUES (0, 0, '')")
	case !continues || n == 0:
		s.resetCache()
		return true, now, nil
	case n < journalPage && !s.complete:
		err := errMissingRows(s.firstSeq)
		s.resetCache()
		return false, 0, err
	}
	if s.lastSeq > from {
		// Others write, so an optimistic attempt would probably fail.
		s.optimisticSkips = max(s.optimisticSkips, s.backoff)
	}
	return n == journalPage, now, nil
}

// resetCache empties the cache, which is not of this journal or lacks some of it.
func (s *Store) resetCache() {
	s.cache, s.loaded, s.complete = newCounterCache(), false, false
	s.lastSeq, s.lastToken, s.firstNeeded, s.firstSeq, s.journalBytes = 0, 0, 0, 0, 0
	s.cleanedTo, s.foldedTo = 0, nil
	s.retainFrom, s.nextRetainFrom, s.lastNaming = journal.Mark{}, journal.Mark{}, -1
}

// replay applies the next row of the journal.
func (s *Store) replay(seq, token int64, changes []byte) error {
	if s.loaded && seq != s.lastSeq+1 {
		return fmt.Errorf("row %d of table journal follows row %d", seq, s.lastSeq)
	}
	by := &journal.Mark{Seq: seq, At: time.Now(), Before: s.journalBytes}
	first, err := decode(changes, func(e *entry) {
		s.lastNaming = seq
		s.others.Add(s.cache.replay(e, by))
	})
	if err != nil {
		s.resetCache()
		return errCorrupt(seq, err)
	}
	if !s.loaded {
		s.loaded, s.firstNeeded, s.firstSeq, s.cleanedTo = true, seq, seq, seq
	}
	// A worker that deletes rows says in the row that it writes that they are not needed. An
	// operator may have emptied that row.
	s.complete = s.complete || first >= s.firstSeq || len(changes) == 0
	if first > s.firstNeeded {
		s.firstNeeded, s.foldedTo = first, &journal.Mark{Seq: first, At: by.At, Before: s.journalBytes}
		if s.firstNeeded-s.cleanedTo >= min(maxCleanLag, int64(s.cache.dirty.n/cleanPart)) {
			s.cleanFolded()
		}
	}
	s.lastSeq, s.lastToken = seq, token
	s.inDoubt.observe(seq, token)
	s.journalBytes += int64(len(changes))
	return nil
}

// cleanFolded marks the rows clean that others have folded. It looks at every row that is charged
// all the time, so it does not run for each row of the journal. If it is late, a row is folded
// twice at worst.
func (s *Store) cleanFolded() {
	if s.foldedTo != nil {
		s.cache.markFoldedBefore(s.foldedTo)
		s.cleanedTo, s.foldedTo = s.firstNeeded, nil
	}
}

func (t *tx) sendReadCounters(p *pgconn.Pipeline) {
	if len(t.missing) == 0 {
		return
	}
	t.params.reset()
	elements(t, textOID, t.missing, func(to *[]byte, id engine.CounterID) { element(to, id.Key) })
	elements(t, textOID, t.missing, func(to *[]byte, id engine.CounterID) { element(to, id.Name) })
	t.all.send(p, stReadCounters, t.params.values)
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

func (t *tx) sendAppend(p *pgconn.Pipeline, last, lastToken, token, from, until int64) {
	t.params.reset()
	t.params.scalar(last)
	t.params.scalar(lastToken)
	t.params.scalar(token)
	t.params.blob(t.record.data)
	t.params.scalar(timestamp(from))
	t.params.scalar(timestamp(until))
	t.send(p, step{appending, stAppend, 1})
}

// timestamp converts Unix milliseconds to the server's format.
func timestamp(ms int64) int64 {
	if ms == beginningOfTime || ms == endOfTime {
		return ms
	}
	return (ms - postgresEpoch) * 1000
}

func (t *tx) readAppend(p *pgconn.Pipeline) (n, now int64, err error) {
	rr, err := result(p)
	if err != nil {
		return 0, 0, err
	}
	for rr.NextRow() {
		n++
		now, err = unixMillis(rr.Values()[0])
	}
	if _, closeErr := rr.Close(); closeErr != nil {
		return 0, 0, closeErr
	}
	return n, now, err
}
