package app

import (
	"database/sql"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
	"github.com/seed503877ad/limits/internal/testenv"
	"github.com/seed503877ad/limits/internal/usage"
)

// forgetting returns the statements of docs/operations.md that forget a user: first those for PostgreSQL, then those for SQLite.
func forgetting(t *testing.T) (postgres, sqlite []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Forgetting a user\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, s := range regexp.MustCompile(`(?m)^    DELETE [^;]*;`).FindAllString(section, -1) {
		if strings.Contains(s, ":'user'") {
			postgres = append(postgres, s)
		} else {
			sqlite = append(sqlite, s)
		}
	}
	if len(postgres) != 7 || len(sqlite) != 7 {
		t.Fatalf("%d and %d statements, want 7 each", len(postgres), len(sqlite))
	}
	return postgres, sqlite
}

// fillForForgetting writes something of the users 7 and 8, where exec runs SQL.
func fillForForgetting(t *testing.T, s interface {
	keys.Store
	usage.Store
}, exec func(sql string) error) {
	t.Helper()
	for _, user := range []string{"7", "8"} {
		err := s.CreateKey(t.Context(), keys.Key{ID: "AAAAAAA" + user, User: user})
		if err == nil {
			err = s.AddRequests(t.Context(), []usage.Request{{At: 1, Key: "user:" + user, Endpoint: "/", Method: "GET", Status: 200}})
		}
		if err == nil {
			err = s.AddUsage(t.Context(), []usage.Count{{ID: usage.ID{Key: "user:" + user, Policy: "p", User: user}, At: 60_000, Allowed: 1}})
		}
		if err == nil {
			err = exec(`INSERT INTO alert_groups (rule, grp, state, changed_at) VALUES ('r', 'p
` + user + `', '{}', 1)`)
		}
		if err == nil {
			err = exec(`INSERT INTO alert_silences (id, created_at, expires_at, body) VALUES ('` + user + `', 1, 1, '{"user":"` + user + `"}')`)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// removedOfSeven are the rows that each statement then removes of user 7.
var removedOfSeven = [7]int64{0: 1, 1: 1, 2: 1, 5: 1, 6: 1}

// TestDocumentedStatementsForgetAUser: every statement of docs/operations.md runs, and removes rows of the user alone.
func TestDocumentedStatementsForgetAUser(t *testing.T) {
	t.Parallel()
	onPostgres, onSQLite := forgetting(t)
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		url := testenv.Postgres(t)
		conn := database(t, url)
		fillForForgetting(t, eachstore.Postgres(t, url), func(sql string) error {
			_, err := conn.Exec(t.Context(), sql)
			return err
		})
		for i, s := range onPostgres {
			s = strings.NewReplacer(":'user'", "'7'", ":'key'", "'user:7'").Replace(s)
			tag, err := conn.Exec(t.Context(), s, pgx.QueryExecModeSimpleProtocol)
			if err != nil || tag.RowsAffected() != removedOfSeven[i] {
				t.Errorf("%s: %d rows, %v; want %d", s, tag.RowsAffected(), err, removedOfSeven[i])
			}
		}
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "limits.db")
		store, err := sqlite.Open(t.Context(), sqlite.Config{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		fillForForgetting(t, store, func(sql string) error {
			_, err := db.ExecContext(t.Context(), sql)
			return err
		})
		for i, s := range onSQLite {
			result, err := db.ExecContext(t.Context(), s, sql.Named("user", "7"), sql.Named("key", "user:7"))
			if err != nil {
				t.Errorf("%s: %v", s, err)
				continue
			}
			if n, _ := result.RowsAffected(); n != removedOfSeven[i] {
				t.Errorf("%s: %d rows, want %d", s, n, removedOfSeven[i])
			}
		}
	})
}
