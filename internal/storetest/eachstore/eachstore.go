// Package eachstore gives tests a store of either kind, or runs them on every store. The
// conformance suite of the stores is in package storetest.
package eachstore

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/postgres"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/testenv"
)

// Run runs a test on each store concurrently. Each store is empty and has its own clock. S is the
// interface that the test needs.
func Run[S any](t *testing.T, test func(t *testing.T, s S)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, any(SQLite(t, nil)).(S))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, any(Postgres(t, testenv.Postgres(t))).(S))
	})
}

// SQLite opens a store in a new file, and closes it when the test ends. now is its clock; nil for
// the machine's.
func SQLite(tb testing.TB, now func() time.Time) *sqlite.Store {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "limits.db")
	file, err := migrated()
	if err == nil {
		err = os.WriteFile(path, file, 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
	s, err := sqlite.Open(tb.Context(), sqlite.Config{Path: path, Now: now})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// migrated is an empty file with the schema. To make one takes 25 ms of a processor under the race detector, so the tests of a
// process have copies.
var migrated = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "limits-sqlite-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "limits.db")
	s, err := sqlite.Open(context.Background(), sqlite.Config{Path: path})
	if err != nil {
		return nil, err
	}
	s.Close()
	return os.ReadFile(path)
})

// Postgres opens a store on a database, and closes it when the test ends.
func Postgres(tb testing.TB, url string) *postgres.Store {
	tb.Helper()
	s, err := postgres.Open(tb.Context(), postgres.Config{URL: url})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}
