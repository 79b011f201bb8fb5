package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/seed503877ad/limits/internal/columns"
	"github.com/seed503877ad/limits/internal/keys"
)

const (
	insertKeySQL = `
INSERT INTO api_keys (` + columns.Key + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`

	// Without its row nothing would say that keys have changed, so each read has another revision then.
	readKeySQL = `
SELECT coalesce((SELECT revision FROM key_revision), random()), ` + columns.Key + ` FROM api_keys WHERE id = ?`

	listKeysSQL = `
SELECT ` + columns.Key + ` FROM api_keys WHERE id > ?1 AND id >= ?2 AND id < ?3 ORDER BY id LIMIT ?4`

	listKeysOfUserSQL = `
SELECT ` + columns.Key + ` FROM api_keys WHERE owner = ?5 AND id > ?1 AND id >= ?2 AND id < ?3 ORDER BY id LIMIT ?4`

	revokeKeySQL = `UPDATE api_keys SET revoked_at = ?2 WHERE id = ?1 AND revoked_at = 0`

	expireKeySQL = `UPDATE api_keys SET expires_at = ?2 WHERE id = ?1`

	pruneKeysSQL = `
DELETE FROM api_keys WHERE id IN (
	SELECT id FROM api_keys WHERE revoked_at > 0 AND revoked_at < ?1 OR expires_at > 0 AND expires_at < ?1 LIMIT ?2)`
)

// CreateKey implements [keys.Store].
func (s *Store) CreateKey(ctx context.Context, k keys.Key) error {
	attributes, err := encode(k.Attributes)
	if err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	added, err := s.change(ctx, "write key", insertKeySQL, k.ID, k.Hash[:], k.Name, k.User, k.Tier, attributes,
		k.CreatedAt, k.ExpiresAt, k.RevokedAt)
	if err == nil && added == 0 {
		return keys.ErrExists
	}
	return err
}

// Key implements [keys.Store].
func (s *Store) Key(ctx context.Context, id string) (keys.Stored, bool, error) {
	return first(read(ctx, s, "read keys", columns.OfStoredKey, readKeySQL, id))
}

// ListKeys implements [keys.Store].
func (s *Store) ListKeys(ctx context.Context, f keys.Filter) ([]keys.Key, error) {
	query, args := listKeysSQL, []any{f.After, f.Prefix, f.Prefix + endOfIDs, f.Max}
	if f.User != "" {
		query, args = listKeysOfUserSQL, append(args, f.User)
	}
	return read(ctx, s, "read keys", columns.OfKey, query, args...)
}

// endOfIDs sorts after every character of an id.
const endOfIDs = "\U0010FFFF"

// RevokeKey implements [keys.Store].
func (s *Store) RevokeKey(ctx context.Context, id string, at int64) (keys.Key, bool, error) {
	if _, err := s.change(ctx, "revoke key", revokeKeySQL, id, at); err != nil {
		return keys.Key{}, false, err
	}
	k, found, err := s.Key(ctx, id)
	return k.Key, found, err
}

// ExpireKey implements [keys.Store].
func (s *Store) ExpireKey(ctx context.Context, id string, at int64) (keys.Key, bool, error) {
	if _, err := s.change(ctx, "write key", expireKeySQL, id, at); err != nil {
		return keys.Key{}, false, err
	}
	k, found, err := s.Key(ctx, id)
	return k.Key, found, err
}

// PruneKeys removes up to max keys that were revoked or expired before the given time, and returns how many.
func (s *Store) PruneKeys(ctx context.Context, before time.Time, max int) (int, error) {
	return s.change(ctx, "remove ended keys", pruneKeysSQL, before.UnixMilli(), max)
}
