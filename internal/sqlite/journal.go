package sqlite

import (
	"encoding/binary"
	"errors"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// The column changes of a journal row has what one transaction did to counters: changes, each
//
//	kind (1 byte), key, name, [expires_at, state, [spec]]
//
// The kinds of changes:
const (
	removed         = iota // no more fields
	changed                // without a spec: it is unchanged
	changedWithSpec        // with a spec
	kinds                  // the number of kinds
)

const (
	insertJournalSQL = `INSERT INTO journal (seq, changes) VALUES (?, ?)`

	readJournalSQL = `SELECT seq, changes FROM journal ORDER BY seq`

	deleteJournalSQL = `DELETE FROM journal WHERE seq < ?`
)

// record builds the changes of a journal row.
type record []byte

// empty reports whether the record has no change: [journal.Begin] has written one byte.
func (r record) empty() bool { return len(r) <= 1 }

func (r record) remove(id engine.CounterID) record { return journal.AppendHead(r, removed, id) }

func (r record) change(id engine.CounterID, c *engine.CounterChange) record {
	kind := byte(changed)
	if c.Spec != nil {
		kind = changedWithSpec
	}
	r = journal.AppendHead(r, kind, id)
	r = journal.AppendBytes(binary.AppendVarint(r, c.ExpiresAt), c.State)
	if c.Spec != nil {
		r = journal.AppendBytes(r, c.Spec)
	}
	return r
}

// entry is a decoded change. Its slices point into the row.
type entry struct {
	kind        byte
	key, name   []byte
	expires     int64
	state, spec []byte
}

// decode verifies the checksum of a row, then calls apply for each change in it.
func decode(row []byte, apply func(*entry)) error {
	p, err := journal.Open(row)
	if err != nil {
		return err
	}
	for len(p) > 0 {
		var e entry
		if !e.read(&p) {
			return errors.New("it has a change that cannot be decoded")
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
		p.Int(&e.expires) && p.Bytes(&e.state) && (e.kind != changedWithSpec || p.Bytes(&e.spec))
}
