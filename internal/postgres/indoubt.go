package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/engine"
)

// minResolveTimeout is the least time that is spent on finding out whether a transaction was
// committed, even after its deadline: the answer may have arrived while the process was stopped.
const minResolveTimeout = 100 * time.Millisecond

const (
	// pollPause is the pause between two reads of the journal. It doubles after each failed one, up
	// to maxPollPause.
	pollPause    = time.Millisecond
	maxPollPause = 100 * time.Millisecond
	// maxPollFailing is how long reads may keep failing. While the server is gone, all requests of
	// the process wait for this one.
	maxPollFailing = 250 * time.Millisecond
)

// inDoubtCommit is the journal row that was sent last. If the answer to its commit was lost, the
// row may or may not be in the journal. The zero value is none.
type inDoubtCommit struct {
	seq, token int64
	// An optimistic row is not written after deadline, by the server's clock in Unix milliseconds.
	// For a row that was sent in turn it is endOfTime.
	deadline int64
	// seen says that a row of that number was read, and committed that it has this token.
	seen, committed bool
}

// observe compares a row of the journal that was read with the one in doubt.
func (d *inDoubtCommit) observe(seq, token int64) {
	if d.seq == seq && d.token != 0 {
		d.seen, d.committed = true, token == d.token
	}
}

// resolveInDoubt replaces the error of a commit in doubt by its outcome, if that can be found out.
// It returns nil if the transaction was committed. If it was not and will not be, it returns an
// [engine.ErrConflict], or the context's error if ctx had ended. The journal tells, because the row
// has a number and a random token.
func (s *Store) resolveInDoubt(ctx context.Context, err error) error {
	switch {
	case err == nil:
		s.lostAnswers.Tried(nil)
		s.lostConns.Tried(nil)
		if s.unconfirmed { // nothing was written, but perhaps something was read that a standby lacks
			return s.confirm(ctx)
		}
		return nil
	case !errors.Is(err, engine.ErrCommitUnknown) || s.inDoubt.token == 0:
		return err
	}
	defer func() { s.inDoubt = inDoubtCommit{} }()
	ctxErr, timeout := ctx.Err(), minResolveTimeout
	if end, ok := ctx.Deadline(); ok {
		timeout = max(timeout, time.Until(end))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	lookErr := s.awaitOutcome(ctx)
	d := &s.inDoubt
	switch {
	case lookErr != nil:
		s.unconfirmed = true
		return fmt.Errorf("%w; its outcome could not be determined: %v", err, lookErr)
	case d.committed:
		if confirmErr := s.confirm(ctx); confirmErr != nil {
			return fmt.Errorf("%w; %v", err, confirmErr)
		}
		s.lostAnswers.Tried(err, "committed", true)
		return nil
	case d.seen || s.lastSeq < d.seq:
		s.lostAnswers.Tried(err, "committed", false)
		if ctxErr != nil { // a server that hangs is not a lost race: the circuit breaker has to open
			return fmt.Errorf("not committed: %w: %v", ctxErr, err)
		}
		return fmt.Errorf("%w: not committed: %v", engine.ErrConflict, err)
	}
	s.unconfirmed = true
	return err // others have folded so much that the row, if it was written, has been deleted
}

const (
	standbyWanted = `current_setting('synchronous_standby_names') <> ''`
	standbySQL    = `SELECT ` + standbyWanted

	// The standby has what was committed before as soon as it has this.
	confirmSQL = `SELECT pg_logical_emit_message(true, 'limits', '')`
)

// learnStandby finds out on a new connection whether there has to be a synchronous standby: when a
// commit is in doubt there may be no time left to ask.
func (s *Store) learnStandby(ctx context.Context, conn *pgx.Conn) error {
	var standby bool
	if err := conn.QueryRow(ctx, standbySQL, pgx.QueryExecModeExec).Scan(&standby); err != nil {
		return fmt.Errorf("read synchronous_standby_names: %w", err)
	}
	s.needsStandby.Store(standby)
	return nil
}

// confirm returns nil if everything that was committed is also on the synchronous standby, if there
// has to be one. A client that gives up a commit has the server stop waiting for the standby and
// commit nevertheless. So it commits something more, after which the standby has all that came
// before.
func (s *Store) confirm(ctx context.Context) error {
	var standby bool
	err := s.onConn(ctx, func(c conn) error { return c.QueryRow(ctx, standbySQL).Scan(&standby) })
	if err == nil {
		s.needsStandby.Store(standby)
	}
	if s.unconfirmed = s.needsStandby.Load(); !s.unconfirmed {
		return nil
	}
	err = s.onConn(ctx, func(c conn) error {
		_, err := c.Exec(ctx, confirmSQL)
		return err
	})
	if err != nil {
		return fmt.Errorf("the synchronous standby may lack what was committed (synchronous_standby_names): %w", err)
	}
	s.unconfirmed = false
	return nil
}

// awaitOutcome reads the journal until it has seen the number of the row in doubt, or the row can
// no longer be written. A transaction that has the turn keeps it until it ends, so a read in turn
// comes after it. An optimistic one may still be on its way, on a connection that was given up,
// until its deadline. A failed read is tried again: whatever broke the connection may break the
// next ones as well.
func (s *Store) awaitOutcome(ctx context.Context) error {
	pause, answered := pollPause, time.Now()
	for {
		err := s.runInTurn(ctx, engine.Batch{}, func(*tx, moment) (*draft, error) { return nil, nil })
		tooLate := s.inDoubt.deadline == endOfTime || s.clock.now >= s.inDoubt.deadline
		switch {
		case s.inDoubt.seen, err == nil && (s.lastSeq >= s.inDoubt.seq || tooLate):
			return nil
		case err == nil:
			pause, answered = pollPause, time.Now()
		case time.Since(answered) > maxPollFailing:
			return err
		default:
			pause = min(2*pause, maxPollPause)
		}
		select {
		case <-ctx.Done():
			return cmp.Or(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}
