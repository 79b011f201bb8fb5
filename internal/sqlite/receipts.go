package sqlite

import (
	"database/sql"
	"errors"
	"fmt"

	"github.com/seed503877ad/limits/internal/engine"
)

const readReceiptSQL = `SELECT fingerprint, answer, expires_at FROM receipts WHERE id = ?`

func (s *Store) readReceipts(ids []string) ([]*engine.Receipt, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	receipts := make([]*engine.Receipt, len(ids))
	for i, id := range ids {
		r := &engine.Receipt{ID: id}
		var fingerprint []byte
		err := s.stmts.readReceipt.QueryRow(id).Scan(&fingerprint, &r.Answer, &r.ExpiresAt)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if copy(r.Fingerprint[:], fingerprint); len(fingerprint) != len(r.Fingerprint) {
			return nil, fmt.Errorf("receipt %q has a fingerprint of %d bytes", id, len(fingerprint))
		}
		r.Answer = blob(r.Answer)
		receipts[i] = r
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
