package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// journalMost bounds the journal, in bytes: a worker that begins reads it in a second.
const journalMost = 32 << 20

// dirt is what the policy looks at.
func (s *Store) dirt() journal.Dirty {
	return journal.Dirty{Rows: s.memory.dirty.n, Since: s.memory.dirty.since, Journaled: s.journaled}
}

const (
	// A row may be there or not: another process may have removed one that expired.
	foldCountersSQL = `
INSERT INTO counters (key, name, spec, state, expires_at)
SELECT unnest($1::text[]), unnest($2::text[]), unnest($3::text[]), unnest($4::bytea[]), unnest($5::bigint[])
ON CONFLICT (key, name) DO UPDATE SET spec = excluded.spec, state = excluded.state, expires_at = excluded.expires_at`

	// What has moved, or is no more, stays as it is: the key tells. No index serves IS NOT DISTINCT FROM, which leaves the
	// planner no choice but to look at each place.
	updateCountersSQL = `
UPDATE counters c SET state = u.state, expires_at = u.expires_at
FROM (
	SELECT unnest($1::tid[]) AS place, unnest($2::text[]) AS key, unnest($3::text[]) AS name,
		unnest($4::bytea[]) AS state, unnest($5::bigint[]) AS expires_at
) u
WHERE c.ctid = u.place AND c.key IS NOT DISTINCT FROM u.key AND c.name IS NOT DISTINCT FROM u.name`

	// The lower bound spares a walk over the entries of an index that are dead and still there.
	dropJournalSQL = `
DELETE FROM journal WHERE seq >= $1 AND seq < $2`

	firstOfJournalSQL = searchSQL + `
SELECT coalesce(min(seq), -1) FROM search`
)

// chooseFold picks the n oldest rows, or all where there are fewer, to be written to the table as they are before the
// transaction it is part of, the first row of the journal that is needed then, and the first that stays. next is the number of
// the row that the transaction writes.
func (s *Store) chooseFold(n int, next int64) {
	s.folding = s.folding[:0]
	r := s.memory.dirty.oldest()
	for ; r != nil && len(s.folding) < n; r = s.memory.dirty.next(r) {
		s.folding = append(s.folding, r)
	}
	s.keep = next
	if r != nil {
		s.keep = r.since.Seq
	}
	s.leave = max(s.dropped, min(s.keep, s.retained(next), s.dropped+s.fold.Drop))
	slices.SortFunc(s.folding, func(a, b *row) int { return a.id.Compare(b.id) })
}

// inPlace tells whether a change is written to the table in its transaction, and not folded later: one of a counter that was
// read for it, or lately. Its pages are at hand then, and its place in them is known, so it costs a fifth of what it would
// later. A counter that is changed again is remembered, and folded. Where others write, too, they would take it for dirty, and
// fold it once more.
func (d *draft) inPlace(c *engine.CounterChange) bool {
	r := d.rows[c.Slot]
	return d.alone && r != nil && r.place != (place{}) && c.Spec == nil
}

// sendUpdate sends the statement for what is written in its place.
func (t *tx) sendUpdate(p *pgconn.Pipeline, d *draft) {
	t.placed, t.updated = t.placed[:0], 0
	for i := range d.changes.Counters {
		if c := &d.changes.Counters[i]; d.inPlace(c) {
			t.placed = append(t.placed, c)
		}
	}
	if len(t.placed) == 0 {
		return
	}
	row := func(c *engine.CounterChange) *row { return d.rows[c.Slot] }
	t.params.reset()
	elements(t, tidOID, t.placed, func(to *[]byte, c *engine.CounterChange) { element(to, row(c).place[:]) })
	elements(t, textOID, t.placed, func(to *[]byte, c *engine.CounterChange) { element(to, row(c).id.Key) })
	elements(t, textOID, t.placed, func(to *[]byte, c *engine.CounterChange) { element(to, row(c).id.Name) })
	elements(t, byteaOID, t.placed, func(to *[]byte, c *engine.CounterChange) { element(to, c.State) })
	elements(t, int8OID, t.placed, func(to *[]byte, c *engine.CounterChange) { int8Element(to, c.ExpiresAt) })
	t.send(p, step{"update counters", stUpdateCounters, anyNumber})
}

// sendFold sends the statements for what chooseFold chose.
func (t *tx) sendFold(p *pgconn.Pipeline, rows []*row, dropped, leave int64) {
	if len(rows) > 0 {
		t.params.reset()
		elements(t, textOID, rows, func(to *[]byte, r *row) { element(to, r.id.Key) })
		elements(t, textOID, rows, func(to *[]byte, r *row) { element(to, r.id.Name) })
		elements(t, textOID, rows, func(to *[]byte, r *row) { element(to, r.spec.Value()) })
		elements(t, byteaOID, rows, func(to *[]byte, r *row) { element(to, r.state) })
		elements(t, int8OID, rows, func(to *[]byte, r *row) { int8Element(to, r.expires) })
		t.send(p, step{"fold counters", stFoldCounters, len(rows)})
	}
	if leave > dropped {
		t.params.reset()
		t.params.scalar(dropped)
		t.params.scalar(leave)
		t.send(p, step{"shorten the journal", stDropJournal, anyNumber})
	}
}

// folded makes the rows clean that a committed transaction has folded.
func (s *Store) folded() {
	for _, r := range s.folding {
		s.memory.wash(r)
	}
	clear(s.folding)
	s.folding, s.first, s.dropped = s.folding[:0], max(s.first, s.keep), s.leave
}

// droppable tells whether the journal names counters, and nobody needs that any more; of a process that leaves, whether it has more than
// one row that names none.
func (s *Store) droppable() bool {
	if s.leaves {
		return s.dropped < max(s.seq, s.said+1) && s.memory.dirty.n == 0
	}
	return s.dropped <= s.said && s.said < s.retained(s.seq+1) && s.memory.dirty.n == 0
}

// findDropped notes which rows of the journal others have dropped, who write, too: their rows do not say so.
func (s *Store) findDropped(ctx context.Context) error {
	if s.seq == s.wrote {
		return nil
	}
	var first int64
	if err := s.pool.QueryRow(ctx, firstOfJournalSQL).Scan(&first); err != nil {
		return fmt.Errorf("look for the first row of the journal: %w", err)
	}
	s.dropped = max(s.dropped, first) // less is another journal, as whoever reads it sees
	return nil
}

const (
	// Rows of the journal are left there for retainFor to twice that, or retainBytes to twice that: a process that finds the last row that it
	// has read gone forgets all that it knows.
	retainFor   = 2 * time.Second
	retainBytes = 4 << 20
)

// retained is the number of the first row of the journal that is left for others to read; next is that of the next one.
func (s *Store) retained(next int64) int64 {
	if s.leaves {
		return next
	}
	if now := time.Now(); now.Sub(s.newer.At) >= retainFor || s.journaled-s.newer.Before >= retainBytes {
		s.older, s.newer = s.newer, journal.Mark{Seq: next, At: now, Before: s.journaled}
	}
	return s.older.Seq
}

// foldSome folds as many rows as count says in a transaction of its own. more tells whether there was any work.
func (s *Store) foldSome(ctx context.Context, count func() int) (more bool, err error) {
	release, err := acquire(ctx, s.turn)
	if err != nil {
		return false, err
	}
	defer release()
	if !s.loaded {
		return false, nil // this process has made nothing dirty, and whoever has folds it
	}
	if err := s.findDropped(ctx); err != nil {
		return false, err
	}
	err = s.locked(ctx, engine.Batch{}, func(*tx, moment) (*draft, error) {
		n := count()
		if more = n > 0 || s.droppable(); !more {
			return nil, nil
		}
		return &draft{fold: n, tends: true}, nil
	})
	s.memory.trim()
	return more && err == nil, err
}

// foldSoon is foldSome that waits for no connection longer than decisions can wait for it. Of what it had to read first it
// keeps what it has read.
func (s *Store) foldSoon(ctx context.Context, count func() int) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, foldPatience)
	defer cancel()
	return s.foldSome(ctx, count)
}

// Rest leaves what others write alone, while this process decides nothing: to read it costs a tenth of what it takes to decide it.
// What comes nevertheless is decided as ever, behind all that was written meanwhile. When the rest is over that is read at
// once, as far as ctx and a transaction's time allow; for that transactions of this process wait, and none of others.
func (s *Store) Rest(ctx context.Context, resting bool) {
	if s.resting.Swap(resting) == resting || resting {
		return
	}
	_, _ = s.end(ctx) // what fails the first transaction meets, and explains
}

// tend folds what has been dirty for long, until the store closes, and reads what others wrote. It gives way after each
// chunk.
func (s *Store) tend() {
	defer close(s.tended)
	journal.Tend(s.stop, s.log, func() (more bool, err error) {
		if s.resting.Load() {
			return false, nil
		}
		return s.foldSoon(s.stop, func() int { return s.fold.Aged(s.dirt(), s.fold.After+journal.TendEvery) })
	})
}

const (
	// closingChunk is how many rows one transaction takes when nobody waits for it.
	closingChunk = 2048
	// closingTime bounds what a process does of it that goes.
	closingTime = 5 * time.Second
)

// foldAll leaves nothing in the journal that the table lacks, unless another process goes on to write: that folds it, and needs what is
// left for others.
func (s *Store) foldAll() {
	if s.resting.Load() || s.pool.Stat().AcquireCount() == 0 { // or never had a database
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closingTime)
	defer cancel()
	begun, err := s.end(ctx)
	for more, others := true, false; more && !others && err == nil; {
		more, err = s.foldSoon(ctx, func() int {
			if others = s.seq != begun && s.seq != s.wrote; others {
				return 0
			}
			s.fold.Drop, s.leaves = closingChunk, true
			return min(closingChunk, s.memory.dirty.n)
		})
	}
	if err != nil {
		s.log.Warn("the journal is left for the next limiter to fold", "error", err)
	}
}

// end brings memory to the end of the journal, and gives its last row. It takes no longer than decisions can wait, since a connection may be
// silent.
func (s *Store) end(ctx context.Context) (seq int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, foldPatience)
	defer cancel()
	ctx, release, err := s.aside(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	err = s.follow(ctx)
	return s.seq, err
}
