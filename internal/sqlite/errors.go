package sqlite

import (
	"errors"
	"fmt"

	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/seed503877ad/limits/internal/columns"
)

// primaryCode returns SQLite's error code without the extension; 0 for any other error.
func primaryCode(err error) int {
	if e, ok := errors.AsType[*driver.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// alreadyThere reports whether a row with the same primary key is stored.
func alreadyThere(err error) bool {
	e, ok := errors.AsType[*driver.Error](err)
	return ok && e.Code() == codes.SQLITE_CONSTRAINT_PRIMARYKEY
}

// errOtherWriter says that the journal has a row that this process has not written. What it has in
// memory is not what the file has, and only a restart reads that again.
var errOtherWriter = errors.New("another process writes to limits.db")

// diskFull reports whether the disk has no room: for data, or for the index of the write-ahead log,
// of which SQLite reports a wrong size.
func diskFull(err error) bool {
	e, ok := errors.AsType[*driver.Error](err)
	return ok && (e.Code()&0xff == codes.SQLITE_FULL || e.Code() == codes.SQLITE_IOERR_SHMSIZE)
}

const damagedAdvice = "the file is damaged: stop the limiter and restore a backup, as described in docs/operations.md under Backup and restore"

// withAdvice adds what to do to the error of a file that is damaged or read-only, that another
// program writes to, or whose disk is full.
func withAdvice(err error) error {
	if diskFull(err) {
		return fmt.Errorf("%w; the disk is full: free some space, and restart the limiter if it has stopped", err)
	}
	if errors.Is(err, errOtherWriter) {
		return fmt.Errorf("%w; stop it, because only one limiter may use the file, and restart this one", err)
	}
	if errors.Is(err, columns.ErrDamaged) {
		return fmt.Errorf("%w; a row is damaged: docs/operations.md says under Damaged tables how to find and remove it", err)
	}
	switch primaryCode(err) {
	case codes.SQLITE_CORRUPT, codes.SQLITE_NOTADB:
		return fmt.Errorf("%w; %s", err, damagedAdvice)
	case codes.SQLITE_READONLY:
		return fmt.Errorf("%w; limits.db or its folder is not writable: check the permissions of both, and how their disk is mounted", err)
	case codes.SQLITE_IOERR: // SQLite takes a used-up quota (EDQUOT) for one
		return fmt.Errorf("%w; the disk has errors, which the kernel's log tells, or its quota is used up: then free some space", err)
	case codes.SQLITE_BUSY:
		return fmt.Errorf("%w; another program has limits.db open and is writing to it: stop it, because only the limiter may use the file", err)
	}
	return err
}

// OwnFault reports whether an error is the store's own: whatever was to be written, it would fail
// too.
func (s *Store) OwnFault(err error) bool {
	switch primaryCode(err) {
	case codes.SQLITE_FULL, codes.SQLITE_IOERR, codes.SQLITE_READONLY, codes.SQLITE_CANTOPEN, codes.SQLITE_PERM, codes.SQLITE_AUTH,
		codes.SQLITE_BUSY, codes.SQLITE_LOCKED, codes.SQLITE_PROTOCOL, codes.SQLITE_SCHEMA, codes.SQLITE_NOLFS, codes.SQLITE_NOMEM,
		codes.SQLITE_CORRUPT, codes.SQLITE_NOTADB:
		return true
	}
	return false
}

// Locked reports that no error tells of rows that something else has locked: the one lock is the file's.
func (s *Store) Locked(error) bool { return false }

// Advice returns what is wrong with the file and what helps, for callers of the service; empty if
// the error does not tell.
func (s *Store) Advice(err error) string {
	if diskFull(err) {
		return "the store's disk is full; try again when there is free space"
	}
	if errors.Is(err, errOtherWriter) {
		return "another process writes to the store's file; its operator must stop it and restart the limiter"
	}
	if errors.Is(err, columns.ErrDamaged) {
		return "a row of the store is damaged; its operator must remove it, as the log says"
	}
	switch primaryCode(err) {
	case codes.SQLITE_READONLY:
		return "the store is read-only; try again when it accepts writes"
	case codes.SQLITE_CORRUPT, codes.SQLITE_NOTADB:
		return "the store is damaged; it must be restored from a backup"
	case codes.SQLITE_IOERR:
		return "the store's disk has I/O errors, or its quota is used up; its operator must check it"
	}
	return ""
}
