package postgres

import (
	"cmp"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// open opens a store on a database of the test's own, unless cfg names one.
func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = testenv.Postgres(t)
	}
	cfg.decisionIdle = cmp.Or(cfg.decisionIdle, 10*time.Second) // on a busy machine a test may stand still for a second
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// connect opens a connection with the session settings of decisions.
func connect(t *testing.T, s *Store) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), s.pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// update runs a transaction that has to succeed.
func update(t testing.TB, s *Store, b engine.Batch, decide func(engine.Snapshot) engine.Changes) {
	t.Helper()
	if err := s.Update(t.Context(), b, decide); err != nil {
		t.Fatal(err)
	}
}

// exec runs a statement that has to succeed, on a connection, a pool or in a transaction.
func exec(t testing.TB, on interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	t.Helper()
	if _, err := on.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// terminate ends the other sessions of the database for which a condition holds, and waits until they are gone.
func terminate(t *testing.T, conn *pgx.Conn, condition string) {
	t.Helper()
	var ended []int32
	if err := conn.QueryRow(t.Context(), `SELECT coalesce(array_agg(pid), '{}') FROM (SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND `+condition+`) x`).Scan(&ended); err != nil {
		t.Fatal(err)
	}
	until(t, func() (gone bool, err error) {
		err = conn.QueryRow(t.Context(), `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = ANY ($1))`, ended).Scan(&gone)
		return gone, err
	})
}

// scan reads the one row of a statement.
func scan(t testing.TB, on interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, into ...any) {
	t.Helper()
	if err := on.QueryRow(t.Context(), sql).Scan(into...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// begin runs a statement in a transaction that stays open.
func begin(t *testing.T, s *Store, sql string) pgx.Tx {
	t.Helper()
	tx, err := connect(t, s).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exec(t, tx, sql)
	return tx
}

// set is a decision that writes a state for every counter of the batch.
func set(state string) func(engine.Snapshot) engine.Changes {
	return func(snap engine.Snapshot) (c engine.Changes) {
		for i, old := range snap.States {
			change := engine.CounterChange{Slot: i, State: []byte(state)}
			if old == nil {
				change.Spec = []byte(`{}`)
			}
			c.Counters = append(c.Counters, change)
		}
		return c
	}
}

func nothing(engine.Snapshot) engine.Changes { return engine.Changes{} }

func batch(keys ...string) (b engine.Batch) {
	for _, k := range keys {
		b.Counters = append(b.Counters, engine.CounterID{Key: k, Name: "1m"})
	}
	return b
}

// state reads the state of one counter.
func state(t *testing.T, s *Store, key string) string {
	t.Helper()
	found, _, err := s.Counters(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		return ""
	}
	return string(found[0].State)
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store { return open(t, Config{maxConns: 6}) })
	storetest.OtherProcess(t, func(t *testing.T) (here, there storetest.Store) {
		url := testenv.Postgres(t)
		return open(t, Config{URL: url}), open(t, Config{URL: url})
	})
	storetest.MovedClock(t, func(t *testing.T) (storetest.Store, func(time.Duration)) {
		s := open(t, Config{})
		conn := connect(t, s)
		return s, func(d time.Duration) { // moves the stored times instead of the server's clock
			t.Helper()
			for _, sql := range []string{agedRunsSQL, agedDeliveriesSQL, agedGroupsSQL} {
				exec(t, conn, sql, d.Milliseconds())
			}
		}
	})
}

const (
	agedRunsSQL       = `UPDATE job_runs SET started_at = started_at - $1, deadline = deadline - $1`
	agedDeliveriesSQL = `
UPDATE alert_deliveries SET created_at = created_at - $1, due_at = due_at - $1,
	replayed_at = CASE replayed_at WHEN 0 THEN 0 ELSE replayed_at - $1 END`
	agedGroupsSQL = `UPDATE alert_groups SET changed_at = changed_at - $1`
)

// TestSessionSettings: the settings are in effect, and those of the URL take precedence.
func TestSessionSettings(t *testing.T) {
	t.Parallel()
	base := testenv.Postgres(t)
	for _, settings := range []string{
		"application_name=mine&lock_timeout=77&synchronous_commit=off",
		"options=-c%20application_name%3Dmine%20-clock_timeout%3D77%20--synchronous-commit%3Doff",
	} {
		s := open(t, Config{URL: base + "&" + settings, statementTimeout: 1234 * time.Millisecond, decisionIdle: decisionIdle})
		conn := connect(t, s)
		for name, want := range map[string]string{
			"application_name": "mine", "lock_timeout": "77ms", "statement_timeout": "1234ms",
			"idle_in_transaction_session_timeout": "800ms", "plan_cache_mode": "force_generic_plan", "enable_seqscan": "off",
			"jit": "off", "synchronous_commit": "off",
		} {
			var got string
			if err := conn.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&got); err != nil || got != want {
				t.Errorf("%s: %s = %s, %v; want %s", settings, name, got, err, want)
			}
		}
	}
}

// TestClose: nothing of a store outlives it, even if a rollback was left to the background.
func TestClose(t *testing.T) {
	url := testenv.Postgres(t)
	before := goleak.IgnoreCurrent()
	s, err := Open(t.Context(), Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), batch("a"), set("1")); err != nil {
		t.Error(err)
	}
	if err := s.Update(t.Context(), batch("a"), nothing); err != nil {
		t.Error(err)
	}
	if _, err := s.Backlog(t.Context()); err != nil {
		t.Error(err)
	}
	s.Close()
	goleak.VerifyNone(t, before)
}

// TestURL: no error reveals the password, and the helpful ones say what is wrong.
func TestURL(t *testing.T) {
	for url, want := range map[string]string{
		"":                                                      "empty",
		"postgres://u:s3cret%zz@localhost/db":                   "malformed",
		"postgres://u:s3cret@localhost:port/db":                 "malformed",
		"postgres://u:p/s3cret@localhost/db":                    "%2F",
		"postgres://u:12/s3cret@localhost/db":                   "%2F",
		"postgres://u:p@s3cret@localhost/db":                    "%40",
		"postgres://u:s3cret@localhost/db?sslmode=perhaps":      "sslmode",
		"postgres://u:s3cret@localhost/db?connect_timeout=no":   "connect_timeout",
		"host=localhost user=u password=s3cret sslmode=perhaps": "malformed",
		"s3cret":                        "malformed",
		"mysql://u:s3cret@localhost/db": "want postgres://",
	} {
		_, err := Open(t.Context(), Config{URL: url})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", url, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the password is in the error: %v", err)
		}
	}
	s := open(t, Config{URL: "postgres://u:s3cret@127.0.0.1:1/db"})
	_, migrate := MigrateUp(t.Context(), "postgres://u:s3cret@127.0.0.1:1/db")
	for act, err := range map[string]error{
		"ping": s.Ping(t.Context()), "update": s.Update(t.Context(), batch("a"), nothing), "schema": s.CheckSchema(t.Context()),
		"migrate": migrate,
	} {
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", act, err)
		}
	}
}

func TestPrefixEnd(t *testing.T) {
	for prefix, want := range map[string]string{
		"": maxKey, "a": "b", "a%": "a&", "\x7f": "\u0080", "\u07ff": "\u0800", "\ud7ff": "\ue000", "\uffff": "\U00010000",
		"a\U0010ffff": "b", "\U0010ffff": maxKey, "a\ud7ff\U0010ffff\U0010ffff": "a\ue000",
	} {
		if got := prefixEnd(prefix); got != want {
			t.Errorf("prefixEnd(%q) = %q, want %q", prefix, got, want)
		}
	}
}

func TestNotUTF8(t *testing.T) {
	s := open(t, Config{})
	const bad = "a\xff"
	if _, _, err := s.Counters(t.Context(), bad); err == nil {
		t.Error("Counters took it")
	}
	if _, _, err := s.List(t.Context(), bad, engine.CounterID{}, 1); err == nil {
		t.Error("List took it")
	}
	if _, err := s.Reset(t.Context(), engine.Selection{Prefix: bad}, true); err == nil {
		t.Error("Reset took it")
	}
	if err := s.Update(t.Context(), batch(bad), set("1")); err == nil {
		t.Error("Update took it")
	}
	if err := s.Update(t.Context(), batch("a"), set("1")); err != nil {
		t.Errorf("update after it: %v", err)
	}
}
