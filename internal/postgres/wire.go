package postgres

import (
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// The decision's statements speak PostgreSQL's binary format directly: a parameter is one array per column, and the
// general codecs allocate for every element of one.

// arrays builds the parameters of one statement, over buffers that are kept.
type arrays struct {
	values [][]byte
}

func (a *arrays) reset() { a.values = a.values[:0] }

// next is the buffer of the next parameter, emptied.
func (a *arrays) next() *[]byte {
	if len(a.values) < cap(a.values) {
		a.values = a.values[:len(a.values)+1]
	} else {
		a.values = append(a.values, nil)
	}
	p := &a.values[len(a.values)-1]
	*p = (*p)[:0]
	return p
}

// add begins the next parameter: a one-dimensional array of n elements of a type, appended with element.
func (a *arrays) add(oid uint32, n int) *[]byte {
	p := a.next()
	b := binary.BigEndian.AppendUint32(*p, 1) // dimensions
	b = binary.BigEndian.AppendUint32(b, 0)   // no nulls
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
	p := a.next()
	*p = binary.BigEndian.AppendUint64(*p, uint64(v))
}

// blob adds a bytea.
func (a *arrays) blob(b []byte) {
	p := a.next()
	*p = append(*p, b...)
}

// elements adds an array with an element for each of all.
func elements[T any](t *tx, oid uint32, all []T, value func(to *[]byte, v T)) {
	to := t.params.add(oid, len(all))
	for _, v := range all {
		value(to, v)
	}
}

func int8Element(p *[]byte, v int64) {
	*p = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(*p, 8), uint64(v))
}

const (
	textOID  = pgtype.TextOID
	byteaOID = pgtype.ByteaOID
	int8OID  = pgtype.Int8OID
	tidOID   = pgtype.TIDOID
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
