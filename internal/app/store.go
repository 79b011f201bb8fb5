package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/postgres"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/usage"
)

// store is what the parts need of a database, together.
type store interface {
	engine.Store
	bus.Outbox
	usage.Store
	keys.Store
	overrides.Store
	alerts.Store
	cleaner
	Backlog(ctx context.Context) (int64, error)
	OutboxAge(ctx context.Context) (time.Duration, error)
	Identity(ctx context.Context) (string, error)
	Advice(err error) string
	Ping(ctx context.Context) error
	Close()
}

func (l *limiter) startStore(ctx context.Context) (err error) {
	if l.DatabaseURL == "" {
		l.store, err = sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(l.DataDir, "limits.db"), Logger: l.log})
	} else {
		l.store, err = l.openPostgres(ctx)
	}
	if err != nil {
		return err
	}
	l.onStop("store", l.closeStore)
	l.awaits.Store("nats")
	return nil
}

// closeStore waits for a file as long as it takes, because the data folder is given back behind it. Of PostgreSQL nothing is
// lost that is not closed in time: what is in the journal others fold.
func (l *limiter) closeStore(ctx context.Context) error {
	closed := make(chan struct{})
	go func() { defer close(closed); l.store.Close() }()
	if l.DatabaseURL == "" {
		<-closed
		return nil
	}
	select {
	case <-closed:
	case <-ctx.Done():
		l.log.Warn("the store was left open: PostgreSQL does not answer in time")
	}
	return nil
}

// openPostgres waits for the server, and holds its schema and its grants against what this program knows and needs.
func (l *limiter) openPostgres(ctx context.Context) (store, error) {
	s, err := postgres.Open(ctx, postgres.Config{URL: l.DatabaseURL, Name: l.name, Logger: l.log})
	if err != nil {
		return nil, err
	}
	if err = l.awaitPostgres(ctx, s.CheckSessions); err == nil {
		err = s.CheckSchema(ctx)
	}
	if err == nil {
		err = s.CheckRights(ctx, l.needs...)
	}
	if err == nil {
		err = l.awaitPostgres(ctx, s.PingDecisions)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// awaitPostgres asks until there is an answer, while a start may take, or what is wrong stays wrong.
func (l *limiter) awaitPostgres(ctx context.Context, question func(context.Context) error) error {
	const act = "connect to PostgreSQL as --database-url (DATABASE_URL) says"
	var cause error
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := question(ctx)
		if err == nil || errors.Is(err, postgres.ErrPooled) {
			return err
		}
		// That the time is over says less than what failed before.
		if cause == nil || ctx.Err() == nil {
			cause = err
		}
		if postgres.LoginRefused(err) { // somebody may be making the role or the database
			l.log.Warn("PostgreSQL refuses the login; trying again", "error", err)
		} else {
			l.log.Warn("waiting for PostgreSQL", "error", err)
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return fmt.Errorf("%s: %w", act, cause)
			}
			if postgres.LoginRefused(cause) {
				return fmt.Errorf("%s: it refuses the login: gave up after %s: %w", act, startTimeout, cause)
			}
			return fmt.Errorf("%s: gave up after %s: %w", act, startTimeout, cause)
		case <-time.After(wait):
		}
	}
}

func (l *limiter) storeName() string {
	if l.DatabaseURL == "" {
		return "sqlite"
	}
	return "postgres"
}
