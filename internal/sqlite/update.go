package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	codes "modernc.org/sqlite/lib"

	"github.com/seed503877ad/limits/internal/engine"
)

// statements are the statements of the writing connection. Those of decisions are prepared when it
// opens.
type statements struct {
	begin, commit, rollback                                *sql.Stmt
	readJournal, insertJournal, deleteJournal              *sql.Stmt
	readCounter, updateState, updateCounter, insertCounter *sql.Stmt
	readReceipt, deleteReceipt, insertReceipt, insertEvent *sql.Stmt
	// byText holds these and others by their texts. The others are prepared when they are first used.
	byText map[string]*sql.Stmt
}

// IMMEDIATE takes the file's write lock at the start: a read that turns into a write could fail.
const beginSQL = `BEGIN IMMEDIATE`

func (st *statements) prepare(conn *sql.Conn) (err error) {
	st.byText = make(map[string]*sql.Stmt)
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
		{&st.readReceipt, readReceiptSQL},
		{&st.deleteReceipt, deleteReceiptSQL},
		{&st.insertReceipt, insertReceiptSQL},
		{&st.insertEvent, insertEventSQL},
	} {
		if *s.to, err = st.prepareOnce(conn, s.sql); err != nil {
			return err
		}
	}
	return nil
}

// prepareOnce prepares a statement once. It may be called only inside a transaction or while the
// store opens, and only with constants.
func (st *statements) prepareOnce(conn *sql.Conn, query string) (*sql.Stmt, error) {
	if prepared := st.byText[query]; prepared != nil {
		return prepared, nil
	}
	prepared, err := conn.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, fmt.Errorf("prepare %s: %w", query, err)
	}
	st.byText[query] = prepared
	return prepared, nil
}

func (st *statements) close() {
	for _, s := range st.byText {
		_ = s.Close()
	}
}

// Update implements [engine.Store]. Transactions run one after another, so [engine.ErrConflict] is
// only returned for a receipt that is written although its id was not in the batch.
func (s *Store) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	decide = s.others.Hand(decide)
	return s.transactCounters(ctx, func() (func(), error) {
		snap := engine.Snapshot{Now: s.now().UnixMilli()}
		rows, states, err := s.readStates(b.Counters)
		if err != nil {
			return nil, fmt.Errorf("read counters: %w", err)
		}
		snap.States = states
		if snap.Receipts, err = s.readReceipts(b.IDs); err != nil {
			return nil, fmt.Errorf("read receipts: %w", err)
		}
		if snap.ConsumeReceipts, err = s.readReceipts(b.ConsumeIDs); err != nil {
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
			s.finishFold()
			s.apply(rows, b.Counters, c.Counters, s.finishRecord())
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
	return s.foldOldest(s.foldPolicy.Due(s.dirtyStats(), len(c.Counters)))
}

// transactCounters runs f in a write transaction. It commits if f returns a function, which then
// updates memory while it holds the overlay's mu. Otherwise, and if f panics, it rolls back: memory
// never has what the file does not have.
//
// The statements inside run without the context: they take microseconds, and each would start a
// goroutine to watch it.
func (s *Store) transactCounters(ctx context.Context, f func() (committed func(), err error)) (err error) {
	defer func() { err = withAdvice(err) }()
	release, err := acquire(ctx, s.writeLock)
	if err != nil {
		return fmt.Errorf("wait for the previous transaction: %w", err)
	}
	defer release()
	if err := s.checkFiles(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if _, err := s.stmts.begin.Exec(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	open := true
	defer func() {
		if open {
			_, _ = s.stmts.rollback.Exec() // fails if the error has already rolled back
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

// transact runs f in a transaction that changes nothing in memory; act names it in errors. It rolls
// back if f wrote nothing, or ctx has ended.
func (s *Store) transact(ctx context.Context, act string, f func() (wrote bool, err error)) error {
	err := s.transactCounters(ctx, func() (func(), error) {
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

// change runs a statement in a transaction of its own, and returns how many rows it changed.
func (s *Store) change(ctx context.Context, act, statement string, args ...any) (int, error) {
	var n int64
	err := s.transact(ctx, act, func() (wrote bool, err error) {
		n, err = s.execInTx(statement, args...)
		return n > 0, err
	})
	if err != nil {
		return 0, err
	}
	return int(n), nil
}

// execInTx runs a statement in the running transaction, and returns how many rows it changed.
func (s *Store) execInTx(statement string, args ...any) (int64, error) {
	prepared, err := s.stmts.prepareOnce(s.conn, statement)
	if err != nil {
		return 0, err
	}
	res, err := prepared.Exec(args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (s *Store) commit() error {
	_, err := s.stmts.commit.Exec()
	if err == nil {
		return nil
	}
	// With either code the write-ahead log does not have all of the transaction, and so nothing of
	// it. An I/O error may come from the sync after it was written.
	if code := primaryCode(err); code == codes.SQLITE_BUSY || code == codes.SQLITE_FULL {
		return fmt.Errorf("commit: %w", err)
	}
	// The write-ahead log may or may not hold the transaction, so memory has to be read from the
	// file again. Even if the next transaction does not find it there, the next process that opens
	// the file may.
	s.stale = true
	return fmt.Errorf("commit: %w: %w", engine.ErrCommitUnknown, err)
}
