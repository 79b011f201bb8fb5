package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/seed503877ad/limits/internal/engine"
)

// statements are those of a transaction, prepared once on the writing connection.
type statements struct {
	begin, commit, rollback                                 *sql.Stmt
	readJournal, insertJournal, deleteJournal               *sql.Stmt
	readCounter, updateState, updateCounter, insertCounter  *sql.Stmt
	deleteCounter                                           *sql.Stmt
	readReceipt, dropReceipt, insertReceipt, deleteReceipts *sql.Stmt
	insertEvent, deleteEvent                                *sql.Stmt
	all                                                     []*sql.Stmt
	// others are further ones, by their text, prepared when they are first used.
	others map[string]*sql.Stmt
}

// Waiting for the write lock at the start, because a read that turns into a write could fail.
const beginSQL = `BEGIN IMMEDIATE`

func (st *statements) prepare(ctx context.Context, conn *sql.Conn) error {
	for _, s := range []struct {
		to  **sql.Stmt
		sql string
	}{
		{&st.begin, beginSQL},
		{&st.commit, `COMMIT`},
		{&st.rollback, `ROLLBACK`},
		{&st.readJournal, readJournalSQL},
		{&st.insertJournal, insertJournalSQL},
		{&st.deleteJournal, deleteJournalSQL},
		{&st.readCounter, readCounterSQL},
		{&st.updateState, updateStateSQL},
		{&st.updateCounter, updateCounterSQL},
		{&st.insertCounter, insertCounterSQL},
		{&st.deleteCounter, deleteCounterSQL},
		{&st.readReceipt, readReceiptSQL},
		{&st.dropReceipt, dropReceiptSQL},
		{&st.insertReceipt, insertReceiptSQL},
		{&st.deleteReceipts, deleteReceiptsSQL},
		{&st.insertEvent, insertEventSQL},
		{&st.deleteEvent, deleteEventSQL},
	} {
		prepared, err := conn.PrepareContext(ctx, s.sql)
		if err != nil {
			return fmt.Errorf("prepare %s: %w", s.sql, err)
		}
		*s.to = prepared
		st.all = append(st.all, prepared)
	}
	return nil
}

// kept prepares a statement once. Only the transaction that runs may call it, with one of the constants.
func (st *statements) kept(conn *sql.Conn, query string) (*sql.Stmt, error) {
	if prepared := st.others[query]; prepared != nil {
		return prepared, nil
	}
	prepared, err := conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, fmt.Errorf("prepare %s: %w", query, err)
	}
	if st.others == nil {
		st.others = make(map[string]*sql.Stmt)
	}
	st.others[query] = prepared
	st.all = append(st.all, prepared)
	return prepared, nil
}

func (st *statements) close() error {
	var errs []error
	for _, s := range st.all {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// Update implements [engine.Store]. Transactions run one after another, so [engine.ErrConflict] comes only to one that
// writes a receipt without having asked for it in its batch.
func (s *Store) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	decide = s.others.Hand(decide)
	return s.transact(ctx, func() (func(), error) {
		snap := engine.Snapshot{Now: s.now().UnixMilli()}
		rows, states, err := s.readStates(b.Counters)
		if err != nil {
			return nil, fmt.Errorf("read counters: %w", err)
		}
		snap.States = states
		if snap.Receipts, err = s.readReceipts(b.IDs); err != nil {
			return nil, fmt.Errorf("read receipts: %w", err)
		}
		c := decide(snap)
		if len(c.Counters)+len(c.Receipts)+len(c.Events) == 0 {
			return nil, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("write changes: %w", err)
		}
		if err := s.writeChanges(rows, b.Counters, &c); err != nil {
			return nil, err
		}
		return func() {
			s.folded()
			s.apply(rows, b.Counters, c.Counters, s.recorded())
		}, nil
	})
}

func (s *Store) writeChanges(rows []*row, ids []engine.CounterID, c *engine.Changes) error {
	if err := s.writeCounters(rows, ids, c.Counters); err != nil {
		return fmt.Errorf("write counters: %w", err)
	}
	if err := s.writeReceipts(c.Stale, c.Receipts); err != nil {
		return fmt.Errorf("write receipts: %w", err)
	}
	if err := s.writeEvents(c.Events); err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	return s.foldOldest(s.fold.Due(s.dirt(), len(c.Counters)), s.seq+1)
}

// transact runs f in a write transaction. It is committed if f gives what is to be done in memory then, and rolled
// back otherwise, also when f panics: memory never has what the file has not.
//
// The statements inside run without the context: they take microseconds, and each would start a goroutine to watch
// it.
func (s *Store) transact(ctx context.Context, f func() (committed func(), err error)) (err error) {
	defer func() { err = explained(err) }()
	release, err := acquire(ctx, s.write)
	if err != nil {
		return fmt.Errorf("wait for the transaction before: %w", err)
	}
	defer release()
	if err := s.inPlace(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if _, err := s.st.begin.Exec(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	open := true
	defer func() {
		if open {
			_, _ = s.st.rollback.Exec() // fails when the error has rolled back already
		}
	}()
	if s.stale {
		if err := s.load(); err != nil {
			return err
		}
	}
	committed, err := f()
	if err != nil || committed == nil {
		return err
	}
	if err := s.commit(); err != nil {
		return err
	}
	open = false
	s.dirty.mu.Lock()
	defer s.dirty.mu.Unlock()
	committed()
	return nil
}

// alter runs f in a transaction that touches nothing in memory; act is how errors call that. It is rolled back when f wrote
// nothing, or nobody waits for it any more.
func (s *Store) alter(ctx context.Context, act string, f func() (wrote bool, err error)) error {
	err := s.transact(ctx, func() (func(), error) {
		wrote, err := f()
		if err != nil || !wrote {
			return nil, err
		}
		return func() {}, ctx.Err()
	})
	if err != nil {
		return fmt.Errorf("%s: %w", act, err)
	}
	return nil
}

// change runs one statement in a transaction of its own, and gives how many rows it changed.
func (s *Store) change(ctx context.Context, act, statement string, args ...any) (int, error) {
	var n int64
	err := s.alter(ctx, act, func() (wrote bool, err error) {
		n, err = s.exec(statement, args...)
		return n > 0, err
	})
	if err != nil {
		return 0, err
	}
	return int(n), nil
}

// exec runs a statement in the transaction that runs, and gives how many rows it changed.
func (s *Store) exec(statement string, args ...any) (int64, error) {
	prepared, err := s.st.kept(s.conn, statement)
	if err != nil {
		return 0, err
	}
	return affected(prepared.Exec(args...))
}

func (s *Store) commit() error {
	_, err := s.st.commit.Exec()
	if err == nil {
		return nil
	}
	// Both say that the log does not have all of it, and so nothing. An error of I/O may come from the sync behind it.
	if e, ok := errors.AsType[*driver.Error](err); ok && (e.Code()&0xff == codes.SQLITE_BUSY || e.Code()&0xff == codes.SQLITE_FULL) {
		return fmt.Errorf("commit: %w", err)
	}
	// The log may hold the transaction or not, so memory has to be read from the file again. Should the next
	// transaction not find it there, the next process to open the file may.
	s.stale = true
	return fmt.Errorf("commit: %w: %w", engine.ErrCommitUnknown, err)
}
