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

// Begin empties a row that is to be written. A row is
//
//	version (1 byte), what the store says, CRC-32C of all before it (4 bytes, little endian)
//
// where numbers are varints and each text or blob stands behind its length. SQLite has no checksum of its own over what
// it stored, and PostgreSQL only where it was asked for.
func Begin(row []byte) []byte { return append(row[:0], version) }

// Seal ends a row.
func Seal(row []byte) []byte {
	return binary.LittleEndian.AppendUint32(row, crc32.Checksum(row, castagnoli))
}

// Open gives what a row says, after it was found to be as it was sealed.
func Open(row []byte) (Parser, error) {
	if len(row) < 5 {
		return nil, fmt.Errorf("%d bytes", len(row))
	}
	body, sum := row[:len(row)-4], binary.LittleEndian.Uint32(row[len(row)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, errors.New("the checksum does not match")
	}
	if body[0] != version {
		return nil, fmt.Errorf("version %d, and this program knows %d", body[0], version)
	}
	return body[1:], nil
}

// AppendBytes appends a text or a blob behind its length.
func AppendBytes[T string | []byte](row []byte, v T) []byte {
	return append(binary.AppendUvarint(row, uint64(len(v))), v...)
}

// AppendHead appends the kind of a change, and the counter that it is about.
func AppendHead(row []byte, kind byte, id engine.CounterID) []byte {
	return AppendBytes(AppendBytes(append(row, kind), id.Key), id.Name)
}

// Parser is what is left to read of a row. Each method reads what stands at its beginning; it is false, and changes
// nothing, when that cannot be read.
type Parser []byte

// Kind reads a kind of change below kinds.
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

// Bytes reads what [AppendBytes] appended, as a part of the row.
func (p *Parser) Bytes(to *[]byte) bool {
	size, n := binary.Uvarint(*p)
	if n <= 0 || size > uint64(len(*p)-n) {
		return false
	}
	end := n + int(size)
	*to, *p = (*p)[n:end:end], (*p)[end:]
	return true
}
