package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"time"
	"unique"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// load reads memory from the file: when it is opened, and when nobody knows whether a transaction
// was committed. It also reads journal rows that were folded already. That changes nothing, because
// the last row that names a counter has its state, and rows are deleted from the front of the
// journal only.
func (s *Store) load() error {
	l := loading{overlay: newOverlay(), at: time.Now()}
	if err := l.readJournal(s.stmts.readJournal); err != nil {
		return err
	}
	for r := l.oldest(); r != nil; r = l.next(r) {
		if err := l.readTable(s.stmts.readCounter, r); err != nil {
			return err
		}
	}
	s.clean.Purge()
	s.dirty.replaceWith(l.overlay)
	s.lastSeq, s.firstSeq, s.journalBytes = l.last, l.first, l.bytes
	s.stale = false
	return nil
}

// loading is an overlay that is being read from the file.
type loading struct {
	*overlay
	at                 time.Time
	first, last, bytes int64
}

func (l *loading) readJournal(query *sql.Stmt) error {
	found, err := query.Query()
	if err != nil {
		return fmt.Errorf("read journal: %w", err)
	}
	defer found.Close()
	for found.Next() {
		var seq int64
		var changes sql.RawBytes
		if err := found.Scan(&seq, &changes); err != nil {
			return fmt.Errorf("read journal: %w", err)
		}
		since := &journal.Mark{Seq: seq, At: l.at, Before: l.bytes}
		if err := decode(changes, func(e *entry) { l.replay(e, since) }); err != nil {
			return errCorrupt(seq, err)
		}
		if l.last == 0 {
			l.first = seq
		}
		l.last, l.bytes = seq, l.bytes+int64(len(changes))
	}
	if l.last == 0 {
		l.first = 1
	}
	if err := found.Err(); err != nil {
		return fmt.Errorf("read journal: %w", err)
	}
	return nil
}

func (l *loading) replay(e *entry, since *journal.Mark) {
	id := engine.CounterID{Key: string(e.key), Name: string(e.name)}
	r := l.rows[id]
	if e.kind == removed {
		if r != nil {
			l.remove(r)
		}
		return
	}
	if r == nil {
		r = &row{id: id}
		l.add(r, since)
	}
	r.state, r.expires = append(r.state[:0], e.state...), e.expires
	if e.kind == changedWithSpec {
		r.spec = unique.Make(string(e.spec))
	}
}

// readTable reads what the table has of a row, and takes the spec from there if the journal has
// none.
func (l *loading) readTable(query *sql.Stmt, r *row) error {
	stored, err := readRow(query, r.id)
	if err != nil {
		return fmt.Errorf("read counters: %w", err)
	}
	if stored != nil {
		r.table = stored.table
	}
	var none unique.Handle[string]
	if r.spec == none {
		r.spec = r.table.spec
	}
	if r.spec == none {
		return errCorrupt(r.dirtySince.Seq, fmt.Errorf("it changes counter %q %q, which is not stored", r.id.Key, r.id.Name))
	}
	return nil
}

// readRow reads a row of the table; nil if there is none.
func readRow(query *sql.Stmt, id engine.CounterID) (*row, error) {
	r := &row{id: id}
	var spec string
	err := query.QueryRow(id.Key, id.Name).Scan(&r.state, &r.expires, &spec)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r.state, r.spec = blob(r.state), unique.Make(spec)
	r.table.exists, r.table.expires, r.table.spec = true, r.expires, r.spec
	return r, nil
}

func errCorrupt(seq int64, err error) error {
	return fmt.Errorf("row %d of table journal is damaged: %w; restore a backup, or delete the row, which loses "+
		"the charges in it", seq, err)
}
