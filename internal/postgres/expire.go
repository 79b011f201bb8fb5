package postgres

import (
	"context"
	"fmt"
)

// What expires is found behind the index and locked, and whether it has expired is looked at again on the version that
// is locked. What somebody else holds is about to be charged, or removed. The deletion sees the versions that were there
// when the statement began: a row that moved before it was locked stays for the next time.
//
// The time is that of the statement's beginning, because the planner uses no index for clock_timestamp(), which may
// differ from row to row. The cast alone would round it up.
const (
	expiredSQL = ` WHERE expires_at <= floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint
	ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED`

	expireCountersSQL = `
DELETE FROM counters WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM counters` + expiredSQL + `))`

	expireReceiptsSQL = `
DELETE FROM receipts WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM receipts` + expiredSQL + `))`
)

// Expire removes up to max counters and up to max receipts that have expired, those that did first, and returns how
// many of both. It waits for no lock: what is being charged stays.
func (s *Store) Expire(ctx context.Context, max int) (int, error) {
	counters, err := s.relay.Exec(ctx, expireCountersSQL, max)
	if err != nil {
		return 0, fmt.Errorf("remove expired counters: %w", err)
	}
	n := int(counters.RowsAffected())
	receipts, err := s.relay.Exec(ctx, expireReceiptsSQL, max)
	if err != nil {
		return n, fmt.Errorf("remove expired receipts: %w", err)
	}
	return n + int(receipts.RowsAffected()), nil
}
