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

// store is what all parts together need of a database.
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
	OwnFault(err error) bool
	Locked(err error) bool
	Ping(ctx context.Context) error
	Close()
}

// databaseName is the SQLite file in the data folder.
const databaseName = "limits.db"

func (l *limiter) databasePath() string { return filepath.Join(l.DataDir, databaseName) }

func (l *limiter) startStore(ctx context.Context) (err error) {
	if l.DatabaseURL == "" {
		l.store, err = sqlite.Open(ctx, sqlite.Config{Path: l.databasePath(), Logger: l.log})
	} else {
		l.store, err = l.openPostgres(ctx)
	}
	if err != nil {
		return err
	}
	l.onStop("store", l.closeStore)
	l.startingPart.Store("nats")
	return nil
}

// closeStore waits for SQLite as long as it takes, because the data folder is unlocked after it. It waits for
// PostgreSQL until ctx is done; nothing is lost then, because other workers fold what is in the journal.
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
		l.log.Warn("the store was not closed: PostgreSQL did not answer in time")
	}
	return nil
}

// openPostgres waits for the server, and checks that its schema is the one this program knows and that the role has
// the rights this program needs.
func (l *limiter) openPostgres(ctx context.Context) (store, error) {
	s, err := postgres.Open(ctx, postgres.Config{URL: l.DatabaseURL, Name: l.name, Logger: l.log})
	if err != nil {
		return nil, err
	}
	if err = l.waitForPostgres(ctx, s.CheckSessions); err == nil {
		err = s.CheckSchema(ctx)
	}
	if err == nil {
		err = s.CheckRights(ctx, l.rights...)
	}
	if err == nil {
		err = l.waitForPostgres(ctx, s.PingDecisions)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// waitForPostgres retries a probe of the server until it succeeds, until ctx is done, or until it fails with an error
// that waiting cannot cure.
func (l *limiter) waitForPostgres(ctx context.Context, probe func(context.Context) error) error {
	const act = "connect to PostgreSQL at --database-url (DATABASE_URL)"
	var cause error
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := probe(ctx)
		if err == nil || errors.Is(err, postgres.ErrPooled) {
			return err
		}
		// An earlier error says more than the one of a probe that ran into the end of ctx.
		if cause == nil || ctx.Err() == nil {
			cause = err
		}
		if postgres.LoginRefused(err) { // the role or the database may be about to be created
			l.log.Warn("PostgreSQL refused the login; will retry", "error", err)
		} else {
			l.log.Warn("waiting for PostgreSQL", "error", err)
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return fmt.Errorf("%s: %w", act, cause)
			}
			if postgres.LoginRefused(cause) {
				return fmt.Errorf("%s: login refused: gave up after %s: %w", act, startTimeout, cause)
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
