package postgres

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"unique"

	"github.com/seed503877ad/limits/internal/engine"
)

// A row of the journal is what one transaction did to counters:
//
//	version (1 byte), first, change…, CRC-32C of all before it (4 bytes, little endian)
//
// first is the number of the oldest row of the journal that is needed behind this transaction: what older ones say is in
// the table counters. A change is, with each text and blob behind its length and all numbers as varints:
//
//	kind (1 byte), key, name, [expires_at, state, spec]
//
// where the spec is a text once in a row, and for the changes behind it the number of that text. So a row stands for
// itself: it says all there is to say of the counters it names. An empty row says nothing.
const journalVersion = 1

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
	r.data = binary.AppendUvarint(append(r.data[:0], journalVersion), uint64(first))
	r.specs = r.specs[:0]
}

func (r *record) remove(id engine.CounterID) { r.head(removed, id) }

func (r *record) change(id engine.CounterID, expires int64, state []byte, spec unique.Handle[string]) {
	for number := len(r.specs) - 1; number >= max(0, len(r.specs)-specsSought); number-- {
		if r.specs[number] == spec {
			r.head(changed, id)
			r.body(expires, state)
			r.data = binary.AppendUvarint(r.data, uint64(number))
			return
		}
	}
	r.specs = append(r.specs, spec)
	r.head(specified, id)
	r.body(expires, state)
	text := spec.Value()
	r.data = append(binary.AppendUvarint(r.data, uint64(len(text))), text...)
}

func (r *record) head(kind byte, id engine.CounterID) {
	r.data = append(binary.AppendUvarint(append(r.data, kind), uint64(len(id.Key))), id.Key...)
	r.data = append(binary.AppendUvarint(r.data, uint64(len(id.Name))), id.Name...)
}

func (r *record) body(expires int64, state []byte) {
	r.data = binary.AppendVarint(r.data, expires)
	r.data = append(binary.AppendUvarint(r.data, uint64(len(state))), state...)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (r *record) seal() {
	r.data = binary.LittleEndian.AppendUint32(r.data, crc32.Checksum(r.data, castagnoli))
}

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
	if len(row) < 6 {
		return 0, fmt.Errorf("%d bytes", len(row))
	}
	body, sum := row[:len(row)-4], binary.LittleEndian.Uint32(row[len(row)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return 0, errors.New("the checksum does not match")
	}
	if body[0] != journalVersion {
		return 0, fmt.Errorf("version %d, and this program knows %d", body[0], journalVersion)
	}
	p := parser{rest: body[1:]}
	oldest, ok := p.number()
	for ok && len(p.rest) > 0 {
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
	rest  []byte
	specs []unique.Handle[string]
}

func (p *parser) entry(e *entry) bool {
	kind := p.rest[0]
	p.rest = p.rest[1:]
	if kind >= kinds || !p.bytes(&e.key) || !p.bytes(&e.name) {
		return false
	}
	if e.removed = kind == removed; e.removed {
		return true
	}
	n := 0
	if e.expires, n = binary.Varint(p.rest); n <= 0 {
		return false
	}
	p.rest = p.rest[n:]
	return p.bytes(&e.state) && p.spec(kind, e)
}

func (p *parser) spec(kind byte, e *entry) bool {
	if kind == specified {
		var text []byte
		if !p.bytes(&text) {
			return false
		}
		e.spec = unique.Make(string(text))
		p.specs = append(p.specs, e.spec)
		return true
	}
	number, ok := p.number()
	if !ok || number >= uint64(len(p.specs)) {
		return false
	}
	e.spec = p.specs[number]
	return true
}

func (p *parser) number() (v uint64, ok bool) {
	v, n := binary.Uvarint(p.rest)
	if n <= 0 {
		return 0, false
	}
	p.rest = p.rest[n:]
	return v, true
}

func (p *parser) bytes(to *[]byte) bool {
	size, ok := p.number()
	if !ok || size > uint64(len(p.rest)) {
		return false
	}
	*to, p.rest = p.rest[:size:size], p.rest[size:]
	return true
}

func errCorrupt(seq int64, err error) error {
	return fmt.Errorf("row %d of table journal is damaged: %w; restore a backup, or stop all limiters, set changes of that "+
		"row to '' and lose the charges in it", seq, err)
}
