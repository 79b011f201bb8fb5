package postgres

import (
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/columns"
	"github.com/seed503877ad/limits/internal/engine"
)

// The SQLSTATEs that the package distinguishes.
const (
	uniqueViolation       = "23505"
	serializationFailure  = "40001"
	deadlockDetected      = "40P01"
	lockNotAvailable      = "55P03"
	undefinedTable        = "42P01"
	duplicateTable        = "42P07"
	divisionByZero        = "22012"
	featureNotSupported   = "0A000"
	invalidStatementName  = "26000"
	insufficientPrivilege = "42501"
	readOnlyTransaction   = "25006"
	diskFull              = "53100"
	ioError               = "58030"
	dataCorrupted         = "XX001"
	indexCorrupted        = "XX002"
	queryCanceled         = "57014"
	idleInTransaction     = "25P03"
)

// ownFaults are the classes of SQLSTATEs that tell of the server, the database or the role, and of
// no value that was to be written: no connection, a transaction that may not write, a login or a
// database that is refused, something that is missing or not granted, no room, a lock, a shutdown,
// a disk that fails, damage.
var ownFaults = []string{"08", "25", "28", "3D", "3F", "42", "53", "55", "57", "58", "XX"}

// sqlState returns the code of an error that the server reported; empty for any other error.
func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// outdated reports whether a prepared statement is gone, or a column of its result has another type
// now. pgx prepares its own statements again; those of decisions live as long as their connection.
func outdated(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == invalidStatementName || pg.Code == featureNotSupported && pg.Routine == "RevalidateCachedQuery")
}

// notCommitted wraps an error after which it is certain that nothing was committed.
func notCommitted(act string, err error) error {
	switch sqlState(err) {
	case uniqueViolation, serializationFailure, deadlockDetected:
		return fmt.Errorf("%s: %w: %w", act, engine.ErrConflict, err)
	}
	return fmt.Errorf("%s: %w", act, err)
}

// commitUnknown wraps an error after which nobody knows whether the transaction was committed.
func commitUnknown(act string, err error) error {
	return fmt.Errorf("%s: %w: %w", act, engine.ErrCommitUnknown, err)
}

// errReadOnly says that no connection was made because the server takes no writes, such as a
// standby.
var errReadOnly = errors.New("the server is read-only")

// OwnFault reports whether an error is the store's own: whatever was to be written, it would fail
// too. A statement that ran into its timeout does not tell, since a smaller one may have time enough.
func (s *Store) OwnFault(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	state := sqlState(err)
	return len(state) == 5 && state != queryCanceled && slices.Contains(ownFaults, state[:2])
}

// Locked reports whether an error tells of a lock that something else holds, or of a transaction that
// the server ended since its worker stood still: of the rows or the time of one try, and not of the
// store.
func (s *Store) Locked(err error) bool {
	state := sqlState(err)
	return state == lockNotAvailable || state == idleInTransaction
}

// withAdvice adds where to read what to do to the error of a damaged table: until it is mended, whatever reads that place fails.
func withAdvice(err error) error {
	switch state := sqlState(err); {
	case state == dataCorrupted, state == indexCorrupted, errors.Is(err, columns.ErrDamaged):
		return fmt.Errorf("%w; the table is damaged: docs/operations.md says under Damaged tables how to find the place and remove it", err)
	}
	return err
}

// Advice returns what is wrong with the server and what helps, for callers of the service; empty if
// the error does not tell.
func (s *Store) Advice(err error) string {
	switch state := sqlState(err); {
	case state == diskFull:
		return "the store's disk is full; try again when there is free space"
	case state == readOnlyTransaction, errors.Is(err, errReadOnly):
		return "the store is read-only; try again when it accepts writes"
	case errors.Is(err, columns.ErrDamaged):
		return "a row of the store is damaged; its operator must remove it, as the log says"
	case state == dataCorrupted, state == indexCorrupted:
		return "the store is damaged; it must be restored from a backup"
	case state == lockNotAvailable:
		return "something else holds a lock in the store; try again when it is released"
	case state == insufficientPrivilege:
		return "the store denied access: the database role lacks a privilege; deploy/roles.sql has the grants"
	case state == ioError:
		return "the store's disk has I/O errors; its operator must check it"
	}
	return ""
}
