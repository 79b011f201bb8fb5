package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/postgres"
)

// TestWaitingForPostgres checks what ends a wait, and that the error of a timeout names the last failure before it.
func TestWaitingForPostgres(t *testing.T) {
	t.Parallel()
	full, pooled := errors.New("no session left"), fmt.Errorf("check sessions: %w", postgres.ErrPooled)
	refused := fmt.Errorf("connect: %w", &pgconn.PgError{Severity: "FATAL", Code: "28P01", Message: "password authentication failed"})
	const act = "connect to PostgreSQL at --database-url (DATABASE_URL): "
	for name, c := range map[string]struct {
		answers []error // what follows is silence
		want    error
		says    string
		logs    string
	}{
		"an answer":                {[]error{full, full, nil}, nil, "", `"waiting for PostgreSQL" error="no session left"`},
		"a pooler of transactions": {[]error{full, pooled}, pooled, pooled.Error(), ""},
		"timed out":                {[]error{full}, full, act + "gave up after 30s: no session left", ""},
		"a wrong password": {[]error{refused}, refused, act + "login refused: gave up after 30s: connect: FATAL: password",
			`"PostgreSQL refused the login; will retry" error="connect: FATAL: password`},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
			defer cancel()
			var lines strings.Builder
			l, asked := &limiter{log: slog.New(slog.NewTextHandler(&lines, nil))}, 0
			err := l.waitForPostgres(ctx, func(ctx context.Context) error {
				asked++
				if asked <= len(c.answers) {
					return c.answers[asked-1]
				}
				<-ctx.Done()
				return ctx.Err()
			})
			if !errors.Is(err, c.want) || err != nil && !strings.HasPrefix(err.Error(), c.says) || asked < len(c.answers) {
				t.Errorf("%s: %v after %d questions", name, err, asked)
			}
			if !strings.Contains(lines.String(), c.logs) {
				t.Errorf("%s: want %s in the log:\n%s", name, c.logs, lines.String())
			}
		})
	}
}
