package postgres

import (
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// The statements of a decision use PostgreSQL's binary format directly: each parameter is one array
// per column, and the general codecs would allocate for every element.

// arrays builds the parameters of a statement in buffers that are reused.
type arrays struct {
	values [][]byte
}

func (a *arrays) reset() { a.values = a.values[:0] }

// next returns the emptied buffer of the next parameter.
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

// add begins the next parameter, an array of n elements, which the caller appends with element.
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

// elements adds an array parameter with one element for each value of all.
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

// binaryFormat asks for binary parameters and results.
var binaryFormat = []int16{1}

// statementsKey is where a connection's custom data holds its prepared statements.
const statementsKey = "limits.statements"

// statements holds the descriptions of the statements of [decisionSQL] on one connection.
type statements [len(decisionSQL)]*pgconn.StatementDescription

func (all *statements) send(p *pgconn.Pipeline, statement int, params [][]byte) {
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

// result returns the reader of the next statement's result.
func result(p *pgconn.Pipeline) (*pgconn.ResultReader, error) { return next[*pgconn.ResultReader](p) }

// next returns what the server sent next, which must be an R.
func next[R any](p *pgconn.Pipeline) (r R, err error) {
	got, err := p.GetResults()
	if err != nil {
		return r, err
	}
	r, ok := got.(R)
	if !ok {
		return r, fmt.Errorf("unexpected %T in a pipeline", got)
	}
	return r, nil
}

// done reads the result of a statement without rows.
func done(p *pgconn.Pipeline) (pgconn.CommandTag, error) {
	rr, err := result(p)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	return rr.Close()
}

// postgresEpoch is 2000-01-01 in Unix milliseconds, the zero of PostgreSQL's timestamps.
const postgresEpoch = 946_684_800_000

// unixMillis converts a binary timestamptz, rounded down: the clock must not be ahead.
func unixMillis(b []byte) (int64, error) {
	if len(b) != 8 {
		return 0, fmt.Errorf("timestamp has %d bytes", len(b))
	}
	micros := int64(binary.BigEndian.Uint64(b))
	ms := micros / 1000
	if micros%1000 < 0 {
		ms--
	}
	return ms + postgresEpoch, nil
}
