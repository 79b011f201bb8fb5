package postgres

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unique"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/journal"
)

// A row of the journal is what one transaction did to counters:
//
//	first, change…
//
// first is the number of the oldest row of the journal that is needed behind this transaction: what older ones say is in
// the table counters. A change is
//
//	kind (1 byte), key, name, [expires_at, state, spec]
//
// where the spec is a text once in a row, and for the changes behind it the number of that text. So a row stands for
// itself: it says all there is to say of the counters it names. An empty row says nothing.
//
// The kinds of changes.
const (
	removed   = iota // no further field
	changed          // with a spec by its number
	specified        // with the text of a spec, which gets the next number
	kinds            // how many there are
)

// specsSought is among how many of the last texts one is looked for, which may so be there twice.
const specsSought = 16

// record is a row of the journal that is being written.
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
	for number := len(r.specs) - 1; number >= max(0, len(r.specs)-specsSought); number-- {
		if r.specs[number] == spec {
			r.body(changed, id, expires, state)
			r.data = binary.AppendUvarint(r.data, uint64(number))
			return
		}
	}
	r.specs = append(r.specs, spec)
	r.body(specified, id, expires, state)
	r.data = journal.AppendBytes(r.data, spec.Value())
}

func (r *record) body(kind byte, id engine.CounterID, expires int64, state []byte) {
	r.data = journal.AppendBytes(binary.AppendVarint(journal.AppendHead(r.data, kind, id), expires), state)
}

func (r *record) seal() { r.data = journal.Seal(r.data) }

// entry is a change as it is read back. Its slices are parts of the row.
type entry struct {
	removed   bool
	key, name []byte
	expires   int64
	state     []byte
	spec      unique.Handle[string]
}

// decode calls apply for each change of a row, after the whole row was found to be as it was written, and gives the
// oldest row of the journal that is needed behind it.
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
		return 0, errors.New("a change that cannot be read")
	}
	return int64(oldest), nil
}

// parser is what is left to read of a row, and the specs met so far.
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
	if kind == specified {
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
	return fmt.Errorf("row %d of table journal is damaged: %w; restore a backup, or stop all limiters, set changes of that "+
		"row to '' and lose the charges in it", seq, err)
}

// errBeginning is the error of a journal that begins with a row behind ones that may be needed.
func errBeginning(seq int64) error {
	return fmt.Errorf("table journal begins with row %d, and nobody has said that those before are folded; restore a backup, or stop "+
		"all limiters, INSERT INTO journal VALUES (%d, 0, '') and lose the charges in what is missing", seq, seq-1)
}
