package sqlite

import (
	"encoding/binary"
	"errors"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// A row of the journal is what one transaction did to counters: changes, each
//
//	kind (1 byte), key, name, [expires_at, state, [spec]]
//
// The kinds of changes.
const (
	removed     = iota // no further field
	changed            // without a spec: it stands unchanged
	respecified        // with a spec
	kinds              // how many there are
)

const (
	insertJournalSQL = `INSERT INTO journal (seq, changes) VALUES (?, ?)`

	readJournalSQL = `SELECT seq, changes FROM journal ORDER BY seq`

	deleteJournalSQL = `DELETE FROM journal WHERE seq < ?`
)

// record is a row of the journal that is being written.
type record []byte

// empty tells that there is nothing in it to keep.
func (r record) empty() bool { return len(r) <= 1 }

func (r record) remove(id engine.CounterID) record { return journal.AppendHead(r, removed, id) }

func (r record) change(id engine.CounterID, c *engine.CounterChange) record {
	kind := byte(changed)
	if c.Spec != nil {
		kind = respecified
	}
	r = journal.AppendHead(r, kind, id)
	r = journal.AppendBytes(binary.AppendVarint(r, c.ExpiresAt), c.State)
	if c.Spec != nil {
		r = journal.AppendBytes(r, c.Spec)
	}
	return r
}

// entry is a change as it is read back. Its slices are parts of the row.
type entry struct {
	kind        byte
	key, name   []byte
	expires     int64
	state, spec []byte
}

// decode calls apply for each change of a row, after the whole row was found to be as it was written.
func decode(row []byte, apply func(*entry)) error {
	p, err := journal.Open(row)
	if err != nil {
		return err
	}
	for len(p) > 0 {
		var e entry
		if !e.read(&p) {
			return errors.New("a change that cannot be read")
		}
		apply(&e)
	}
	return nil
}

func (e *entry) read(p *journal.Parser) bool {
	if !p.Kind(&e.kind, kinds) || !p.Bytes(&e.key) || !p.Bytes(&e.name) {
		return false
	}
	return e.kind == removed ||
		p.Int(&e.expires) && p.Bytes(&e.state) && (e.kind != respecified || p.Bytes(&e.spec))
}
