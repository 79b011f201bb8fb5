package sqlite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/seed503877ad/limits/internal/engine"
)

// A row of the journal is what one transaction did to counters:
//
//	version (1 byte), change…, CRC-32C of all before it (4 bytes, little endian)
//
// and a change is, with each text and blob behind its length and all numbers as varints:
//
//	kind (1 byte), key, name, [expires_at, state, [spec]]
//
// SQLite has no checksum of its own over what it stored.
const journalVersion = 1

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

func newRecord(buf []byte) record { return append(record(buf)[:0], journalVersion) }

// empty tells that there is nothing in it to keep.
func (r record) empty() bool { return len(r) <= 1 }

func (r record) remove(id engine.CounterID) record { return r.head(removed, id) }

func (r record) change(id engine.CounterID, c *engine.CounterChange) record {
	kind := byte(changed)
	if c.Spec != nil {
		kind = respecified
	}
	r = r.head(kind, id)
	r = binary.AppendVarint(r, c.ExpiresAt)
	r = append(binary.AppendUvarint(r, uint64(len(c.State))), c.State...)
	if c.Spec != nil {
		r = append(binary.AppendUvarint(r, uint64(len(c.Spec))), c.Spec...)
	}
	return r
}

func (r record) head(kind byte, id engine.CounterID) record {
	r = append(r, kind)
	r = append(binary.AppendUvarint(r, uint64(len(id.Key))), id.Key...)
	return append(binary.AppendUvarint(r, uint64(len(id.Name))), id.Name...)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (r record) seal() record {
	return binary.LittleEndian.AppendUint32(r, crc32.Checksum(r, castagnoli))
}

// entry is a change as it is read back. Its slices are parts of the row.
type entry struct {
	kind        byte
	key, name   []byte
	expires     int64
	state, spec []byte
}

// decode calls apply for each change of a row, after the whole row was found to be as it was written.
func decode(row []byte, apply func(*entry) error) error {
	if len(row) < 5 {
		return fmt.Errorf("%d bytes", len(row))
	}
	body, sum := row[:len(row)-4], binary.LittleEndian.Uint32(row[len(row)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return errors.New("the checksum does not match")
	}
	if body[0] != journalVersion {
		return fmt.Errorf("version %d, and this program knows %d", body[0], journalVersion)
	}
	for p := parser(body[1:]); len(p) > 0; {
		var e entry
		if !p.entry(&e) {
			return errors.New("a change that cannot be read")
		}
		if err := apply(&e); err != nil {
			return err
		}
	}
	return nil
}

// parser is what is left to read of a row.
type parser []byte

func (p *parser) entry(e *entry) bool {
	e.kind = (*p)[0]
	*p = (*p)[1:]
	if e.kind >= kinds || !p.bytes(&e.key) || !p.bytes(&e.name) {
		return false
	}
	if e.kind == removed {
		return true
	}
	n := 0
	if e.expires, n = binary.Varint(*p); n <= 0 {
		return false
	}
	*p = (*p)[n:]
	return p.bytes(&e.state) && (e.kind != respecified || p.bytes(&e.spec))
}

func (p *parser) bytes(to *[]byte) bool {
	size, n := binary.Uvarint(*p)
	if n <= 0 || size > uint64(len(*p)-n) {
		return false
	}
	end := n + int(size)
	*to, *p = (*p)[n:end:end], (*p)[end:]
	return true
}
