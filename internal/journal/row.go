package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/seed503877ad/limits/internal/engine"
)

// version is the first byte of a row.
const version = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Begin begins a row, in the memory of a row that is no longer needed. A row is
//
//	version (1 byte), the store's content, CRC-32C of all before it (4 bytes, little endian)
//
// Numbers in the content are varints, and each text or blob follows its length. There is a checksum
// because SQLite has none over what it stores, and PostgreSQL only if it is set up so.
func Begin(row []byte) []byte { return append(row[:0], version) }

// Seal ends a row with its checksum.
func Seal(row []byte) []byte {
	return binary.LittleEndian.AppendUint32(row, crc32.Checksum(row, castagnoli))
}

// Open verifies the checksum and the version of a row, and returns its content.
func Open(row []byte) (Parser, error) {
	if len(row) < 5 {
		return nil, fmt.Errorf("only %d bytes long", len(row))
	}
	body, sum := row[:len(row)-4], binary.LittleEndian.Uint32(row[len(row)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, errors.New("checksum mismatch")
	}
	if body[0] != version {
		return nil, fmt.Errorf("unsupported version %d; this release supports version %d", body[0], version)
	}
	return body[1:], nil
}

// AppendBytes appends the length of a text or blob, and the text or blob.
func AppendBytes[T string | []byte](row []byte, v T) []byte {
	return append(binary.AppendUvarint(row, uint64(len(v))), v...)
}

// AppendHead appends the kind of a change, and the id of its counter.
func AppendHead(row []byte, kind byte, id engine.CounterID) []byte {
	return AppendBytes(AppendBytes(append(row, kind), id.Key), id.Name)
}

// Parser is the rest of a row that is being read. Each method reads one value from its beginning. It
// is false, and changes nothing, if that cannot be read.
type Parser []byte

// Kind reads the kind of a change, which must be below kinds.
func (p *Parser) Kind(to *byte, kinds byte) bool {
	if len(*p) == 0 || (*p)[0] >= kinds {
		return false
	}
	*to, *p = (*p)[0], (*p)[1:]
	return true
}

// Uint reads a number that was appended with [binary.AppendUvarint].
func (p *Parser) Uint(to *uint64) bool {
	v, n := binary.Uvarint(*p)
	if n <= 0 {
		return false
	}
	*to, *p = v, (*p)[n:]
	return true
}

// Int reads a number that was appended with [binary.AppendVarint].
func (p *Parser) Int(to *int64) bool {
	v, n := binary.Varint(*p)
	if n <= 0 {
		return false
	}
	*to, *p = v, (*p)[n:]
	return true
}

// Bytes reads what [AppendBytes] appended. The result shares the memory of the row.
func (p *Parser) Bytes(to *[]byte) bool {
	size, n := binary.Uvarint(*p)
	if n <= 0 || size > uint64(len(*p)-n) {
		return false
	}
	end := n + int(size)
	*to, *p = (*p)[n:end:end], (*p)[end:]
	return true
}
