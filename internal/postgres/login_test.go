package postgres

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/testenv"
	"github.com/seed503877ad/limits/internal/usage"
)

// TestConnectErrorIsOneLine: if the server has no TLS, the attempts with TLS fail first,
// which is not the reason.
func TestConnectErrorIsOneLine(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("sslmode", "prefer")
	u.RawQuery, u.Path = query.Encode(), "/no_such_database"
	store := open(t, Config{URL: u.String()})
	for act, question := range map[string]func(context.Context) error{
		"a start":         store.CheckSessions,
		"a decision":      store.PingDecisions,
		"/readyz":         store.Ping,
		"limiter migrate": func(ctx context.Context) error { _, err := MigrationStatus(ctx, u.String()); return errors.Unwrap(err) },
	} {
		if err = question(t.Context()); err == nil {
			t.Fatalf("%s connects to a database that is not there", act)
		}
		if text := err.Error(); strings.ContainsAny(text, "\n\t") || strings.Contains(text, "TLS") ||
			strings.Count(text, "SQLSTATE 3D000") != 1 || !strings.Contains(text, "database: failed to connect to") {
			t.Errorf("%s tells it as %q", act, text)
		}
	}
	if !LoginRefused(err) || LoginRefused(errReadOnly) || inOneLine(errReadOnly) != errReadOnly {
		t.Error("a login that is refused is not known, or another error is taken for one")
	}
}

// TestUnreachableHostsAreOneLine, whatever is asked of the store.
func TestUnreachableHostsAreOneLine(t *testing.T) {
	t.Parallel()
	store := open(t, Config{URL: "postgres://limits@127.0.0.1:1,127.0.0.1:2/limits?sslmode=disable"})
	for act, question := range map[string]func(ctx context.Context) error{
		"ping":     store.Ping,
		"decision": store.PingDecisions,
		"session":  store.CheckSessions,
		"acquire":  func(ctx context.Context) error { return store.AddUsage(ctx, []usage.Count{{}}) },
		"query":    func(ctx context.Context) error { _, err := store.Runs(ctx, jobs.Filter{Max: 1}); return err },
		"row":      func(ctx context.Context) error { _, err := store.Backlog(ctx); return err },
		"exec":     func(ctx context.Context) error { return store.RefuseEvents(ctx, []string{"e"}) },
		"begin":    func(ctx context.Context) error { return store.PutOverride(ctx, overrides.Override{}, 1) },
		"transact": func(ctx context.Context) error { _, err := store.PruneRuns(ctx, time.Now(), 1); return err },
		"report": func(ctx context.Context) error {
			_, err := store.TopUsage(ctx, usage.TopQuery{By: usage.ByUsed, Max: 1})
			return err
		},
	} {
		err := question(t.Context())
		if err == nil || !strings.Contains(err.Error(), "database=limits`: 127.0.0.1:1 ") ||
			!strings.Contains(err.Error(), "; 127.0.0.1:2 ") || strings.ContainsAny(err.Error(), "\n\t") {
			t.Errorf("%s: %v", act, err)
		}
	}
}

// TestUnknownHostsAreOneLine: pgx lists the names that it cannot resolve as the cause of another error.
func TestUnknownHostsAreOneLine(t *testing.T) {
	t.Parallel()
	cfg, err := pgx.ParseConfig("postgres://limits@a.invalid,b.invalid/limits?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	cfg.LookupFunc = func(_ context.Context, host string) ([]string, error) {
		return nil, errors.New(host + ": no such host")
	}
	_, err = pgx.ConnectConfig(t.Context(), cfg)
	const want = "connect to database: failed to connect to `user=limits database=limits`: a.invalid: no such host; b.invalid: no such host"
	if got := connectFailed(err).Error(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
