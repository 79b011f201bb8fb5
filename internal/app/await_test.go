package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/seed503877ad/limits/internal/postgres"
)

// TestWaitingForPostgres holds what ends a wait, and that a wait in vain names what was wrong before its time was over.
func TestWaitingForPostgres(t *testing.T) {
	t.Parallel()
	full, pooled := errors.New("no session left"), fmt.Errorf("check sessions: %w", postgres.ErrPooled)
	for name, c := range map[string]struct {
		answers []error // what follows is silence
		want    error
		says    string
	}{
		"an answer":                {[]error{full, full, nil}, nil, ""},
		"a pooler of transactions": {[]error{full, pooled}, pooled, pooled.Error()},
		"in vain":                  {[]error{full}, full, "connect to PostgreSQL as --database-url (DATABASE_URL) says: gave up after 30s: no session left"},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
			defer cancel()
			l, asked := &limiter{log: slog.New(slog.DiscardHandler)}, 0
			err := l.awaitPostgres(ctx, func(ctx context.Context) error {
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
		})
	}
}
