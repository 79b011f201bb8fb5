package postgres

import (
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// The decision's statements speak PostgreSQL's binary format directly: a parameter is one array per column, and the
// general codecs allocate for every element of one.

// tid is the place of a row: block and offset, as on the wire. The zero tid is no row's.
type tid [6]byte

// arrays builds the parameters of one statement, over buffers that are kept.
type arrays struct {
	values [][]byte
}

func (a *arrays) reset() { a.values = a.values[:0] }

// add begins the next parameter: a one-dimensional array of n elements of a type, appended with element.
func (a *arrays) add(oid uint32, n int) *[]byte {
	if len(a.values) < cap(a.values) {
		a.values = a.values[:len(a.values)+1]
	} else {
		a.values = append(a.values, nil)
	}
	p := &a.values[len(a.values)-1]
	b := (*p)[:0]
	b = binary.BigEndian.AppendUint32(b, 1) // dimensions
	b = binary.BigEndian.AppendUint32(b, 0) // no nulls
	b = binary.BigEndian.AppendUint32(b, oid)
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	*p = binary.BigEndian.AppendUint32(b, 1) // lower bound
	return p
}

func element[T string | []byte](p *[]byte, v T) {
	*p = append(binary.BigEndian.AppendUint32(*p, uint32(len(v))), v...)
}

// scalar adds a parameter of eight bytes: a bigint, or a timestamp in microseconds since 2000.
func (a *arrays) scalar(v int64) {
	a.values = append(a.values, binary.BigEndian.AppendUint64(nil, uint64(v)))
}

func (a *arrays) oid(v uint32) {
	a.values = append(a.values, binary.BigEndian.AppendUint32(nil, v))
}

func int8Element(p *[]byte, v int64) {
	*p = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(*p, 8), uint64(v))
}

const (
	textOID  = pgtype.TextOID
	byteaOID = pgtype.ByteaOID
	int8OID  = pgtype.Int8OID
	tidOID   = pgtype.TIDOID
	xidOID   = pgtype.XIDOID
)

// binaryFormat asks for all parameters and results in binary.
var binaryFormat = []int16{1}

// preparedKey names the statements in a connection's custom data.
const preparedKey = "limits.prepared"

// prepared holds the descriptions of [decisionSQL].
type prepared [len(decisionSQL)]*pgconn.StatementDescription

func (all *prepared) send(p *pgconn.Pipeline, statement int, params [][]byte) {
	d := all[statement]
	var formats []int16
	if len(params) > 0 {
		formats = binaryFormat
	}
	var results []int16
	if len(d.Fields) > 0 {
		results = binaryFormat
	}
	p.SendQueryStatement(d, params, formats, results)
}

// result is the answer to the next statement of a pipeline.
func result(p *pgconn.Pipeline) (*pgconn.ResultReader, error) {
	res, err := p.GetResults()
	if err != nil {
		return nil, err
	}
	rr, ok := res.(*pgconn.ResultReader)
	if !ok {
		return nil, fmt.Errorf("unexpected %T in a pipeline", res)
	}
	return rr, nil
}

// done is the answer to a statement without rows.
func done(p *pgconn.Pipeline) (pgconn.CommandTag, error) {
	rr, err := result(p)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	return rr.Close()
}

func description(p *pgconn.Pipeline) (*pgconn.StatementDescription, error) {
	res, err := p.GetResults()
	if err != nil {
		return nil, err
	}
	d, ok := res.(*pgconn.StatementDescription)
	if !ok {
		return nil, fmt.Errorf("unexpected %T in a pipeline", res)
	}
	return d, nil
}

// postgresEpoch is 2000-01-01 in Unix milliseconds, where timestamps count from.
const postgresEpoch = 946_684_800_000

// unixMillis reads a binary timestamptz, rounded down: a clock must not be ahead.
func unixMillis(b []byte) (int64, error) {
	if len(b) != 8 {
		return 0, fmt.Errorf("a timestamp of %d bytes", len(b))
	}
	micros := int64(binary.BigEndian.Uint64(b))
	ms := micros / 1000
	if micros%1000 < 0 {
		ms--
	}
	return ms + postgresEpoch, nil
}
