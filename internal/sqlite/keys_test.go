package sqlite

import (
	"errors"
	"testing"

	"github.com/seed503877ad/limits/internal/keys"
)

// TestKeysThatAreChangedByHandHaveAnotherRevision, in whatever way, and when nothing tells the revision each read has its own.
func TestKeysThatAreChangedByHandHaveAnotherRevision(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	seen := map[int64]string{}
	for _, sql := range []string{
		`SELECT 1`, `UPDATE api_keys SET revoked_at = 1 WHERE id = 'BBBBBBBB'`, `DELETE FROM api_keys WHERE id = 'BBBBBBBB'`,
		`REPLACE INTO api_keys SELECT id, hash, name, owner, tier, attributes, created_at, expires_at, 1 FROM api_keys`,
		`INSERT INTO api_keys SELECT * FROM api_keys WHERE true ON CONFLICT DO UPDATE SET tier = 'pro'`,
		`DELETE FROM api_keys`, `DELETE FROM key_revision`, `SELECT 2`,
	} {
		if _, err := s.conn.ExecContext(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		for _, id := range []string{"AAAAAAAA", "BBBBBBBB"} {
			if err := s.CreateKey(t.Context(), keys.Key{ID: id, User: "u"}); err != nil && !errors.Is(err, keys.ErrExists) {
				t.Fatal(err)
			}
		}
		k, found, err := s.Key(t.Context(), "AAAAAAAA")
		if !found || err != nil {
			t.Fatal(found, err)
		}
		if before := seen[k.Revision]; before != "" {
			t.Errorf("after %s the revision is that after %s", sql, before)
		}
		seen[k.Revision] = sql
	}
}
