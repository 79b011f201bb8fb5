package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/seed503877ad/limits/internal/engine"
)

const readReceiptSQL = `SELECT fingerprint, answer, expires_at FROM receipts WHERE id = ?`

// receiptRow is a receipt with its fingerprint as stored.
type receiptRow struct {
	engine.Receipt
	fingerprint []byte
}

func (r *receiptRow) receipt() (*engine.Receipt, error) {
	if copy(r.Fingerprint[:], r.fingerprint); len(r.fingerprint) != len(r.Fingerprint) {
		return nil, fmt.Errorf("receipt %q has a fingerprint of %d bytes", r.ID, len(r.fingerprint))
	}
	r.Answer = blob(r.Answer)
	return &r.Receipt, nil
}

// readReceipts reads the receipts of ids in the running transaction; nil for one that is not stored.
func (s *Store) readReceipts(ids []string) (receipts []*engine.Receipt, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	receipts = make([]*engine.Receipt, len(ids))
	for i, id := range ids {
		r := receiptRow{Receipt: engine.Receipt{ID: id}}
		err := s.stmts.readReceipt.QueryRow(id).Scan(&r.fingerprint, &r.Answer, &r.ExpiresAt)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if receipts[i], err = r.receipt(); err != nil {
			return nil, err
		}
	}
	return receipts, nil
}

const receiptsSQL = `
SELECT id, fingerprint, answer, expires_at FROM receipts WHERE id IN (SELECT value FROM json_each(?))`

// Receipts implements [engine.Store].
func (s *Store) Receipts(ctx context.Context, ids []string) ([]*engine.Receipt, error) {
	const act = "read receipts"
	wanted, err := encode(ids)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", act, err)
	}
	rows, err := read(ctx, s, act, func(r *receiptRow) []any {
		return []any{&r.ID, &r.fingerprint, &r.Answer, &r.ExpiresAt}
	}, receiptsSQL, wanted)
	if err != nil {
		return nil, err
	}
	found := make(map[string]*engine.Receipt, len(rows))
	for i := range rows {
		if found[rows[i].ID], err = rows[i].receipt(); err != nil {
			return nil, fmt.Errorf("%s: %w", act, err)
		}
	}
	receipts := make([]*engine.Receipt, len(ids))
	for i, id := range ids {
		receipts[i] = found[id]
	}
	return receipts, nil
}

const (
	deleteReceiptSQL = `DELETE FROM receipts WHERE id = ?`
	insertReceiptSQL = `INSERT INTO receipts (id, fingerprint, answer, expires_at) VALUES (?, ?, ?, ?)`
)

func (s *Store) writeReceipts(stale []string, receipts []engine.Receipt) error {
	for _, id := range stale {
		if _, err := s.stmts.deleteReceipt.Exec(id); err != nil {
			return err
		}
	}
	for i := range receipts {
		r := &receipts[i]
		if _, err := s.stmts.insertReceipt.Exec(r.ID, r.Fingerprint[:], blob(r.Answer), r.ExpiresAt); err != nil {
			if alreadyThere(err) {
				return fmt.Errorf("%w: %w", engine.ErrConflict, err)
			}
			return err
		}
	}
	return nil
}
