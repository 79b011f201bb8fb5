package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
	"unique"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

const (
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

	beginningOfTime = math.MinInt64
	endOfTime       = math.MaxInt64
)

// tx is a transaction, with buffers that are reused by the next one.
type tx struct {
	conn  *pgconn.PgConn
	stmts *statements
	begun bool // BEGIN was sent with the reads, so COMMIT has to follow; else the pipeline is an implicit transaction

	params   arrays
	record   record
	receipts []*engine.Receipt
	ids      []string
	// missing are the counters to read from the table.
	missing []engine.CounterID
	// writeThrough are the changes that are written to the table at once; writtenThrough is how
	// many of their rows were still where they had been read.
	writeThrough   []*engine.CounterChange
	writtenThrough int
	steps          []step
}

func (s *Store) begin(conn conn) *tx {
	t := &s.tx
	t.use(conn)
	return t
}

// use begins anew on a connection.
func (t *tx) use(conn conn) {
	t.conn, t.begun, t.steps, t.receipts = conn.pg(), false, t.steps[:0], nil
	t.stmts = t.conn.CustomData()[statementsKey].(*statements)
}

// step is a statement that was sent, and how many rows it has to write, which may be anyNumber.
type step struct {
	act       string
	statement int
	rows      int
}

const anyNumber = -1

func (t *tx) send(p *pgconn.Pipeline, st step) {
	t.stmts.send(p, st.statement, t.params.values)
	t.steps = append(t.steps, st)
}

// append writes the journal row of a draft and everything else in it, and commits. Then it brings
// the cache up to date.
func (s *Store) append(ctx context.Context, t *tx, d *draft, from, until int64) error {
	d.soleWriter = s.lastSeq == s.lastWritten
	s.chooseFold(d.foldRows)
	t.encodeRecord(d, s.folding.firstNeeded)
	token := rand.Int64()
	s.inDoubt = inDoubtCommit{seq: s.lastSeq + 1, token: token, deadline: until}
	sent := time.Now()
	p := t.conn.StartPipeline(ctx)
	t.steps = t.steps[:0]
	if !t.begun { // else the transaction has the turn
		t.params.reset()
		t.send(p, step{"wait for the write lock", stTurn, anyNumber})
	}
	if d.reset {
		t.params.reset()
		t.send(p, step{"wait for the next millisecond", stNextMillisecond, anyNumber})
	}
	t.sendAppend(p, s.lastSeq, s.lastToken, token, from, until)
	t.sendRemoved(p, d.removed)
	t.sendStaleReceipts(p, d.changes.Stale)
	t.sendNewReceipts(p, d.changes.Receipts)
	if err := t.sendEvents(p, d.changes.Events); err != nil {
		_ = p.Close() // nothing was sent; this closes the connection
		return err
	}
	t.sendWriteThrough(p, d)
	t.sendFold(p, &s.folding, s.firstSeq)
	if t.begun {
		t.stmts.send(p, stCommit, nil)
	}
	if err := p.Sync(); err != nil {
		_ = p.Close()
		return commitUnknown("commit", err)
	}
	now, err := t.readOutcome(p)
	if err != nil {
		if errors.Is(err, errRowCount) {
			s.inDoubt = inDoubtCommit{} // that the row is there would not prove that everything was written as decided
		}
		return err
	}
	s.unconfirmed = false
	s.clock.record(now, sent, time.Now())
	s.apply(t, d, &journal.Mark{Seq: s.lastSeq + 1, At: sent, Before: s.journalBytes}, token, int64(len(t.record.data)))
	return nil
}

// encodeRecord encodes the changes column of the journal row.
func (t *tx) encodeRecord(d *draft, first int64) {
	r := &t.record
	r.begin(first)
	for _, id := range d.removed {
		r.remove(id)
	}
	for i := range d.changes.Counters {
		c := &d.changes.Counters[i]
		r.change(d.ids[c.Slot], c.ExpiresAt, c.State, specOf(c, d.rows[c.Slot]))
	}
	r.seal()
}

// specOf returns the spec of a counter after a change.
func specOf(c *engine.CounterChange, r *row) unique.Handle[string] {
	if c.Spec != nil {
		return unique.Make(string(c.Spec))
	}
	return r.spec
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

// readOutcome reads the results of what append sent, and returns the clock.
func (t *tx) readOutcome(p *pgconn.Pipeline) (now int64, err error) {
	var short error
	for _, st := range t.steps {
		var n int64
		if st.statement == stAppend {
			n, now, err = t.readAppend(p)
		} else {
			var tag pgconn.CommandTag
			tag, err = done(p)
			n = tag.RowsAffected()
		}
		if st.statement == stUpdateCounters {
			t.writtenThrough = int(n)
		}
		if err != nil {
			_ = p.Close()
			return 0, statementFailed(st.act, err)
		}
		if st.rows != anyNumber && n != int64(st.rows) {
			short = fmt.Errorf("%s: %w: %d of %d", st.act, errRowCount, n, st.rows)
		}
	}
	if t.begun {
		err = readCommit(p)
		_ = p.Close() // after a confirmed commit an error only means that the connection is lost, which the pool sees
	} else if closeErr := p.Close(); closeErr != nil {
		err = commitUnknown("commit", closeErr)
	}
	if short != nil {
		// Not expected. The transaction may have been committed, but not as decided.
		err = commitUnknown("commit", errors.Join(short, err))
	}
	return now, err
}

// statementFailed classifies the error of a statement. If the server reports it, nothing was
// committed.
func statementFailed(act string, err error) error {
	switch sqlState(err) {
	case "":
		return commitUnknown(act, err)
	case divisionByZero, uniqueViolation:
		if act == appending {
			return errStale
		}
	}
	return notCommitted(act, err)
}

// readCommit reads the result of the commit.
func readCommit(p *pgconn.Pipeline) error {
	tag, err := done(p)
	switch {
	case sqlState(err) == serializationFailure:
		return notCommitted("commit", err)
	case err != nil:
		// Even if the server answered: it may be shutting down after a completed commit.
		return commitUnknown("commit", err)
	case tag.String() != commitSQL:
		return fmt.Errorf("commit: the server answered %s", tag)
	}
	return nil
}

// apply brings the cache up to what a committed transaction wrote.
func (s *Store) apply(t *tx, d *draft, by *journal.Mark, token, size int64) {
	s.finishFold()
	s.lastSeq, s.lastToken, s.lastWritten = by.Seq, token, by.Seq
	s.journalBytes += size
	if len(d.removed)+len(d.changes.Counters) > 0 {
		s.lastNaming = by.Seq
	}
	for _, id := range d.removed {
		if r := s.cache.get(id); r != nil {
			s.cache.remove(r)
		}
	}
	for i := range d.changes.Counters {
		c := &d.changes.Counters[i]
		r := d.rows[c.Slot]
		spec, stored := specOf(c, r), d.writesThrough(c) && t.writtenThrough == len(t.writeThrough)
		if r == nil {
			r = &row{id: d.ids[c.Slot]}
		}
		r.state, r.expires, r.spec = append(r.state[:0], c.State...), c.ExpiresAt, spec
		if stored {
			r.lastChange, r.ctid = by.Seq, tid{}
		} else { // if one of these rows has moved, it is unknown which
			s.cache.markDirty(r, by)
		}
	}
}

// batches is a transaction that takes a round trip for each of its batches and none besides: BEGIN goes out with the first
// one, and COMMIT with the last.
type batches struct {
	pool oneLinePool
	conn *pgxpool.Conn // nil before the first batch
}

// first begins the transaction, with the statements that are queued. end must be called, even after an error.
func (t *batches) first(ctx context.Context, queue func(b *pgx.Batch)) (err error) {
	if t.conn, err = t.pool.Acquire(ctx); err != nil {
		return err
	}
	var b pgx.Batch
	b.Queue(beginSQL)
	queue(&b)
	return t.conn.SendBatch(ctx, &b).Close()
}

// last commits the transaction, with the statements of a batch. What is queued there must not fail after the server has
// answered: the transaction would be committed.
func (t *batches) last(ctx context.Context, b *pgx.Batch) error {
	b.Queue(commitSQL).Exec(func(tag pgconn.CommandTag) error {
		if tag.String() != commitSQL {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
	return t.conn.SendBatch(ctx, b).Close()
}

// end rolls back what was not committed, and gives the connection back.
func (t *batches) end(ctx context.Context) {
	if t.conn == nil {
		return
	}
	defer t.conn.Release() // which closes it if the transaction is still open
	if pc := t.conn.Conn().PgConn(); !pc.IsClosed() && pc.TxStatus() != 'I' {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		_ = pc.Exec(ctx, `ROLLBACK`).Close()
	}
}

// transactInBatches is transact of a transaction in batches.
func (s *Store) transactInBatches(ctx context.Context, act string, f func(tx *batches) error) error {
	return retry(ctx, act, func() error {
		tx := batches{pool: s.relay}
		defer tx.end(ctx)
		return f(&tx)
	})
}
