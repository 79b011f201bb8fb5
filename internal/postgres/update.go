package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
	"unique"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// The statements of a decision, in the order of decisionSQL.
const (
	stBegin = iota
	stTurn
	stReadJournal
	stBeginJournal
	stReadCounters
	stReadReceipts
	stAppend
	stDropReceipts
	stInsertReceipts
	stInsertEvents
	stDeleteCounters
	stUpdateCounters
	stFoldCounters
	stDropJournal
	stCommit
)

const (
	// Read committed, whatever the database's default: each statement must see what was committed while it waited
	// for its turn.
	beginSQL  = `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE`
	commitSQL = `COMMIT`
	// now() would be the transaction's start, before its turn.
	clockSQL = `SELECT clock_timestamp()`
)

// decisionSQL is prepared on every connection of the pool.
var decisionSQL = [...]string{
	stBegin:          beginSQL,
	stTurn:           turnSQL,
	stReadJournal:    readJournalSQL,
	stBeginJournal:   beginJournalSQL,
	stReadCounters:   readCountersSQL,
	stReadReceipts:   readReceiptsSQL,
	stAppend:         appendSQL,
	stDropReceipts:   dropReceiptsSQL,
	stInsertReceipts: insertReceiptsSQL,
	stInsertEvents:   insertEventsSQL,
	stDeleteCounters: deleteCountersSQL,
	stUpdateCounters: updateCountersSQL,
	stFoldCounters:   foldCountersSQL,
	stDropJournal:    dropJournalSQL,
	stCommit:         commitSQL,
}

// errStale says that the journal or the clock was not as remembered, and that nothing was written.
var errStale = errors.New("another process wrote to the journal since")

// errShort says that a statement wrote another number of rows than it had to.
var errShort = errors.New("wrote another number of rows")

// errUnsure says that a decision may not hold for all of the moment it was made at, and that nothing was written.
var errUnsure = errors.New("the decision depends on when it is made")

// moment is when a decision is made, by the server's clock in Unix milliseconds: at now, or, where until is set, somewhere
// from now to latest, which is until.
type moment struct{ now, latest, until int64 }

// planner draws up what a transaction is to write, over rows; nil for nothing.
type planner func(t *tx, at moment) (*draft, error)

// maxPenalty bounds how many transactions take their turn at once after one over what is remembered failed, before the
// next of that kind is tried.
const maxPenalty = 64

// draft is what a transaction is about to write.
type draft struct {
	ids     []engine.CounterID
	rows    []*row // of ids; nil for one that is not stored
	changes engine.Changes
	// removed are counters that are no more.
	removed []engine.CounterID
	// fold is how many dirty rows to fold; tends says that this alone is worth a transaction.
	fold  int
	tends bool
	// alone says that nobody else has written since this process did.
	alone bool
}

func (d *draft) empty() bool {
	c := &d.changes
	return len(c.Counters)+len(c.Receipts)+len(c.Events)+len(d.removed) == 0 && !d.tends
}

// Update implements [engine.Store]. Transactions of a process run one after another.
//
// When the connection turns out to be dead before anything was written, or what it has prepared to be outdated, all idle ones
// are discarded and it runs once more: after a restart of the server, or another type of a column, no decision is lost to the
// pool's memory of what was before.
func (s *Store) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	decide = s.others.Hand(decide)
	plan := func(t *tx, at moment) (*draft, error) {
		s.states = s.states[:0]
		for _, r := range s.rows {
			s.states = append(s.states, r.value())
		}
		changes := decide(engine.Snapshot{Now: at.now, Latest: at.latest, Until: at.until, States: s.states, Receipts: t.receipts})
		d := &draft{ids: b.Counters, rows: s.rows, changes: changes, fold: s.fold.Due(s.dirt(), len(changes.Counters))}
		return d, d.check()
	}
	if t, ok := b.Turn.(*turn); ok && t.s == s {
		return t.write(ctx, b, plan)
	}
	release, err := acquire(ctx, s.turn)
	if err != nil {
		return fmt.Errorf("wait for the transaction before: %w", err)
	}
	defer release()
	s.memory.trim()
	if tried, err := s.remembered(ctx, b, decide); tried {
		return s.fate(ctx, err)
	}
	return s.fate(ctx, s.locked(ctx, b, plan))
}

// value is the state for a snapshot, where nil says that there is none.
func (r *row) value() []byte {
	switch {
	case r == nil:
		return nil
	case r.state == nil:
		return []byte{}
	}
	return r.state
}

// check holds that the changes can be written.
func (d *draft) check() error {
	for i := range d.changes.Counters {
		c := &d.changes.Counters[i]
		if c.Slot < 0 || c.Slot >= len(d.ids) {
			return fmt.Errorf("write counters: slot %d of %d", c.Slot, len(d.ids))
		}
		if d.rows[c.Slot] == nil && c.Spec == nil {
			return errors.New("write counters: a new counter without a spec")
		}
	}
	return nil
}

// remembered tries to run the transaction over what is remembered, in one round trip: it is written on condition that
// the journal's last row is the one that was read last, and that the clock is where the decision took it to be. tried is
// false when that cannot be done, and nothing was written then.
func (s *Store) remembered(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) (tried bool, err error) {
	if !s.loaded || len(b.Counters) == 0 || len(b.IDs) > 0 {
		return false, nil
	}
	if s.skip > 0 {
		s.skip--
		return false, nil
	}
	from, latest, ok := s.clock.between()
	if !ok || !s.recall(b.Counters, latest) {
		return false, nil
	}
	until := latest + clockMargin
	d := &draft{ids: b.Counters, rows: s.rows, changes: decide(engine.Snapshot{Now: from, Latest: latest, Until: until, States: s.states})}
	if d.changes.Unsure || d.empty() || d.check() != nil {
		return false, nil
	}
	if err := ctx.Err(); err != nil {
		return true, fmt.Errorf("write changes: %w", err)
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		s.silent(ctx)
		return true, connectFailed(err)
	}
	defer conn.Release()
	d.fold = s.fold.Due(s.dirt(), len(d.changes.Counters))
	t := s.begin(conn)
	err = s.append(ctx, t, d, from, until)
	switch {
	case errors.Is(err, errStale):
		s.crowded()
		return false, nil
	case err != nil && sqlState(err) != "" && !errors.Is(err, engine.ErrCommitUnknown) && (t.conn.IsClosed() || outdated(err)):
		// The server ended the session and said so, so nothing was written: after a restart all idle ones are dead. And what
		// one has prepared is as old on all.
		s.pool.Reset()
		return false, nil
	case err == nil:
		s.penalty = 0
	default:
		s.silent(ctx)
	}
	return true, err
}

// silent discards idle connections when a transaction has waited in vain until its deadline: they may be as silent as the
// one it had, and each would cost another deadline to find out. One that is being made is left in peace, which may take
// longer than a transaction waits, and is what the next one needs.
func (s *Store) silent(ctx context.Context) {
	if ctx.Err() != nil && s.pool.Stat().ConstructingConns() == 0 {
		s.pool.Reset()
	}
}

// recall fills rows and states with what is remembered of all counters; it is false when one is not, or may be gone.
func (s *Store) recall(ids []engine.CounterID, now int64) bool {
	s.rows, s.states = s.rows[:0], s.states[:0]
	for _, id := range ids {
		r := s.memory.find(id)
		if r == nil || r.doubtful(now) {
			return false
		}
		s.rows, s.states = append(s.rows, r), append(s.states, r.value())
	}
	return true
}

// crowded makes the next transactions take their turn at once: twice as many after every failure in a row.
func (s *Store) crowded() {
	s.penalty = min(max(1, 2*s.penalty), maxPenalty)
	s.skip = s.penalty
}

// locked runs a transaction of two round trips: one that takes the turn, which all processes wait for, and reads; and
// one that writes what plan drew up. The caller holds turn.
func (s *Store) locked(ctx context.Context, b engine.Batch, plan planner) error {
	again, err := s.lockedOnce(ctx, b, plan)
	if again && ctx.Err() == nil {
		s.log.Warn("database connection lost or of another schema, discarding idle ones", "error", err)
		s.pool.Reset()
		_, err = s.lockedOnce(ctx, b, plan)
	}
	return err
}

// lockedOnce runs the transaction; again says that the connection was lost, or is too old, before anything was written.
func (s *Store) lockedOnce(ctx context.Context, b engine.Batch, plan planner) (again bool, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		s.silent(ctx)
		return false, connectFailed(err)
	}
	t := s.begin(conn)
	defer giveBack(conn) // also when plan panics, which must leave no turn taken
	now, err := s.read(ctx, t, b, true)
	if err != nil {
		s.silent(ctx)
		return t.conn.IsClosed() || outdated(err), err
	}
	return false, s.writePlan(ctx, t, moment{now: now}, plan)
}

// writePlan writes what plan draws up, and commits.
func (s *Store) writePlan(ctx context.Context, t *tx, at moment, plan planner) error {
	d, err := plan(t, at)
	if err != nil || d == nil {
		return err
	}
	switch {
	case d.changes.Unsure:
		return errUnsure
	case d.empty():
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("write changes: %w", err)
	}
	t.commits = true
	if err = s.append(ctx, t, d, beginningOfTime, endOfTime); errors.Is(err, errStale) {
		s.forgetAll() // nobody else can have written, so memory is not of this journal
		err = fmt.Errorf("%w: %w", engine.ErrConflict, err)
	}
	return err
}

// tx is one transaction, with the memory that all use in turn.
type tx struct {
	conn    *pgconn.PgConn
	all     *prepared
	commits bool // it was begun, so it has to be committed

	params   arrays
	record   record
	receipts []*engine.Receipt
	ids      []string
	// unknown are the counters that are read from the table.
	unknown []engine.CounterID
	// placed are the changes that are written to the table where it was read, of which updated were found there.
	placed  []*engine.CounterChange
	updated int
	steps   []step
}

func (s *Store) begin(conn *pgxpool.Conn) *tx {
	t := &s.tx
	t.conn, t.commits, t.steps, t.receipts = conn.Conn().PgConn(), false, t.steps[:0], nil
	t.all = t.conn.CustomData()[preparedKey].(*prepared)
	return t
}

// step is a statement that was sent, and how many rows it has to write: some, or anyNumber.
type step struct {
	act       string
	statement int
	rows      int
}

const anyNumber = -1

func (t *tx) send(p *pgconn.Pipeline, st step) {
	t.all.send(p, st.statement, t.params.values)
	t.steps = append(t.steps, st)
}

// append writes a row of the journal and what belongs to it, and commits; then memory is brought to it.
func (s *Store) append(ctx context.Context, t *tx, d *draft, from, until int64) error {
	d.alone = s.seq == s.wrote
	s.chooseFold(d.fold, s.seq+1)
	t.draw(d, s.keep)
	token := rand.Int64()
	s.doubt = doubt{seq: s.seq + 1, token: token, until: until}
	sent := time.Now()
	p := t.conn.StartPipeline(ctx)
	t.steps = t.steps[:0]
	if !t.commits { // else it has the turn
		t.params.reset()
		t.send(p, step{"wait for the turn to write", stTurn, anyNumber})
	}
	t.sendAppend(p, s.seq, s.token, token, from, until)
	t.sendRemoved(p, d.removed)
	t.sendStaleReceipts(p, d.changes.Stale)
	t.sendNewReceipts(p, d.changes.Receipts)
	if err := t.sendEvents(p, d.changes.Events); err != nil {
		_ = p.Close() // nothing was flushed; this closes the connection
		return err
	}
	t.sendUpdate(p, d)
	t.sendFold(p, s.folding, s.dropped, s.leave)
	if t.commits {
		t.all.send(p, stCommit, nil)
	}
	if err := p.Sync(); err != nil {
		_ = p.Close()
		return unknown("commit", err)
	}
	now, err := t.outcome(p)
	if err != nil {
		if errors.Is(err, errShort) {
			s.doubt = doubt{} // the row alone does not tell that all was done as decided
		}
		return err
	}
	s.clock.tell(now, sent, time.Now())
	s.apply(t, d, &journal.Mark{Seq: s.seq + 1, At: sent, Before: s.journaled}, token, int64(len(t.record.data)))
	return nil
}

// draw writes the row of the journal.
func (t *tx) draw(d *draft, first int64) {
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

// specOf is what a change makes of the spec of a row.
func specOf(c *engine.CounterChange, r *row) unique.Handle[string] {
	if c.Spec != nil {
		return unique.Make(string(c.Spec))
	}
	return r.spec
}

// outcome reads the answers to what append sent, and the clock.
func (t *tx) outcome(p *pgconn.Pipeline) (now int64, err error) {
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
			t.updated = int(n)
		}
		if err != nil {
			_ = p.Close()
			return 0, failed(st.act, err)
		}
		if st.rows != anyNumber && n != int64(st.rows) {
			short = fmt.Errorf("%s: %w: %d of %d", st.act, errShort, n, st.rows)
		}
	}
	if t.commits {
		err = committed(p)
		_ = p.Close() // when the commit was confirmed only the connection is lost, and the pool sees that
	} else if closeErr := p.Close(); closeErr != nil {
		err = unknown("commit", closeErr)
	}
	if short != nil {
		// Not expected; it was committed, or may have been, but not as decided.
		err = unknown("commit", errors.Join(short, err))
	}
	return now, err
}

// failed explains the error of a statement. What an error of the server is about was not committed.
func failed(act string, err error) error {
	switch sqlState(err) {
	case "":
		return unknown(act, err)
	case divisionByZero, uniqueViolation:
		if act == appending {
			return errStale
		}
	}
	return refused(act, err)
}

// committed reads the answer to the commit.
func committed(p *pgconn.Pipeline) error {
	tag, err := done(p)
	switch {
	case sqlState(err) == serializationFailure:
		return refused("commit", err)
	case err != nil:
		// Even an answer of the server: it may be shutting down behind a commit that is done.
		return unknown("commit", err)
	case tag.String() != commitSQL:
		return fmt.Errorf("commit: the server answered %s", tag)
	}
	return nil
}

// apply brings memory to what a committed transaction wrote.
func (s *Store) apply(t *tx, d *draft, by *journal.Mark, token, size int64) {
	s.folded()
	s.seq, s.token, s.wrote = by.Seq, token, by.Seq
	s.journaled += size
	if len(d.removed)+len(d.changes.Counters) > 0 {
		s.said = by.Seq
	}
	for _, id := range d.removed {
		if r := s.memory.find(id); r != nil {
			s.memory.drop(r)
		}
	}
	for i := range d.changes.Counters {
		c := &d.changes.Counters[i]
		r := d.rows[c.Slot]
		spec, stored := specOf(c, r), d.inPlace(c) && t.updated == len(t.placed)
		if r == nil {
			r = &row{id: d.ids[c.Slot]}
		}
		r.state, r.expires, r.spec = append(r.state[:0], c.State...), c.ExpiresAt, spec
		if stored {
			r.last, r.place = by.Seq, place{}
		} else { // where one has moved, it is not known which
			s.memory.soil(r, by)
		}
	}
}
