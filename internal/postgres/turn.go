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
	// The lock that whoever writes to the journal holds until its transaction ends, of this table in this database. Who
	// waits gets it in order of arrival.
	turnSQL = `SELECT pg_advisory_xact_lock('journal'::regclass::oid::bigint)`

	// The row that was read last comes once more, without its changes, as long as it is there; and the clock with each row.
	// Rows are numbered without a gap, so the upper bound is one on their number as well; a limit would, where that row is
	// gone, go over all that went with it, whose entries in the index stay for as long as any transaction of the database may
	// still see them.
	readJournalSQL = `
SELECT seq, token, CASE WHEN seq > $1 THEN changes ELSE '' END, clock_timestamp()
FROM journal WHERE seq >= $1 AND seq < $2 ORDER BY seq`

	// searchSQL looks for the first row of the journal from its last one, number by number, for the same reason. There is a row
	// of each number in between and none before, so steps from 2^40 down to 1, each taken where it leads to a row, end there.
	searchSQL = `
WITH RECURSIVE search (seq, step) AS (
	(SELECT seq, 1::bigint << 40 FROM journal ORDER BY seq DESC LIMIT 1)
	UNION ALL
	SELECT coalesce((SELECT j.seq FROM journal j WHERE j.seq = s.seq - s.step), s.seq), s.step >> 1 FROM search s WHERE s.step > 0
)`

	// For who has read none.
	beginJournalSQL = searchSQL + `
SELECT seq, token, changes, clock_timestamp() FROM journal
WHERE seq >= (SELECT min(seq) FROM search) ORDER BY seq LIMIT $1`

	// The arrays are unnested in a select list, where their elements are handed on one by one; in FROM each array is first
	// copied to a table of its own. The limit leaves the planner no choice but to look each one up.
	readCountersSQL = `
SELECT k.ord, c.state, c.expires_at, c.spec, c.ctid
FROM (
	SELECT generate_subscripts($1::text[], 1) AS ord, unnest($1::text[]) AS key, unnest($2::text[]) AS name
) k
CROSS JOIN LATERAL (
	SELECT state, expires_at, spec, ctid FROM counters WHERE key = k.key AND name = k.name LIMIT 1
) c`

	// It fails with division_by_zero when the last row of the journal is not the one expected, or the clock is not where the
	// decision took it to be; random keeps the division from being done when the statement is planned. It comes behind
	// turnSQL, as a statement of its own, so that it sees the journal as it is in the turn. Rows go from the front only: where
	// the one expected still is, the next is there too, and fails it, or was never written.
	appendSQL = `
INSERT INTO journal (seq, token, changes) VALUES (coalesce((
	SELECT seq + 1 FROM journal
	WHERE seq = $1::bigint AND token = $2 AND clock_timestamp() >= $5 AND clock_timestamp() < $6 LIMIT 1
), 1 / (random() * 0)::bigint), $3, $4) RETURNING clock_timestamp()`

	// appending is the act of appendSQL.
	appending = "write to the journal"

	// readAtOnce is how many rows of the journal are read in a round trip.
	readAtOnce = 2000
	// A wash looks at dirty rows, so there is one for every washPart-th part of them, in rows of the journal, or for washMost.
	washPart = 64
	washMost = 64

	beginningOfTime = math.MinInt64
	endOfTime       = math.MaxInt64
)

// turn is one that was waited for before the batch was known.
type turn struct {
	s       *Store
	conn    *pgxpool.Conn
	t       *tx
	release func()
}

// Await implements [engine.Waiter]. Where nobody else writes there is nothing to wait for.
func (s *Store) Await(ctx context.Context) engine.Turn {
	release, err := acquire(ctx, s.turn)
	if err != nil {
		return nil
	}
	if !s.loaded || s.skip == 0 {
		release()
		return nil
	}
	s.memory.trim()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		release()
		return nil
	}
	w := &turn{s: s, conn: conn, t: s.begin(conn), release: release}
	if _, err = s.read(ctx, w.t, engine.Batch{}, true); err != nil {
		w.End()
		return nil // whoever writes without a turn meets the same failure, and explains it
	}
	return w
}

// End implements [engine.Turn].
func (w *turn) End() {
	giveBack(w.conn)
	w.release()
}

// giveBack gives a connection back, behind the end of what is left of its transaction. Nobody waits for that: the next
// transaction has another connection, and stands behind this one at the server; and on a connection that hangs it never comes.
func giveBack(conn *pgxpool.Conn) {
	pc := conn.Conn().PgConn()
	if pc.IsClosed() || pc.TxStatus() == 'I' {
		conn.Release()
		return
	}
	go func() {
		defer conn.Release() // which closes it when it is not idle
		ctx, cancel := context.WithTimeout(context.Background(), rollbackPatience)
		defer cancel()
		_ = pc.Exec(ctx, `ROLLBACK`).Close()
	}()
}

// write writes what plan draws up over the counters of the batch, and ends the turn.
func (w *turn) write(ctx context.Context, b engine.Batch, plan planner) (err error) {
	// Deferred, because plan may panic, and must leave no turn taken.
	defer func() {
		defer w.release()
		giveBack(w.conn)
		err = w.s.fate(ctx, err)
	}()
	w.s.skip--
	// The batch was gathered after the clock was read, so a charge could count from before its request came.
	from, latest, _ := w.s.clock.between()
	at := moment{from, latest, latest}
	for {
		w.s.unknown(w.t, b.Counters)
		// A batch without counters writes nothing, and only a question tells that the turn is not lost.
		if at.until == 0 || len(b.IDs)+len(w.t.unknown) > 0 || len(b.Counters) == 0 {
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

// read is the first round trip: it takes the turn, brings memory to the end of the journal, fills rows with those of the
// batch, and reads the clock. It goes on with more when it was far behind. Without begin the turn is taken already.
func (s *Store) read(ctx context.Context, t *tx, b engine.Batch, begin bool) (now int64, err error) {
	for ids := b.IDs; ; ids, begin = nil, false {
		held := s.unknown(t, b.Counters)
		sent := time.Now()
		found, behind, now, err := s.readOnce(ctx, t, ids, begin)
		if err != nil {
			return 0, err
		}
		if behind || !s.resolve(b.Counters, held, found) {
			continue
		}
		s.clock.tell(now, sent, time.Now())
		return now, nil
	}
}

// unknown notes which counters have to be read from the table, and gives and keeps as rows those of the others, nil for
// these.
func (s *Store) unknown(t *tx, ids []engine.CounterID) []*row {
	t.unknown = t.unknown[:0]
	held := s.rows[:0]
	now, _, _ := s.clock.between()
	for _, id := range ids {
		r := s.memory.find(id)
		if r == nil || r.doubtful(now) {
			r = nil
			t.unknown = append(t.unknown, id)
		}
		held = append(held, r)
	}
	s.rows = held
	return held
}

// doubtful says of a clean row that another process may have removed it since: it has expired.
func (r *row) doubtful(now int64) bool { return r.since == nil && r.expires <= now }

// resolve fills rows: what is dirty goes before what was found in the table. It is false when a row got clean meanwhile
// and may be gone.
func (s *Store) resolve(ids []engine.CounterID, held []*row, found []*row) bool {
	next := 0
	now, _, _ := s.clock.between()
	for i, id := range ids {
		r := s.memory.find(id)
		switch unknown := held[i] == nil; {
		case !unknown && r != nil && r.doubtful(now):
			return false
		case unknown:
			if f := found[next]; r == nil || r.since == nil {
				r = s.memory.replace(r, f)
			}
			next++
		}
		s.rows[i] = r
	}
	return true
}

func (s *Store) readOnce(ctx context.Context, t *tx, ids []string, begin bool) (found []*row, behind bool, now int64, err error) {
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
			return nil, false, 0, refused("begin", err)
		}
		if _, err := done(p); err != nil {
			return nil, false, 0, refused("wait for the turn to write", err)
		}
	}
	if len(ids) > 0 {
		if t.receipts, err = t.readReceipts(p, len(ids)); err != nil {
			return nil, false, 0, refused("read receipts", err)
		}
	}
	if behind, now, err = s.catchUp(p); err != nil {
		return nil, false, 0, refused("read the journal", err)
	}
	if found, err = t.readCounters(p); err != nil {
		return nil, false, 0, refused("read counters", err)
	}
	return found, behind, now, nil
}

func (s *Store) sendReadJournal(t *tx, p *pgconn.Pipeline) {
	t.params.reset()
	if !s.loaded {
		t.params.scalar(readAtOnce)
		t.all.send(p, stBeginJournal, t.params.values)
		return
	}
	t.params.scalar(s.seq)
	t.params.scalar(s.seq + readAtOnce)
	t.all.send(p, stReadJournal, t.params.values)
}

// catchUp brings memory to the rows of the journal that come, and gives the clock. behind says that there may be more, or
// that the row read last is gone: then memory was emptied, and the journal is to be read from its beginning.
func (s *Store) catchUp(p *pgconn.Pipeline) (behind bool, now int64, err error) {
	rr, err := result(p)
	if err != nil {
		return false, 0, err
	}
	n, known := 0, !s.loaded
	if !s.loaded {
		s.others.AddAll()
	}
	from := s.seq
	for rr.NextRow() {
		values := rr.Values()
		seq, token := int64(binary.BigEndian.Uint64(values[0])), int64(binary.BigEndian.Uint64(values[1]))
		switch n++; {
		case err != nil:
		case n == 1 && s.loaded:
			known = seq == s.seq && token == s.token
		case known:
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
	case !known || n == 0:
		s.forgetAll()
		return true, now, nil
	case n < readAtOnce && !s.whole:
		err := errBeginning(s.dropped)
		s.forgetAll()
		return false, 0, err
	}
	if s.seq > from {
		s.crowdedBy()
	}
	return n == readAtOnce, now, nil
}

// forgetAll empties memory, which does not belong to this journal or lacks some of it.
func (s *Store) forgetAll() {
	s.memory, s.loaded, s.whole = newMemory(), false, false
	s.seq, s.token, s.first, s.dropped, s.journaled = 0, 0, 0, 0, 0
	s.washed, s.unwashed = 0, nil
	s.older, s.newer, s.said = journal.Mark{}, journal.Mark{}, -1
}

// crowdedBy keeps transactions over what is remembered from being tried while others write.
func (s *Store) crowdedBy() { s.skip = max(s.skip, s.penalty) }

// replay brings memory to the next row of the journal.
func (s *Store) replay(seq, token int64, changes []byte) error {
	if s.loaded && seq != s.seq+1 {
		return fmt.Errorf("row %d of table journal follows row %d", seq, s.seq)
	}
	by := &journal.Mark{Seq: seq, At: time.Now(), Before: s.journaled}
	first, err := decode(changes, func(e *entry) {
		s.said = seq
		s.others.Add(s.memory.replay(e, by))
	})
	if err != nil {
		s.forgetAll()
		return errCorrupt(seq, err)
	}
	if !s.loaded {
		s.loaded, s.first, s.dropped, s.washed = true, seq, seq, seq
	}
	// What dropped the rows before the first one has said, in its own row, that nobody needs them. An operator may have emptied that.
	s.whole = s.whole || first >= s.dropped || len(changes) == 0
	if first > s.first {
		s.first, s.unwashed = first, &journal.Mark{Seq: first, At: by.At, Before: s.journaled}
		if s.first-s.washed >= min(washMost, int64(s.memory.dirty.n/washPart)) {
			s.wash()
		}
	}
	s.seq, s.token = seq, token
	s.doubt.meet(seq, token)
	s.journaled += int64(len(changes))
	return nil
}

// wash makes the rows clean that others have folded. All that are charged all the time are looked at, so it is not done for
// each row of the journal: what it comes too late for is folded once more at worst.
func (s *Store) wash() {
	if s.unwashed != nil {
		s.memory.folded(s.unwashed)
		s.washed, s.unwashed = s.first, nil
	}
}

func (t *tx) sendReadCounters(p *pgconn.Pipeline) {
	if len(t.unknown) == 0 {
		return
	}
	t.params.reset()
	elements(t, textOID, t.unknown, func(to *[]byte, id engine.CounterID) { element(to, id.Key) })
	elements(t, textOID, t.unknown, func(to *[]byte, id engine.CounterID) { element(to, id.Name) })
	t.all.send(p, stReadCounters, t.params.values)
}

// readCounters gives a row for each unknown counter, nil for one that is not in the table.
func (t *tx) readCounters(p *pgconn.Pipeline) ([]*row, error) {
	if len(t.unknown) == 0 {
		return nil, nil
	}
	rr, err := result(p)
	if err != nil {
		return nil, err
	}
	found := make([]*row, len(t.unknown))
	for rr.NextRow() {
		values := rr.Values()
		at := int(binary.BigEndian.Uint32(values[0])) - 1
		found[at] = &row{
			id: t.unknown[at], state: append([]byte{}, values[1]...), expires: int64(binary.BigEndian.Uint64(values[2])),
			spec: unique.Make(string(values[3])),
		}
		copy(found[at].place[:], values[4])
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

// timestamp is a moment in Unix milliseconds as the server takes it.
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
