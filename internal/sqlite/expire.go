package sqlite

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/seed503877ad/limits/internal/engine"
)

const (
	expiredCountersSQL = `SELECT key, name, expires_at FROM counters WHERE expires_at <= ? ORDER BY expires_at`

	deleteCounterSQL = `DELETE FROM counters WHERE key = ? AND name = ?`

	deleteExpiredReceiptsSQL = `
DELETE FROM receipts WHERE id IN (SELECT id FROM receipts WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)`
)

// Expire removes up to max counters and up to max receipts that have expired by the store's clock,
// those that expired first, in one transaction. It returns how many of both it removed.
func (s *Store) Expire(ctx context.Context, max int) (n int, err error) {
	err = s.transactCounters(ctx, func() (func(), error) {
		now := s.now().UnixMilli()
		ids, err := s.expired(now, max)
		if err != nil {
			return nil, fmt.Errorf("read counters: %w", err)
		}
		for _, id := range ids {
			if _, err := s.execInTx(deleteCounterSQL, id.Key, id.Name); err != nil {
				return nil, fmt.Errorf("delete counters: %w", err)
			}
		}
		receipts, err := s.execInTx(deleteExpiredReceiptsSQL, now, max)
		if err != nil {
			return nil, fmt.Errorf("delete receipts: %w", err)
		}
		if n = len(ids) + int(receipts); n == 0 {
			return nil, nil
		}
		return s.journalRemoved(ids)
	})
	if err != nil {
		return 0, fmt.Errorf("remove expired rows: %w", err)
	}
	return n, nil
}

// expired returns up to max counters to remove, those that expired first. A dirty row takes
// precedence over the table's.
func (s *Store) expired(now int64, max int) ([]engine.CounterID, error) {
	type candidate struct {
		id      engine.CounterID
		expires int64
	}
	var all []candidate
	for r := s.dirty.oldest(); r != nil; r = s.dirty.next(r) {
		if r.expires <= now {
			all = append(all, candidate{r.id, r.expires})
		}
	}
	found, err := s.conn.QueryContext(context.Background(), expiredCountersSQL, now)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	for most := len(all) + max; len(all) < most && found.Next(); {
		var c candidate
		if err := found.Scan(&c.id.Key, &c.id.Name, &c.expires); err != nil {
			return nil, err
		}
		if s.dirty.rows[c.id] == nil {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.expires, b.expires) })
	ids := make([]engine.CounterID, min(len(all), max))
	for i := range ids {
		ids[i] = all[i].id
	}
	return ids, found.Err()
}
