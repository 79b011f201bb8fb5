package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/journal"
)

const (
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
	// the first row. If there are rows below nevertheless, the search may end at one of those.
	searchSQL = `
WITH RECURSIVE search (seq, step) AS (
	(SELECT seq, 1::bigint << 40 FROM journal ORDER BY seq DESC LIMIT 1)
	UNION ALL
	SELECT coalesce((SELECT j.seq FROM journal j WHERE j.seq = s.seq - s.step), s.seq), s.step >> 1 FROM search s WHERE s.step > 0
)`

	// For a process that has not read all rows yet: it reads on from $2, also across a gap.
	readWholeJournalSQL = searchSQL + `
SELECT seq, token, changes, clock_timestamp() FROM journal
WHERE seq >= greatest((SELECT min(seq) FROM search), $2) ORDER BY seq LIMIT $1`

	// journalPage is how many rows of the journal are read in a round trip.
	journalPage = 2000

	// Marking rows clean scans the dirty rows. So it is done once firstNeeded has advanced by
	// 1/cleanPart of the number of dirty rows, or by maxCleanLag.
	cleanPart   = 64
	maxCleanLag = 64
)

// acquireBounded takes writeLock for anything but a decision. bounded ends after decisionTimeout,
// whatever time the caller has: a connection may be silent, and decisions wait for the lock.
func (s *Store) acquireBounded(ctx context.Context) (bounded context.Context, release func(), err error) {
	give, err := acquire(ctx, s.writeLock)
	if err != nil {
		return nil, nil, fmt.Errorf("wait for the previous transaction: %w", err)
	}
	bounded, cancel := context.WithTimeout(ctx, decisionTimeout)
	return bounded, func() { cancel(); give() }, nil
}

// catchUp applies the rest of the journal to the cache and reads the clock, without taking the
// turn. The caller holds writeLock.
func (s *Store) catchUp(ctx context.Context) error {
	conn, err := s.conns.get(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	t := s.begin(conn)
	for more := true; more; {
		if more, err = s.catchUpOnce(ctx, t); err != nil {
			s.conns.resetIfTimedOut(ctx)
			return fmt.Errorf("read the journal: %w", err)
		}
	}
	s.cleanFolded()
	s.cache.evict()
	return nil
}

// catchUpBounded is catchUp with foldTimeout, because a connection may be silent and decisions
// wait. It returns the number of the last row.
func (s *Store) catchUpBounded(ctx context.Context) (seq int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.foldTimeout)
	defer cancel()
	ctx, release, err := s.acquireBounded(ctx)
	if err != nil {
		return 0, err
	}
	defer release()
	err = s.catchUp(ctx)
	return s.lastSeq, err
}

func (s *Store) catchUpOnce(ctx context.Context, t *tx) (more bool, err error) {
	sent := time.Now()
	p := t.conn.StartPipeline(ctx)
	defer func() {
		if closeErr := p.Close(); err == nil {
			err = closeErr
		}
	}()
	s.sendReadJournal(t, p)
	if err := p.Sync(); err != nil {
		return false, err
	}
	more, now, err := s.applyJournal(p)
	if err == nil && !more {
		s.clock.record(now, sent, time.Now())
	}
	return more, err
}

func (s *Store) sendReadJournal(t *tx, p *pgconn.Pipeline) {
	t.params.reset()
	if !s.caughtUp {
		t.params.scalar(journalPage)
		t.params.scalar(s.lastSeq)
		t.stmts.send(p, stReadWholeJournal, t.params.values)
		return
	}
	t.params.scalar(s.lastSeq)
	t.params.scalar(s.lastSeq + journalPage)
	t.stmts.send(p, stReadJournal, t.params.values)
}

// applyJournal applies the journal rows that the server sends to the cache, and returns the clock.
// more says that there may be further rows, or that the last row read is gone or rows behind it are
// missing. In those cases the cache was reset, and if that row is gone the journal has to be read
// from its beginning.
func (s *Store) applyJournal(p *pgconn.Pipeline) (more bool, now int64, err error) {
	rr, err := result(p)
	if err != nil {
		return false, 0, err
	}
	n, continues, gap := 0, !s.loaded, false
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
			if s.loaded && seq != s.lastSeq+1 {
				gap = true
				s.startBehindGap()
			}
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
		return false, 0, errors.New("table journal is empty, but must always have a row; restore its first row with INSERT INTO journal VALUES (0, 0, '')")
	case !continues || n == 0:
		s.resetCache()
		return true, now, nil
	case gap:
		return true, now, nil // the number of rows does not tell whether these were all
	case n < journalPage && !s.complete:
		err := errMissingRows(s.firstSeq)
		s.resetCache()
		return false, 0, err
	}
	if s.lastSeq > from {
		// Others write, so an optimistic attempt would probably fail.
		s.optimistic.skips = max(s.optimistic.skips, s.optimistic.length)
	}
	s.caughtUp = s.caughtUp || n < journalPage
	return n == journalPage, now, nil
}

// startBehindGap forgets the rows that were read, because rows behind them are missing. That is well
// if none of those is needed, which [Store.replay] finds out: limiters from before rows were
// retained for others delete some of those that newer ones retain.
func (s *Store) startBehindGap() {
	s.resetCache()
	s.others.AddAll()
	s.behindGap = true
}

// replay applies the next row of the journal.
func (s *Store) replay(seq, token int64, changes []byte) error {
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
	// operator may have emptied that row. Behind a gap only the first row may stand for the missing
	// ones: an empty row further on was emptied for another reason, and a lost row must not go
	// unnoticed.
	emptied := len(changes) == 0 && (!s.behindGap || seq == s.firstSeq)
	s.complete = s.complete || emptied || first >= s.firstSeq
	if first > s.firstNeeded {
		s.firstNeeded, s.foldedTo = first, &journal.Mark{Seq: first, At: by.At, Before: s.journalBytes}
		if s.firstNeeded-s.cleanedTo >= min(maxCleanLag, int64(s.cache.dirty.n/cleanPart)) {
			s.cleanFolded()
		}
	}
	s.lastSeq, s.lastToken = seq, token
	s.inDoubt.observe(seq, token)
	s.unconfirmed = true // a standby may lack it
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

// resetCache empties the cache, which is not of this journal or lacks some of it.
func (s *Store) resetCache() {
	s.cache, s.loaded, s.caughtUp, s.behindGap, s.complete = newCounterCache(), false, false, false, false
	s.lastSeq, s.lastToken, s.firstNeeded, s.firstSeq, s.journalBytes = 0, 0, 0, 0, 0
	s.cleanedTo, s.foldedTo = 0, nil
	s.retainFrom, s.nextRetainFrom, s.lastNaming = journal.Mark{}, journal.Mark{}, -1
}
