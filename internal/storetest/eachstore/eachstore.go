// Package eachstore runs tests of what uses a store on every store that there is. The suite that the stores themselves must
// pass is in storetest.
package eachstore

import (
	"path/filepath"
	"testing"

	"github.com/seed503877ad/limits/internal/postgres"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/testenv"
)

// Run runs a test on each store, at the same time, each empty and with its own clock. S is what the test needs of it.
func Run[S any](t *testing.T, test func(t *testing.T, s S)) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		s, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "limits.db")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		test(t, any(s).(S))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		s, err := postgres.Open(t.Context(), postgres.Config{URL: testenv.Postgres(t)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		test(t, any(s).(S))
	})
}
