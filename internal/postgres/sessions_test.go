package postgres

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
	"github.com/seed503877ad/limits/internal/usage"
)

// newDatabase returns the URL of a new database with an encoding, and with settings for all who
// connect.
func newDatabase(t *testing.T, encoding string, settings ...string) string {
	t.Helper()
	base := testenv.EmptyPostgres(t)
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(u.Path, "/") + "_" + strings.ToLower(encoding)
	conn, err := pgx.Connect(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer conn.Close(context.Background())
		if _, err := conn.Exec(context.Background(), `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	all := []string{`CREATE DATABASE ` + name + ` ENCODING '` + encoding + `' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`}
	for _, s := range settings {
		all = append(all, `ALTER DATABASE `+name+` SET `+s)
	}
	for _, sql := range all {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	u.Path = "/" + name
	return u.String()
}

// TestEncodings has keys with characters that the database, or its default client encoding, does
// not have.
func TestEncodings(t *testing.T) {
	t.Parallel()
	keys := []string{"plain", "ä", "ā", "Ýܝ", "鍵", "🔑", "\u009d"}
	for encoding, clients := range map[string][]string{
		"UTF8": {"UTF8", "WIN1252"}, "LATIN1": {"LATIN1", "UTF8"}, "WIN1252": {"WIN1252", "UTF8"}, "SQL_ASCII": {"SQL_ASCII", "LATIN1"},
	} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			for _, client := range clients {
				at := newDatabase(t, encoding, "client_encoding = "+client)
				if _, err := MigrateUp(t.Context(), at); err != nil {
					t.Fatal(err)
				}
				s := open(t, Config{URL: at})
				if err := s.CheckSchema(t.Context()); err != nil {
					t.Error(err)
				}
				for _, key := range keys {
					if err := s.Update(t.Context(), batch(key), setForever(key)); err != nil {
						t.Errorf("clients in %s: %q: %v", client, key, err)
					}
					if err := s.AddUsage(t.Context(), []usage.Count{{ID: usage.ID{Key: key, User: key}, At: 60000, Allowed: 1}}); err != nil {
						t.Errorf("clients in %s: usage of %q: %v", client, key, err)
					}
				}
				s.foldAll()
				want := make(map[string]string)
				for _, key := range keys {
					want[key] = key
				}
				found, _, err := open(t, Config{URL: at}).List(t.Context(), "", engine.CounterID{}, 100)
				got := make(map[string]string)
				for _, c := range found {
					got[c.Key] = string(c.State)
				}
				if diff := cmp.Diff(want, got); diff != "" || err != nil {
					t.Errorf("clients in %s: %v (-want +got):\n%s", client, err, diff)
				}
				top, err := s.TopUsage(t.Context(), usage.TopQuery{By: usage.ByAllowed, Until: 1 << 45, User: "鍵", Max: 5})
				if err != nil || len(top) != 1 || top[0].Key != "鍵" {
					t.Errorf("clients in %s: usage is %+v, %v", client, top, err)
				}
			}
		})
	}
}

// TestEncodingWithoutUTF8IsRejected: a single request with such a character would open the
// circuit for all.
func TestEncodingWithoutUTF8IsRejected(t *testing.T) {
	t.Parallel()
	at := newDatabase(t, "EUC_JP")
	want := func(act string, err error) {
		if err == nil || !strings.Contains(err.Error(), "EUC_JP") || !strings.Contains(err.Error(), "ENCODING 'UTF8'") {
			t.Errorf("%s: %v", act, err)
		}
	}
	_, err := MigrateUp(t.Context(), at)
	want("migrate up", err)
	want("check schema", open(t, Config{URL: at}).CheckSchema(t.Context()))
}

// TestAnsweredDecisionsAreDurable, whatever the default of a role or database. Whether commits wait
// for standbys is the operator's choice.
func TestAnsweredDecisionsAreDurable(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]string{"off": "on", "on": "on", "local": "local", "remote_apply": "remote_apply"} {
		s := open(t, Config{URL: newDatabase(t, "UTF8", "synchronous_commit = "+set)})
		for name, pool := range map[string]*pgxpool.Pool{"relay": s.relay.Pool, "decisions": poolOf(t, s)} {
			var got string
			if err := pool.QueryRow(t.Context(), `SHOW synchronous_commit`).Scan(&got); err != nil || got != want {
				t.Errorf("%s with %s: %s, %v", name, set, got, err)
			}
		}
	}
}

// poolOf returns the pool of decisions, with the schema that it needs.
func poolOf(t *testing.T, s *Store) *pgxpool.Pool {
	t.Helper()
	if _, err := MigrateUp(t.Context(), s.pool.Config().ConnString()); err != nil {
		t.Fatal(err)
	}
	return s.pool
}

// slowTablesSQL makes each new table take longer than statement_timeout.
const slowTablesSQL = `
SET transaction_read_only = off;
CREATE FUNCTION slow() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.25); END';
CREATE EVENT TRIGGER slow ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION slow()`

// TestMigrationsOverrideDatabaseDefaults has a database whose defaults would break migrations.
func TestMigrationsOverrideDatabaseDefaults(t *testing.T) {
	t.Parallel()
	at := newDatabase(t, "UTF8", "default_transaction_read_only = on", "default_transaction_isolation = serializable", "statement_timeout = 200",
		"idle_in_transaction_session_timeout = 1", "TimeZone = 'Pacific/Kiritimati'", "client_encoding = WIN1252")
	conn, err := pgx.Connect(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	exec(t, conn, slowTablesSQL)
	if _, err := MigrateUp(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	steps, err := MigrationStatus(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if time.Since(s.AppliedAt).Abs() > time.Hour {
			t.Errorf("step %d was applied at %s", s.Version, s.AppliedAt)
		}
	}
	if _, err := MigrateDown(t.Context(), at); err != nil {
		t.Error(err)
	}
}
