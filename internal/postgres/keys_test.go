package postgres

import (
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/storetest"
)

// TestKeyWhoseExpiryIsMovedIsNotRemoved, also if that is committed while its removal waits.
func TestKeyWhoseExpiryIsMovedIsNotRemoved(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	if err := s.CreateKey(t.Context(), keys.Key{ID: "AAAAAAAA", User: "u", ExpiresAt: 10}); err != nil {
		t.Fatal(err)
	}
	tx := begin(t, s, `UPDATE api_keys SET expires_at = 30`)
	var removed int
	done := make(chan error, 1)
	go func() {
		var err error
		removed, err = s.PruneKeys(t.Context(), time.UnixMilli(20), 9)
		done <- err
	}()
	waitForLock(t, s)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || removed != 0 {
		t.Errorf("removed %d, %v", removed, err)
	}
	if k, found, err := s.Key(t.Context(), "AAAAAAAA"); !found || k.ExpiresAt != 30 || err != nil {
		t.Errorf("%+v, %t, %v", k, found, err)
	}
}

// TestKeysThatAreChangedByHandHaveAnotherRevision, in whatever way, and when nothing tells the revision each read has its own.
func TestKeysThatAreChangedByHandHaveAnotherRevision(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	storetest.KeysChangedByHand(t, s, func(sql string) { exec(t, s.relay, sql) },
		`SELECT 1`, `UPDATE api_keys SET revoked_at = 1 WHERE id = 'BBBBBBBB'`, `DELETE FROM api_keys WHERE id = 'BBBBBBBB'`,
		`INSERT INTO api_keys SELECT * FROM api_keys ON CONFLICT (id) DO UPDATE SET tier = 'pro'`,
		`BEGIN; SET LOCAL search_path = pg_catalog; UPDATE public.api_keys SET name = 'n'; COMMIT`,
		`TRUNCATE api_keys`, `DELETE FROM key_revision`, `SELECT 2`)
}
