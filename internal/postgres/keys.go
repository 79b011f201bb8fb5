package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/keys"
)

const (
	keyColumns = `id, hash, name, owner, tier, attributes, created_at, expires_at, revoked_at`

	insertKeySQL = `
INSERT INTO api_keys (` + keyColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (id) DO NOTHING`

	readKeySQL = `
SELECT ` + keyColumns + ` FROM api_keys WHERE id = $1`

	listKeysSQL = `
SELECT ` + keyColumns + ` FROM api_keys WHERE id > $1 AND id >= $2 AND id < $3 ORDER BY id LIMIT $4`

	// Materialized, or the planner reads the keys of all users in the order that is asked for.
	listKeysOfUserSQL = `
WITH mine AS MATERIALIZED (SELECT ` + keyColumns + ` FROM api_keys WHERE owner = $5)
SELECT * FROM mine WHERE id > $1 AND id >= $2 AND id < $3 ORDER BY id LIMIT $4`

	revokeKeySQL = `
UPDATE api_keys SET revoked_at = CASE WHEN revoked_at = 0 THEN $2 ELSE revoked_at END WHERE id = $1
RETURNING ` + keyColumns

	expireKeySQL = `
UPDATE api_keys SET expires_at = $2 WHERE id = $1
RETURNING ` + keyColumns
)

// CreateKey implements [keys.Store].
func (s *Store) CreateKey(ctx context.Context, k keys.Key) error {
	attributes, err := json.Marshal(k.Attributes)
	if err != nil {
		return err
	}
	tag, err := s.relay.Exec(ctx, insertKeySQL, k.ID, k.Hash[:], k.Name, k.User, k.Tier, string(attributes),
		k.CreatedAt, k.ExpiresAt, k.RevokedAt)
	if err == nil && tag.RowsAffected() == 0 {
		return keys.ErrExists
	}
	return err
}

// Key implements [keys.Store]. It runs where decisions do: requests wait for it.
func (s *Store) Key(ctx context.Context, id string) (keys.Key, bool, error) {
	release, err := acquire(ctx, s.reading)
	if err != nil {
		return keys.Key{}, false, fmt.Errorf("wait for the reads before: %w", err)
	}
	defer release()
	rows, err := s.pool.Query(ctx, readKeySQL, id)
	return oneKey(rows, err)
}

// ListKeys implements [keys.Store].
func (s *Store) ListKeys(ctx context.Context, f keys.Filter) ([]keys.Key, error) {
	sql, args := listKeysSQL, []any{f.After, f.Prefix, prefixEnd(f.Prefix), f.Max}
	if f.User != "" {
		sql, args = listKeysOfUserSQL, append(args, f.User)
	}
	rows, err := s.relay.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanKey)
}

// RevokeKey implements [keys.Store].
func (s *Store) RevokeKey(ctx context.Context, id string, at int64) (keys.Key, bool, error) {
	rows, err := s.relay.Query(ctx, revokeKeySQL, id, at)
	return oneKey(rows, err)
}

// ExpireKey implements [keys.Store].
func (s *Store) ExpireKey(ctx context.Context, id string, at int64) (keys.Key, bool, error) {
	rows, err := s.relay.Query(ctx, expireKeySQL, id, at)
	return oneKey(rows, err)
}

func oneKey(rows pgx.Rows, err error) (keys.Key, bool, error) {
	if err != nil {
		return keys.Key{}, false, err
	}
	k, err := pgx.CollectExactlyOneRow(rows, scanKey)
	if errors.Is(err, pgx.ErrNoRows) {
		return keys.Key{}, false, nil
	}
	return k, err == nil, err
}

func scanKey(row pgx.CollectableRow) (k keys.Key, err error) {
	var hash, attributes []byte
	err = row.Scan(&k.ID, &hash, &k.Name, &k.User, &k.Tier, &attributes, &k.CreatedAt, &k.ExpiresAt, &k.RevokedAt)
	if err != nil {
		return k, err
	}
	if copy(k.Hash[:], hash) != len(k.Hash) || len(hash) != len(k.Hash) {
		return k, fmt.Errorf("a hash of %d bytes", len(hash))
	}
	err = json.Unmarshal(attributes, &k.Attributes)
	return k, err
}
