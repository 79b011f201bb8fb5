package sqlite

import (
	"context"
	"fmt"

	"github.com/seed503877ad/limits/internal/engine"
)

const (
	expiredCountersSQL = `SELECT key, name FROM counters WHERE expires_at <= ? ORDER BY expires_at`

	deleteCounterSQL = `DELETE FROM counters WHERE key = ? AND name = ?`

	deleteReceiptsSQL = `
DELETE FROM receipts WHERE id IN (SELECT id FROM receipts WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)`
)

// Expire removes up to max counters and up to max receipts that expired at or before the store's clock, in one
// transaction, and gives how many it removed of both.
func (s *Store) Expire(ctx context.Context, max int) (n int, err error) {
	err = s.transact(ctx, func() (func(), error) {
		now := s.now().UnixMilli()
		ids, err := s.expired(now, max)
		if err != nil {
			return nil, fmt.Errorf("read counters: %w", err)
		}
		for _, id := range ids {
			if _, err := s.st.deleteCounter.Exec(id.Key, id.Name); err != nil {
				return nil, fmt.Errorf("delete counters: %w", err)
			}
		}
		res, err := s.st.deleteReceipts.Exec(now, max)
		if err != nil {
			return nil, fmt.Errorf("delete receipts: %w", err)
		}
		receipts, err := res.RowsAffected()
		if n = len(ids) + int(receipts); err != nil || n == 0 {
			return nil, err
		}
		return s.recordRemoved(ids)
	})
	if err != nil {
		return 0, fmt.Errorf("remove what expired: %w", err)
	}
	return n, nil
}

// expired gives up to max counters to remove. A row of the table may be older than a dirty one, which then decides.
func (s *Store) expired(now int64, max int) (ids []engine.CounterID, err error) {
	for r := s.dirty.oldest(); r != nil && len(ids) < max; r = s.dirty.next(r) {
		if r.expires <= now {
			ids = append(ids, r.id)
		}
	}
	if len(ids) >= max {
		return ids, nil
	}
	found, err := s.conn.QueryContext(context.Background(), expiredCountersSQL, now)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	for len(ids) < max && found.Next() {
		var id engine.CounterID
		if err := found.Scan(&id.Key, &id.Name); err != nil {
			return nil, err
		}
		if s.dirty.rows[id] == nil {
			ids = append(ids, id)
		}
	}
	return ids, found.Err()
}
