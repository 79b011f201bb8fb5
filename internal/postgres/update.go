package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed503877ad/limits/internal/engine"
)

// The statements of a decision, in the order of decisionSQL.
const (
	stBegin = iota
	stLockCounters
	stReadReceipts
	stClock
	stUpdateStates
	stUpdateSpecs
	stInsertCounters
	stInsertReceipts
	stInsertEvents
	stCommit
	stPrune
	stRewrite
)

const (
	// Read committed, whatever the database's default: each statement must see what was committed while it waited
	// for locks.
	beginSQL  = `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`
	commitSQL = `COMMIT`
	// now() would be the transaction's start, before the locks.
	clockSQL = `SELECT clock_timestamp(), pg_relation_filenode('counters')`
)

// decisionSQL is prepared on every connection of the pool.
var decisionSQL = [...]string{
	stBegin:          beginSQL,
	stLockCounters:   lockCountersSQL,
	stReadReceipts:   readReceiptsSQL,
	stClock:          clockSQL,
	stUpdateStates:   updateStatesSQL,
	stUpdateSpecs:    updateSpecsSQL,
	stInsertCounters: insertCountersSQL,
	stInsertReceipts: insertReceiptsSQL,
	stInsertEvents:   insertEventsSQL,
	stCommit:         commitSQL,
	stPrune:          pruneSQL,
	stRewrite:        rewriteSQL,
}

// scratch is the memory of one Update.
type scratch struct {
	params arrays
	// arena holds the states that were read, spans where each one is, tids where each row is.
	arena []byte
	spans [][2]int
	tids  []tid
	xids  [][4]byte
	// known is what is remembered of the rows.
	known []*version
	// due are rows whose pages are to be pruned.
	due []tid
	// file is the file of the table, when the rows were read.
	file     uint32
	states   [][]byte
	receipts []*engine.Receipt
	ids      []string
	// updated, respecified and inserted are indexes into the changes.
	updated, respecified, inserted []int
	// moved is where each change was written, and by which transaction.
	moved []move
}

type move struct {
	place tid
	xid   [4]byte
}

// Update implements [engine.Store].
//
// When the connection turns out to be dead before anything was written, all idle ones are discarded and it runs once
// more: after a restart of the server, no decision is lost to the pool's memory of the old one.
func (s *Store) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	if tried, err := s.rewrite(ctx, b, decide); tried {
		return err
	}
	again, err := s.update(ctx, b, decide)
	if again && ctx.Err() == nil {
		s.log.Warn("database connection lost, discarding idle ones", "err", err)
		s.pool.Reset()
		_, err = s.update(ctx, b, decide)
	}
	return err
}

// update runs the transaction once; again says that the connection was lost before anything was written.
func (s *Store) update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) (again bool, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return false, fmt.Errorf("connect to database: %w", err)
	}
	mem := s.scratch.Get().(*scratch)
	t := &tx{conn: conn.Conn().PgConn(), scratch: mem}
	t.all = t.conn.CustomData()[preparedKey].(*prepared)
	background := false
	// Deferred, because decide may panic, and must leave no locks behind.
	defer func() {
		s.scratch.Put(mem)
		if background {
			go rollback(conn)
			return
		}
		rollback(conn)
	}()

	sent := time.Now()
	snap, err := t.read(ctx, b)
	if err != nil {
		if sqlState(err) == readOnlyTransaction {
			s.pool.Reset() // a failover made the server a replica
		}
		return t.conn.IsClosed(), err
	}
	s.versions.tell(snap.Now, t.file, sent, time.Now())
	changes := decide(snap)
	if len(changes.Counters)+len(changes.Receipts)+len(changes.Events) == 0 {
		background = true // the answer need not wait for the rollback
		return false, nil
	}
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("write changes: %w", err)
	}
	if err := t.write(ctx, b, changes); err != nil {
		s.versions.forget(b.Counters)
		return false, err
	}
	s.versions.written(b, changes, t)
	return false, nil
}

// rollback ends what is left of a transaction and gives the connection back.
func rollback(conn *pgxpool.Conn) {
	defer conn.Release() // which closes it when it is not idle
	pc := conn.Conn().PgConn()
	if pc.IsClosed() || pc.TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = pc.Exec(ctx, `ROLLBACK`).Close()
}

// tx is one transaction of Update.
type tx struct {
	*scratch
	conn *pgconn.PgConn
	all  *prepared
}

// read is the first round trip.
func (t *tx) read(ctx context.Context, b engine.Batch) (snap engine.Snapshot, err error) {
	p := t.conn.StartPipeline(ctx)
	defer func() {
		if closeErr := p.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("lock counters: %w", closeErr)
		}
	}()
	t.all.send(p, stBegin, nil)
	if len(b.Counters) > 0 {
		t.sendLock(p, b.Counters)
	}
	if len(b.IDs) > 0 {
		t.sendReceipts(p, b.IDs)
	}
	t.all.send(p, stClock, nil)
	if err := p.Sync(); err != nil {
		return snap, fmt.Errorf("lock counters: %w", err)
	}

	if _, err := done(p); err != nil {
		return snap, refused("begin", err)
	}
	if snap.States, err = t.readStates(p, len(b.Counters)); err != nil {
		return snap, refused("lock counters", err)
	}
	if snap.Receipts, err = t.readReceipts(p, len(b.IDs)); err != nil {
		return snap, refused("read receipts", err)
	}
	if snap.Now, err = t.readClock(p); err != nil {
		return snap, refused("read clock", err)
	}
	return snap, nil
}

func (t *tx) readClock(p *pgconn.Pipeline) (now int64, err error) {
	rr, err := result(p)
	if err != nil {
		return 0, err
	}
	for rr.NextRow() {
		row := rr.Values()
		now, err = unixMillis(row[0])
		t.file = binary.BigEndian.Uint32(row[1])
	}
	if _, closeErr := rr.Close(); closeErr != nil {
		return 0, closeErr
	}
	return now, err
}

// step is a statement of the second round trip that was sent, and how many rows it has to write.
type step struct {
	act  string
	rows int
	// which are the changes that it returns the new places of, in order; nil when it returns none.
	which []int
}

// write is the second round trip. A statement that fails keeps the server from running those behind it, the commit
// above all.
func (t *tx) write(ctx context.Context, b engine.Batch, c engine.Changes) error {
	if err := t.sort(c.Counters); err != nil {
		return err
	}
	t.moved = cleared(t.moved, len(c.Counters))
	p := t.conn.StartPipeline(ctx)
	var sent [6]step
	steps := t.sendCounters(p, sent[:0], b.Counters, c.Counters)
	steps = t.sendNewReceipts(p, steps, c.Receipts)
	steps, err := t.sendEvents(p, steps, c.Events)
	if err != nil {
		_ = p.Close() // nothing was flushed; this closes the connection
		return err
	}
	t.all.send(p, stCommit, nil)
	err = p.Sync()
	if err != nil {
		_ = p.Close()
		return unknown("commit", err)
	}
	err = t.outcome(p, steps)
	if closeErr := p.Close(); err == nil && closeErr != nil {
		// The commit was confirmed; only the connection is lost, and the pool sees that.
		return nil
	}
	return err
}

// written reads the answer of one statement, and where it put its rows.
func (t *tx) written(p *pgconn.Pipeline, st step) (pgconn.CommandTag, error) {
	rr, err := result(p)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	for at := 0; rr.NextRow(); at++ {
		row := rr.Values()
		if at < len(st.which) {
			m := &t.moved[st.which[at]]
			copy(m.place[:], row[0])
			copy(m.xid[:], row[1])
		}
	}
	return rr.Close()
}

// outcome reads the answers of the second round trip.
func (t *tx) outcome(p *pgconn.Pipeline, steps []step) error {
	var short error
	for _, st := range steps {
		tag, err := t.written(p, st)
		if sqlState(err) != "" {
			return refused(st.act, err)
		}
		if err != nil {
			return unknown(st.act, err)
		}
		if n := tag.RowsAffected(); n != int64(st.rows) {
			short = fmt.Errorf("%s: wrote %d of %d rows", st.act, n, st.rows)
		}
	}
	tag, err := done(p)
	switch {
	case sqlState(err) == serializationFailure:
		return refused("commit", err)
	case err != nil:
		// Even an answer of the server: it may be shutting down behind a commit that is done.
		return unknown("commit", err)
	case short != nil:
		// Locked rows cannot go away, so this is not expected; it was committed, but not as decided.
		return unknown("commit", short)
	case tag.String() != commitSQL:
		return fmt.Errorf("commit: the server answered %s", tag)
	}
	return nil
}

// sort tells updates from inserts.
func (t *tx) sort(changes []engine.CounterChange) error {
	t.updated, t.respecified, t.inserted = t.updated[:0], t.respecified[:0], t.inserted[:0]
	for i := range changes {
		c := &changes[i]
		switch {
		case c.Slot < 0 || c.Slot >= len(t.tids):
			return fmt.Errorf("write counters: slot %d of %d", c.Slot, len(t.tids))
		case t.tids[c.Slot] != tid{} && c.Spec == nil:
			t.updated = append(t.updated, i)
		case t.tids[c.Slot] != tid{}:
			t.respecified = append(t.respecified, i)
		case c.Spec == nil:
			return errors.New("write counters: a new counter without a spec")
		default:
			t.inserted = append(t.inserted, i)
		}
	}
	return nil
}
