package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/seed503877ad/limits/internal/columns"
	"github.com/seed503877ad/limits/internal/keys"
)

const (
	insertKeySQL = `
INSERT INTO api_keys (` + columns.Key + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (id) DO NOTHING`

	// Without its row nothing would say that keys have changed, so each read has another revision then.
	readKeysSQL = `
SELECT coalesce((SELECT revision FROM key_revision), (random() * 9223372036854775807)::bigint), ` + columns.Key + `
FROM api_keys WHERE id = ANY ($1)`

	listKeysSQL = `
SELECT ` + columns.Key + ` FROM api_keys WHERE id > $1 AND id >= $2 AND id < $3 ORDER BY id LIMIT $4`

	// Materialized, because the planner would otherwise read the keys of all users in order of id.
	listKeysOfUserSQL = `
WITH mine AS MATERIALIZED (SELECT ` + columns.Key + ` FROM api_keys WHERE owner = $5)
SELECT * FROM mine WHERE id > $1 AND id >= $2 AND id < $3 ORDER BY id LIMIT $4`

	revokeKeySQL = `
UPDATE api_keys SET revoked_at = CASE WHEN revoked_at = 0 THEN $2 ELSE revoked_at END WHERE id = $1
RETURNING ` + columns.Key

	expireKeySQL = `
UPDATE api_keys SET expires_at = $2 WHERE id = $1
RETURNING ` + columns.Key

	ended = `(revoked_at > 0 AND revoked_at < $1 OR expires_at > 0 AND expires_at < $1)`

	// The condition is there twice because the expiry may be moved between the look and the removal.
	pruneKeysSQL = `
DELETE FROM api_keys WHERE id = ANY (ARRAY(SELECT id FROM api_keys WHERE ` + ended + ` LIMIT $2)) AND ` + ended
)

// CreateKey implements [keys.Store].
func (s *Store) CreateKey(ctx context.Context, k keys.Key) error {
	attributes, err := json.Marshal(k.Attributes)
	if err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	added, err := s.exec(ctx, "write key", insertKeySQL, k.ID, k.Hash[:], k.Name, k.User, k.Tier, string(attributes),
		k.CreatedAt, k.ExpiresAt, k.RevokedAt)
	if err == nil && added == 0 {
		return keys.ErrExists
	}
	return err
}

// maxKeyReads bounds the keys of one query.
const maxKeyReads = 512

// Key implements [keys.Store]. Calls at the same time share a query: keys that are made up, which anybody may send, would keep
// others waiting for a query of each.
func (s *Store) Key(ctx context.Context, id string) (keys.Stored, bool, error) {
	k, err := s.keyReads.read(ctx, id, s.serveKeyReads)
	if err != nil {
		return keys.Stored{}, false, fmt.Errorf("read keys: %w", err)
	}
	if k == nil {
		return keys.Stored{}, false, nil
	}
	return *k, true, nil
}

// serveKeyReads uses a connection for decisions, because requests wait for it.
func (s *Store) serveKeyReads(ctx context.Context) error {
	release, err := acquire(ctx, s.readSlots)
	if err != nil {
		return fmt.Errorf("wait for earlier reads: %w", err)
	}
	defer release()
	reads := s.keyReads.take(maxKeyReads)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), decisionTimeout)
	defer cancel()
	ids := make([]string, len(reads))
	for i, one := range reads {
		ids[i] = one.question
	}
	var all []keys.Stored
	err = s.onConn(ctx, func(c conn) error {
		rows, err := c.Query(ctx, readKeysSQL, ids)
		all, err = collect(rows, err, columns.OfStoredKey)
		return err
	})
	found := make(map[string]*keys.Stored, len(all))
	for i := range all {
		found[all[i].ID] = &all[i]
	}
	for _, one := range reads {
		one.end(found[one.question], err)
	}
	return nil
}

// ListKeys implements [keys.Store].
func (s *Store) ListKeys(ctx context.Context, f keys.Filter) ([]keys.Key, error) {
	query, args := listKeysSQL, []any{f.After, f.Prefix, prefixEnd(f.Prefix), f.Max}
	if f.User != "" {
		query, args = listKeysOfUserSQL, append(args, f.User)
	}
	return read(ctx, s, "read keys", columns.OfKey, query, args...)
}

// RevokeKey implements [keys.Store].
func (s *Store) RevokeKey(ctx context.Context, id string, at int64) (keys.Key, bool, error) {
	return first(read(ctx, s, "revoke key", columns.OfKey, revokeKeySQL, id, at))
}

// ExpireKey implements [keys.Store].
func (s *Store) ExpireKey(ctx context.Context, id string, at int64) (keys.Key, bool, error) {
	return first(read(ctx, s, "write key", columns.OfKey, expireKeySQL, id, at))
}

// PruneKeys removes up to max keys that were revoked or expired before the given time, and returns how many.
func (s *Store) PruneKeys(ctx context.Context, before time.Time, max int) (int, error) {
	return s.exec(ctx, "remove ended keys", pruneKeysSQL, before.UnixMilli(), max)
}
