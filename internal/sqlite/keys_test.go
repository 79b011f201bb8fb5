package sqlite

import (
	"testing"

	"github.com/seed503877ad/limits/internal/storetest"
)

// TestKeysThatAreChangedByHandHaveAnotherRevision, in whatever way, and when nothing tells the revision each read has its own.
func TestKeysThatAreChangedByHandHaveAnotherRevision(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	storetest.KeysChangedByHand(t, s, func(sql string) {
		if _, err := s.conn.ExecContext(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	},
		`SELECT 1`, `UPDATE api_keys SET revoked_at = 1 WHERE id = 'BBBBBBBB'`, `DELETE FROM api_keys WHERE id = 'BBBBBBBB'`,
		`REPLACE INTO api_keys SELECT id, hash, name, owner, tier, attributes, created_at, expires_at, 1 FROM api_keys`,
		`INSERT INTO api_keys SELECT * FROM api_keys WHERE true ON CONFLICT DO UPDATE SET tier = 'pro'`,
		`DELETE FROM api_keys`, `DELETE FROM key_revision`, `SELECT 2`)
}
