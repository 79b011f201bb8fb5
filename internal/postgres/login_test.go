package postgres

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/seed503877ad/limits/internal/testenv"
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
