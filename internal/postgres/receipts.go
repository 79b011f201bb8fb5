package postgres

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/engine"
)

// Receipts are read after the turn was taken, so that a request sees the receipt that an earlier
// one with its id has written. The LIMIT keeps the planner from swapping the sides of the join.
const readReceiptsSQL = `
SELECT i.ord, r.fingerprint, r.answer, r.expires_at
FROM unnest($1::text[]) WITH ORDINALITY AS i (id, ord)
CROSS JOIN LATERAL (
	SELECT fingerprint, answer, expires_at FROM receipts WHERE id = i.id LIMIT 1
) r`

func (t *tx) sendReceipts(p *pgconn.Pipeline, ids []string) {
	if len(ids) == 0 {
		return
	}
	t.setIDs(ids)
	t.ids = ids // the result has positions instead of ids
	t.stmts.send(p, stReadReceipts, t.params.values)
}

// setIDs makes ids the only parameter of a statement.
func (t *tx) setIDs(ids []string) {
	t.params.reset()
	elements(t, textOID, ids, element[string])
}

// readReceipts reads the result of sendReceipts.
func (t *tx) readReceipts(p *pgconn.Pipeline) ([]*engine.Receipt, error) {
	rr, err := result(p)
	if err != nil {
		return nil, err
	}
	receipts := make([]*engine.Receipt, len(t.ids))
	var bad error
	for rr.NextRow() {
		row := rr.Values()
		slot := int(binary.BigEndian.Uint64(row[0])) - 1
		r := &engine.Receipt{
			ID:        t.ids[slot],
			Answer:    append([]byte{}, row[2]...),
			ExpiresAt: int64(binary.BigEndian.Uint64(row[3])),
		}
		if copy(r.Fingerprint[:], row[1]); len(row[1]) != len(r.Fingerprint) {
			bad = fmt.Errorf("receipt %q has a fingerprint of %d bytes", r.ID, len(row[1]))
		}
		receipts[slot] = r
	}
	if _, err := rr.Close(); err != nil {
		return nil, err
	}
	return receipts, bad
}

const deleteReceiptsSQL = `
DELETE FROM receipts WHERE id = ANY ($1::text[])`

func (t *tx) sendStaleReceipts(p *pgconn.Pipeline, ids []string) {
	if len(ids) == 0 {
		return
	}
	t.setIDs(ids)
	t.send(p, step{"remove stale receipts", stDeleteReceipts, anyNumber})
}

// No ON CONFLICT: the second request with an id has to be answered from the receipt of the first.
const insertReceiptsSQL = `
INSERT INTO receipts (id, fingerprint, answer, expires_at)
SELECT * FROM unnest($1::text[], $2::bytea[], $3::bytea[], $4::bigint[])`

func (t *tx) sendNewReceipts(p *pgconn.Pipeline, receipts []engine.Receipt) {
	if len(receipts) == 0 {
		return
	}
	t.params.reset()
	elements(t, textOID, receipts, func(to *[]byte, r engine.Receipt) { element(to, r.ID) })
	elements(t, byteaOID, receipts, func(to *[]byte, r engine.Receipt) { element(to, r.Fingerprint[:]) })
	elements(t, byteaOID, receipts, func(to *[]byte, r engine.Receipt) { element(to, r.Answer) })
	elements(t, int8OID, receipts, func(to *[]byte, r engine.Receipt) { int8Element(to, r.ExpiresAt) })
	t.send(p, step{"insert receipts", stInsertReceipts, len(receipts)})
}

// Receipts implements [engine.Store].
func (s *Store) Receipts(ctx context.Context, ids []string) ([]*engine.Receipt, error) {
	receipts, lost, err := s.readReceiptsOnce(ctx, ids)
	if lost && ctx.Err() == nil { // as in runInTurn
		s.lostConns.Tried(err)
		s.pool.Reset()
		receipts, _, err = s.readReceiptsOnce(ctx, ids)
	}
	if err != nil {
		return nil, fmt.Errorf("read receipts: %w", err)
	}
	return receipts, nil
}

// readReceiptsOnce reads receipts in a transaction of its own. lost says that the connection was
// lost, or its prepared statements were found outdated.
func (s *Store) readReceiptsOnce(ctx context.Context, ids []string) (_ []*engine.Receipt, lost bool, err error) {
	conn, err := s.conns.get(ctx)
	if err != nil {
		return nil, false, err
	}
	defer conn.Release()
	t := new(tx)
	t.use(conn)
	p := t.conn.StartPipeline(ctx)
	t.sendReceipts(p, ids)
	var receipts []*engine.Receipt
	if err = p.Sync(); err == nil {
		receipts, err = t.readReceipts(p)
	}
	if closeErr := p.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		s.conns.resetIfTimedOut(ctx)
	}
	return receipts, err != nil && (t.conn.IsClosed() || outdated(err)), err
}
