package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// place is where a file was that the store has open. An open file outlives its name: what is written to it when it was removed,
// or another was put in its place, is gone when it is closed.
type place struct {
	path string
	file identity
}

// places gives those of the database and of its log, which SQLite keeps beside what a link leads to.
func places(path string) (all []place, err error) {
	log := path
	if real, err := filepath.EvalSymlinks(path); err == nil {
		log = real
	}
	for _, path := range []string{path, log + "-wal"} {
		file, err := identify(path)
		switch {
		case err == nil:
			all = append(all, place{path, file})
		case !errors.Is(err, fs.ErrNotExist): // where it cannot have a log, SQLite does without
			return nil, err
		}
	}
	return all, nil
}

// inPlace fails when a file is not where it was.
func (s *Store) inPlace() error {
	for _, p := range s.places {
		switch now, err := identify(p.path); {
		case err == nil && now.same(p.file):
		case err == nil || errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s was removed or replaced while the limiter runs, so what is written would be lost: stop the limiter, "+
				"put the file back or restore a backup, as docs/operations.md says under Backup and restore, and start it", p.path)
		default:
			return fmt.Errorf("look for the file: %w", err)
		}
	}
	return nil
}

// readers opens the connections that read, only to the file that the store has open: SQLite would take the log for that of
// another file, and remove it.
type readers struct {
	s   *Store
	dsn string
}

func (r *readers) Driver() driver.Driver { return r.s.writer.Driver() }

func (r *readers) Connect(context.Context) (driver.Conn, error) {
	if err := r.s.inPlace(); err != nil {
		return nil, err
	}
	return r.Driver().Open(r.dsn)
}
