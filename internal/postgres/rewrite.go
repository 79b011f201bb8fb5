package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/engine"
)

// A worker that wrote a row last knows what is in it. It decides over that and writes in one round trip, on condition
// that the row is still the version it wrote: the same place and the same transaction. Otherwise nothing is written,
// and the decision is made again over rows that are locked and read.

// rewriteSQL writes all rows and tells their new versions, or fails with division_by_zero: when a row is not the
// version that was expected, when the table was rewritten since (VACUUM FULL gives places anew), and when the clock,
// read behind the locks, is not where the decision took it to be.
//
// The arrays are unnested in a select list, where their elements are handed on one by one; in FROM each array is first
// copied to a table of its own. All rows were written or none is, so the places need no number to be matched by: the
// plan is a loop over the arrays, in their order, and nothing behind it sorts.
const rewriteSQL = `
WITH written AS (
	UPDATE counters c SET state = u.state, expires_at = u.expires_at
	FROM (
		SELECT unnest($1::tid[]) AS place, unnest($2::xid[]) AS version, unnest($3::bytea[]) AS state, unnest($4::bigint[]) AS expires_at
	) u
	WHERE c.ctid = u.place AND c.xmin = u.version
	RETURNING c.ctid AS place
), answer AS (
	SELECT count(*) AS n, array_agg(place) AS places, pg_current_xact_id()::xid AS version, clock_timestamp() AS now
	FROM written
)
SELECT places, version, now, 1 / (n = $5 AND now >= $6 AND now < $7 AND pg_relation_filenode('counters') = $8)::int FROM answer`

// errStale says that a row or the clock was not as remembered, and that nothing was written.
var errStale = errors.New("another worker wrote a counter since")

const (
	// versionsMost bounds the rows whose versions are remembered.
	versionsMost = 1 << 17
	// rewriteMargin is how long behind its start a rewrite may write, in milliseconds.
	rewriteMargin = 25
	// maxPenalty bounds how many transactions lock at once after a rewrite failed, before the next is tried.
	maxPenalty = 64
)

// version is what a worker remembers of a row: where it is, which transaction wrote it, and what.
type version struct {
	place tid
	xid   [4]byte
	state []byte

	// For recent: whose it is, where it stands, and whether it was looked up since the hand came by.
	id   engine.CounterID
	slot int
	used bool
}

// versions remembers the rows that this worker wrote last, up to versionsMost.
type versions struct {
	mu     sync.Mutex
	recent recent

	// The server's clock as last read, by a round trip that lasted from sent to received.
	now            int64
	sent, received time.Time
	// floor is the latest moment that a decision was made at, unless the clock was set back since.
	floor int64

	// file is the file of the table that the places are in.
	file uint32
	// pages are those of the file.
	pages pages

	// skip counts down the transactions that do not try to rewrite; penalty is what it starts at next time.
	skip, penalty int
}

func newVersions() *versions { return &versions{recent: newRecent()} }

// recall fills the scratch with what is remembered of all counters, and says between what the clock is now. ok is false when one is not remembered.
func (v *versions) recall(ids []engine.CounterID, mem *scratch) (from, latest int64, file uint32, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.skip > 0 {
		v.skip--
		return 0, 0, 0, false
	}
	if v.now == 0 {
		return 0, 0, 0, false
	}
	mem.arena, mem.tids, mem.xids, mem.spans, mem.due = mem.arena[:0], mem.tids[:0], mem.xids[:0], mem.spans[:0], mem.due[:0]
	mem.known = mem.known[:0]
	for _, id := range ids {
		known := v.recent.get(id)
		if known == nil {
			return 0, 0, 0, false
		}
		mem.known = append(mem.known, known)
		begin := len(mem.arena)
		mem.arena = append(mem.arena, known.state...)
		mem.spans = append(mem.spans, [2]int{begin, len(mem.arena)})
		mem.tids = append(mem.tids, known.place)
		mem.xids = append(mem.xids, known.xid)
		if v.pages.write(known.place, id, known.state) {
			mem.due = append(mem.due, known.place)
		}
	}
	mem.states = mem.states[:0]
	for _, span := range mem.spans {
		mem.states = append(mem.states, mem.arena[span[0]:span[1]:span[1]])
	}
	t := time.Now()
	// A reading that took long says little: it must not take the time back behind what was decided before.
	v.floor = max(v.floor, v.now+t.Sub(v.received).Milliseconds())
	return v.floor, v.now + t.Sub(v.sent).Milliseconds() + 1, v.file, true
}

// remember keeps what was written to a row; the caller holds mu.
func (v *versions) remember(id engine.CounterID, place tid, xid [4]byte, state []byte) {
	known := v.recent.get(id)
	if known == nil {
		known = v.recent.add(id)
	}
	known.set(place, xid, state)
}

func (known *version) set(place tid, xid [4]byte, state []byte) {
	known.place, known.xid = place, xid
	known.state = append(known.state[:0], state...)
}

// written keeps what a transaction that locked has written.
func (v *versions) written(b engine.Batch, c engine.Changes, t *tx) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range c.Counters {
		if m := t.moved[i]; m.place != (tid{}) {
			v.remember(b.Counters[c.Counters[i].Slot], m.place, m.xid, c.Counters[i].State)
		}
	}
}

// forget drops the counters of a batch that was not, or may not have been, written as decided.
func (v *versions) forget(ids []engine.CounterID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, id := range ids {
		v.recent.remove(id)
	}
}

// tell notes the clock, as read by a round trip, and the file that the table was in.
func (v *versions) tell(now int64, file uint32, sent, received time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if file != v.file {
		v.recent = newRecent()
		v.file = file
	}
	v.now, v.sent, v.received = now, sent, received
	if v.floor < now || v.floor > now+rewriteMargin {
		v.floor = now
	}
}

// failed makes the next transactions lock at once: twice as many after every failure in a row.
func (v *versions) failed() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.penalty = min(max(1, 2*v.penalty), maxPenalty)
	v.skip = v.penalty
}

func (v *versions) succeeded() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.penalty = 0
}

// rewrite tries to run the transaction over what is remembered. tried is false when that cannot be done, and nothing
// was written then.
func (s *Store) rewrite(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) (tried bool, err error) {
	if len(b.Counters) == 0 || len(b.IDs) > 0 {
		return false, nil
	}
	mem := s.scratch.Get().(*scratch)
	defer s.scratch.Put(mem)
	from, latest, file, ok := s.versions.recall(b.Counters, mem)
	if !ok {
		return false, nil
	}
	until := latest + rewriteMargin
	changes := decide(engine.Snapshot{Now: from, Latest: latest, Until: until, States: mem.states})
	if changes.Unsure || !rewritable(b, changes) {
		s.versions.failed()
		return false, nil
	}
	if err := ctx.Err(); err != nil {
		return true, fmt.Errorf("write changes: %w", err)
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return true, fmt.Errorf("connect to database: %w", err)
	}
	defer conn.Release()
	t := &tx{conn: conn.Conn().PgConn(), scratch: mem}
	t.all = t.conn.CustomData()[preparedKey].(*prepared)
	err = t.rewrite(ctx, s.versions, b, changes, from, until, file)
	if err != nil {
		s.versions.forget(b.Counters)
	}
	if errors.Is(err, errStale) {
		s.versions.failed()
		return false, nil
	}
	if err != nil && sqlState(err) != "" && !errors.Is(err, engine.ErrCommitUnknown) && t.conn.IsClosed() {
		// The server ended the session and said so, so nothing was written: after a restart all idle ones are dead.
		s.pool.Reset()
		return false, nil
	}
	if err == nil {
		s.versions.succeeded()
	}
	return true, err
}

// rewritable tells whether the changes are a new state for every counter of the batch, and nothing that needs more
// than one statement beside events.
func rewritable(b engine.Batch, c engine.Changes) bool {
	if len(c.Counters) != len(b.Counters) || len(c.Receipts) > 0 {
		return false
	}
	for i := range c.Counters {
		if c.Counters[i].Slot != i || c.Counters[i].Spec != nil {
			return false
		}
	}
	return true
}

// rewrite is the one round trip. What stands before a sync is one transaction, so it needs no begin and no commit.
func (t *tx) rewrite(ctx context.Context, v *versions, b engine.Batch, c engine.Changes, from, until int64, file uint32) error {
	sent := time.Now()
	p := t.conn.StartPipeline(ctx)
	pruning := t.sendPrune(p)
	t.sendRewrite(p, c.Counters, from, until, file)
	steps, err := t.sendEvents(p, nil, c.Events)
	if err != nil {
		_ = p.Close() // nothing was flushed; this closes the connection
		return err
	}
	if err := p.Sync(); err != nil {
		_ = p.Close()
		return unknown("rewrite counters", err)
	}
	if pruning {
		_, err = done(p)
	}
	var (
		now    int64
		places []tid
		xid    [4]byte
	)
	if err == nil {
		now, places, xid, err = t.readRewrite(p, len(b.Counters))
	}
	for i := 0; err == nil && i < len(steps); i++ {
		_, err = done(p)
	}
	// What an error of the server was about was not committed; the end of the pipeline confirms the commit.
	closeErr := p.Close()
	switch {
	case sqlState(err) == divisionByZero:
		return errStale
	case sqlState(err) != "":
		return refused("rewrite counters", err)
	case err != nil:
		return unknown("rewrite counters", err)
	case closeErr != nil:
		return unknown("commit", closeErr)
	}
	v.tell(now, file, sent, time.Now())
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range c.Counters {
		// One that was dropped meanwhile is of no use any more, and of no harm.
		t.known[i].set(places[i], xid, c.Counters[i].State)
	}
	return nil
}

func (t *tx) sendRewrite(p *pgconn.Pipeline, changes []engine.CounterChange, from, until int64, file uint32) {
	t.params.reset()
	places := t.params.add(tidOID, len(t.tids))
	for i := range t.tids {
		element(places, t.tids[i][:])
	}
	xids := t.params.add(xidOID, len(t.xids))
	for i := range t.xids {
		element(xids, t.xids[i][:])
	}
	t.updated = t.updated[:0]
	for i := range changes {
		t.updated = append(t.updated, i)
	}
	t.addStates(changes, t.updated)
	t.params.scalar(int64(len(changes)))
	t.params.scalar((from - postgresEpoch) * 1000)
	t.params.scalar((until + 1 - postgresEpoch) * 1000)
	t.params.oid(file)
	t.all.send(p, stRewrite, t.params.values)
}

// readRewrite reads the answer to sendRewrite.
func (t *tx) readRewrite(p *pgconn.Pipeline, n int) (now int64, places []tid, xid [4]byte, err error) {
	rr, err := result(p)
	if err != nil {
		return 0, nil, xid, err
	}
	for rr.NextRow() {
		row := rr.Values()
		t.tids = t.tids[:0]
		err = eachElement(row[0], func(b []byte) {
			var place tid
			copy(place[:], b)
			t.tids = append(t.tids, place)
		})
		copy(xid[:], row[1])
		if err == nil {
			now, err = unixMillis(row[2])
		}
	}
	if _, closeErr := rr.Close(); closeErr != nil {
		return 0, nil, xid, closeErr
	}
	if err == nil && len(t.tids) != n {
		err = fmt.Errorf("%d of %d places", len(t.tids), n)
	}
	return now, t.tids, xid, err
}

// eachElement goes through a one-dimensional binary array without nulls.
func eachElement(b []byte, f func([]byte)) error {
	const header = 20
	if len(b) < header {
		return fmt.Errorf("an array of %d bytes", len(b))
	}
	for b = b[header:]; len(b) >= 4; {
		n := int(binary.BigEndian.Uint32(b))
		if n > len(b)-4 {
			return errors.New("an array that is cut off")
		}
		f(b[4 : 4+n])
		b = b[4+n:]
	}
	return nil
}
