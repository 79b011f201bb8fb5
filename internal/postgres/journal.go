package postgres

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unique"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// The column changes of a journal row has what one transaction did to counters:
//
//	first, change…
//
// first is the number of the oldest journal row that is still needed after this transaction;
// everything that older rows say is in the table counters. A change is
//
//	kind (1 byte), key, name, [expires_at, state, spec]
//
// A spec is stored as text the first time that it occurs in the row, and after that as the number
// of that text. So a row can be read without any other row. An empty value says nothing.
//
// The kinds of changes:
const (
	removed         = iota // no more fields
	changed                // the spec is a number
	changedWithSpec        // the spec is a text, which gets the next number
	kinds                  // the number of kinds
)

// specWindow is how many of the last texts are searched for a spec. A spec outside of it is stored
// again.
const specWindow = 16

// record builds the changes of a journal row.
type record struct {
	data  []byte
	specs []unique.Handle[string]
}

func (r *record) begin(first int64) {
	r.data = binary.AppendUvarint(journal.Begin(r.data), uint64(first))
	r.specs = r.specs[:0]
}

func (r *record) remove(id engine.CounterID) { r.data = journal.AppendHead(r.data, removed, id) }

func (r *record) change(id engine.CounterID, expires int64, state []byte, spec unique.Handle[string]) {
	for number := len(r.specs) - 1; number >= max(0, len(r.specs)-specWindow); number-- {
		if r.specs[number] == spec {
			r.body(changed, id, expires, state)
			r.data = binary.AppendUvarint(r.data, uint64(number))
			return
		}
	}
	r.specs = append(r.specs, spec)
	r.body(changedWithSpec, id, expires, state)
	r.data = journal.AppendBytes(r.data, spec.Value())
}

func (r *record) body(kind byte, id engine.CounterID, expires int64, state []byte) {
	r.data = journal.AppendBytes(binary.AppendVarint(journal.AppendHead(r.data, kind, id), expires), state)
}

func (r *record) seal() { r.data = journal.Seal(r.data) }

// entry is a decoded change. Its slices point into the row.
type entry struct {
	removed   bool
	key, name []byte
	expires   int64
	state     []byte
	spec      unique.Handle[string]
}

// decode verifies the checksum of a row, then calls apply for each change in it, and returns the
// number of the oldest journal row that is still needed after it.
func decode(row []byte, apply func(*entry)) (first int64, err error) {
	if len(row) == 0 {
		return 0, nil
	}
	p := parser{}
	if p.Parser, err = journal.Open(row); err != nil {
		return 0, err
	}
	var oldest uint64
	ok := p.Uint(&oldest)
	for ok && len(p.Parser) > 0 {
		var e entry
		if ok = p.entry(&e); ok {
			apply(&e)
		}
	}
	if !ok {
		return 0, errors.New("it has a change that cannot be decoded")
	}
	return int64(oldest), nil
}

// parser is the unread rest of a row, with the specs read so far.
type parser struct {
	journal.Parser
	specs []unique.Handle[string]
}

func (p *parser) entry(e *entry) bool {
	var kind byte
	if !p.Kind(&kind, kinds) || !p.Bytes(&e.key) || !p.Bytes(&e.name) {
		return false
	}
	if e.removed = kind == removed; e.removed {
		return true
	}
	return p.Int(&e.expires) && p.Bytes(&e.state) && p.spec(kind, e)
}

func (p *parser) spec(kind byte, e *entry) bool {
	if kind == changedWithSpec {
		var text []byte
		if !p.Bytes(&text) {
			return false
		}
		e.spec = unique.Make(string(text))
		p.specs = append(p.specs, e.spec)
		return true
	}
	var number uint64
	if !p.Uint(&number) || number >= uint64(len(p.specs)) {
		return false
	}
	e.spec = p.specs[number]
	return true
}

func errCorrupt(seq int64, err error) error {
	return fmt.Errorf("row %d of table journal is damaged: %w; restore a backup, or stop all limiters and set changes of that "+
		"row to '', which loses the charges in it", seq, err)
}

// errMissingRows says that rows before row seq are missing although they may still be needed.
func errMissingRows(seq int64) error {
	return fmt.Errorf("table journal lacks rows before row %d, which are not known to be folded; restore a backup, or stop "+
		"all limiters and INSERT INTO journal VALUES (%d, 0, ''), which loses the charges in the missing rows", seq, seq-1)
}
