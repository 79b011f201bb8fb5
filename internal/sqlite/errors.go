package sqlite

import (
	"errors"
	"fmt"

	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"
)

// primaryCode is what SQLite says is wrong, without the details; 0 when the error is none of SQLite's.
func primaryCode(err error) int {
	if e, ok := errors.AsType[*driver.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}

// full says that the disk has no room: for data, or for the index of the log, of which SQLite says that its size is wrong.
func full(err error) bool {
	e, ok := errors.AsType[*driver.Error](err)
	return ok && (e.Code()&0xff == codes.SQLITE_FULL || e.Code() == codes.SQLITE_IOERR_SHMSIZE)
}

// explained adds to the error of a file that is damaged or may not be written, that somebody else writes to, or whose disk is full, what
// to do about it.
func explained(err error) error {
	if full(err) {
		return fmt.Errorf("%w; the disk is full: make room, and start the limiter again if it has ended", err)
	}
	switch primaryCode(err) {
	case codes.SQLITE_CORRUPT, codes.SQLITE_NOTADB:
		return fmt.Errorf("%w; the file is damaged: stop the limiter and restore a backup, as docs/operations.md says under Backup and restore", err)
	case codes.SQLITE_READONLY:
		return fmt.Errorf("%w; limits.db or its folder may not be written: look at the rights of both, and how their disk is mounted", err)
	case codes.SQLITE_BUSY:
		return fmt.Errorf("%w; another program has limits.db open and writes to it: end that one, the file is the limiter's alone", err)
	}
	return err
}

// Advice says of an error, to whoever asks the service, what is wrong with the file and what helps; empty when it does not tell.
func (s *Store) Advice(err error) string {
	if full(err) {
		return "the disk of the store is full; try again when there is room"
	}
	switch primaryCode(err) {
	case codes.SQLITE_READONLY:
		return "the store is read-only; try again when it takes writes"
	case codes.SQLITE_CORRUPT, codes.SQLITE_NOTADB:
		return "the store is damaged; it has to be restored from a backup"
	case codes.SQLITE_IOERR:
		return "the disk of the store fails; its operator has to look at it"
	}
	return ""
}
