// Package eachstore gives tests of what uses a store one of either kind, or runs them on every store that there is. The suite that
// the stores themselves must pass is in storetest.
package eachstore

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/postgres"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/testenv"
)

// Run runs a test on each store, at the same time, each empty and with its own clock. S is what the test needs of it.
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

// SQLite opens a store in a new file until the test ends. now is its clock, the machine's if nil.
func SQLite(tb testing.TB, now func() time.Time) *sqlite.Store {
	tb.Helper()
	s, err := sqlite.Open(tb.Context(), sqlite.Config{Path: filepath.Join(tb.TempDir(), "limits.db"), Now: now})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// Postgres opens a store on a database until the test ends.
func Postgres(tb testing.TB, url string) *postgres.Store {
	tb.Helper()
	s, err := postgres.Open(tb.Context(), postgres.Config{URL: url})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}
