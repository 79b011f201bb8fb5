package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/seed503877ad/limits/internal/keys"
)

const (
	keyColumns = `id, hash, name, owner, tier, attributes, created_at, expires_at, revoked_at`

	insertKeySQL = `
INSERT INTO api_keys (` + keyColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`

	readKeySQL = `SELECT ` + keyColumns + ` FROM api_keys WHERE id = ?`

	listKeysSQL = `
SELECT ` + keyColumns + ` FROM api_keys WHERE id > ?1 AND id >= ?2 AND id < ?3 ORDER BY id LIMIT ?4`

	listKeysOfUserSQL = `
SELECT ` + keyColumns + ` FROM api_keys WHERE owner = ?5 AND id > ?1 AND id >= ?2 AND id < ?3 ORDER BY id LIMIT ?4`

	revokeKeySQL = `UPDATE api_keys SET revoked_at = ?2 WHERE id = ?1 AND revoked_at = 0`

	expireKeySQL = `UPDATE api_keys SET expires_at = ?2 WHERE id = ?1`
)

// CreateKey implements [keys.Store].
func (s *Store) CreateKey(ctx context.Context, k keys.Key) error {
	attributes, err := json.Marshal(k.Attributes)
	if err != nil {
		return err
	}
	added, err := s.change(ctx, insertKeySQL, k.ID, k.Hash[:], k.Name, k.User, k.Tier, string(attributes),
		k.CreatedAt, k.ExpiresAt, k.RevokedAt)
	if err == nil && added == 0 {
		return keys.ErrExists
	}
	return err
}

// Key implements [keys.Store].
func (s *Store) Key(ctx context.Context, id string) (keys.Key, bool, error) {
	k, err := scanKey(s.reader.QueryRowContext(ctx, readKeySQL, id))
	if errors.Is(err, sql.ErrNoRows) {
		return keys.Key{}, false, nil
	}
	return k, err == nil, err
}

// ListKeys implements [keys.Store].
func (s *Store) ListKeys(ctx context.Context, f keys.Filter) ([]keys.Key, error) {
	query, args := listKeysSQL, []any{f.After, f.Prefix, f.Prefix + endOfIDs, f.Max}
	if f.User != "" {
		query, args = listKeysOfUserSQL, append(args, f.User)
	}
	found, err := s.reader.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var all []keys.Key
	for found.Next() {
		k, err := scanKey(found)
		if err != nil {
			return nil, err
		}
		all = append(all, k)
	}
	return all, found.Err()
}

// endOfIDs sorts behind every character of an id.
const endOfIDs = "\U0010FFFF"

// RevokeKey implements [keys.Store].
func (s *Store) RevokeKey(ctx context.Context, id string, at int64) (keys.Key, bool, error) {
	if _, err := s.change(ctx, revokeKeySQL, id, at); err != nil {
		return keys.Key{}, false, err
	}
	return s.Key(ctx, id)
}

// ExpireKey implements [keys.Store].
func (s *Store) ExpireKey(ctx context.Context, id string, at int64) (keys.Key, bool, error) {
	if _, err := s.change(ctx, expireKeySQL, id, at); err != nil {
		return keys.Key{}, false, err
	}
	return s.Key(ctx, id)
}

// change runs a statement in a transaction of its own and gives how many rows it changed.
func (s *Store) change(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = s.transact(ctx, func() (func(), error) {
		if n, err = s.exec(query, args...); err != nil {
			return nil, err
		}
		return func() {}, nil
	})
	return n, err
}

// exec runs a statement inside of a transaction.
func (s *Store) exec(query string, args ...any) (int64, error) {
	prepared, err := s.st.kept(s.conn, query)
	if err != nil {
		return 0, err
	}
	return affected(prepared.Exec(args...))
}

func scanKey(row interface{ Scan(to ...any) error }) (k keys.Key, err error) {
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
