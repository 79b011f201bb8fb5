package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// openFile is a file that the store has open, by its path. An open file outlives its name: if it
// was removed or another was put in its place, what is written to it is lost when it is closed.
type openFile struct {
	path string
	file fileID
}

// openFiles returns the database and its write-ahead log. If the path is a symbolic link, SQLite
// keeps the log beside the link's target.
func openFiles(path string) (all []openFile, err error) {
	log := path
	if real, err := filepath.EvalSymlinks(path); err == nil {
		log = real
	}
	for _, path := range []string{path, log + "-wal"} {
		file, err := fileIDOf(path)
		switch {
		case err == nil:
			all = append(all, openFile{path, file})
		case !errors.Is(err, fs.ErrNotExist): // if SQLite cannot have a log there, it does without
			return nil, err
		}
	}
	return all, nil
}

// checkFiles returns an error if a file is not where it was.
func (s *Store) checkFiles() error {
	for _, p := range s.files {
		switch now, err := fileIDOf(p.path); {
		case err == nil && now.same(p.file):
		case err == nil || errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s was removed or replaced while the limiter was running, so writes would be lost: stop the limiter, "+
				"put the file back or restore a backup, as described in docs/operations.md under Backup and restore, and start it again", p.path)
		default:
			return fmt.Errorf("check the file: %w", err)
		}
	}
	return nil
}

// readers opens the connections that read, but only while the path is still the file that the store
// has open. If it is another file, SQLite would take the log for that file's, and remove it.
type readers struct {
	s   *Store
	dsn string
}

func (r *readers) Driver() driver.Driver { return r.s.writer.Driver() }

func (r *readers) Connect(context.Context) (driver.Conn, error) {
	if err := r.s.checkFiles(); err != nil {
		return nil, err
	}
	return r.Driver().Open(r.dsn)
}
