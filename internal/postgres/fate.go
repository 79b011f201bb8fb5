package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// fatePatience is how long at least it may take to find out what became of a transaction, also when that had no time left: its
// answer may have come while the process was stopped.
const fatePatience = 100 * time.Millisecond

const (
	// lookPause is the pause between two looks for it, and lookPauseMost that behind looks that fail one after another.
	lookPause     = time.Millisecond
	lookPauseMost = 100 * time.Millisecond
	// lookFailing is how long they may fail: while the server is gone all requests of the process wait for this one.
	lookFailing = 250 * time.Millisecond
)

// doubt is the row that was sent last, which may be in the journal or not when the answer to its commit was lost; the zero value is
// none.
type doubt struct {
	seq, token int64
	// until is when it is too late for it, by the server's clock in Unix milliseconds.
	until int64
	// met says that memory was brought to the row of that number, and ours that it is this one.
	met, ours bool
}

// meet notes what the row of the journal says of the one in doubt.
func (d *doubt) meet(seq, token int64) {
	if d.seq == seq && d.token != 0 {
		d.met, d.ours = true, token == d.token
	}
}

// fate replaces the error of a transaction whose commit is in doubt by what became of it, as far as that can be found out: nil
// when it was committed, and an [engine.ErrConflict] when it was not and will not be, or the end of its time where that was over.
// The row that it writes has a number and a token, so the journal tells, also when the connection that looks goes behind that row.
func (s *Store) fate(ctx context.Context, err error) error {
	if !errors.Is(err, engine.ErrCommitUnknown) || s.doubt.token == 0 {
		return err
	}
	defer func() { s.doubt = doubt{} }()
	ended, patience := ctx.Err(), fatePatience
	if end, ok := ctx.Deadline(); ok {
		patience = max(patience, time.Until(end))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	look := s.lookFor(ctx)
	d := &s.doubt
	switch {
	case look != nil:
		return fmt.Errorf("%w; what became of it cannot be found out: %v", err, look)
	case d.ours:
		s.log.Warn("the answer to a commit was lost; the journal says that it was committed", "error", err)
		return nil
	case d.met || s.seq < d.seq:
		s.log.Warn("the answer to a commit was lost; the journal says that it was not committed", "error", err)
		if ended != nil { // a server that hangs is no lost race, and the circuit is to open
			return fmt.Errorf("not committed: %w: %v", ended, err)
		}
		return fmt.Errorf("%w: not committed: %v", engine.ErrConflict, err)
	}
	return err // others have folded so far that the row is gone, or would be
}

// lookFor reads the journal until it has met the number of the row in doubt, or is behind whatever could write that. A
// transaction that has the turn keeps it until it ends, and who reads in turn is behind it. One that was sent without may be
// on its way still, on a connection that was given up, until its time is over. A look that fails is no answer: what took its
// connection may take the next ones as well.
func (s *Store) lookFor(ctx context.Context) error {
	pause, answered := lookPause, time.Now()
	for {
		err := s.locked(ctx, engine.Batch{}, func(*tx, moment) (*draft, error) { return nil, nil })
		late := s.doubt.until == endOfTime || s.clock.now >= s.doubt.until
		switch {
		case s.doubt.met, err == nil && (s.seq >= s.doubt.seq || late):
			return nil
		case err == nil:
			pause, answered = lookPause, time.Now()
		case time.Since(answered) > lookFailing:
			return err
		default:
			pause = min(2*pause, lookPauseMost)
		}
		select {
		case <-ctx.Done():
			return cmp.Or(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}
