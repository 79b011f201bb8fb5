package app

import (
	"context"
	"fmt"

	"github.com/seed503877ad/limits/internal/postgres"
)

// Migration is one step of the PostgreSQL schema. Its AppliedAt is zero while it is pending; its Name is empty if only a
// newer program has it.
type Migration = postgres.Migration

// Migrated says which steps of the PostgreSQL schema were applied or taken back.
type Migrated = postgres.Migrated

// MigrateUp brings a PostgreSQL schema to the version that this program knows.
func MigrateUp(ctx context.Context, databaseURL string) (Migrated, error) {
	return onSchema(ctx, databaseURL, postgres.MigrateUp)
}

// MigrateDown takes back the last step of a PostgreSQL schema, with the data in it. It fails if there is no step.
func MigrateDown(ctx context.Context, databaseURL string) (Migrated, error) {
	return onSchema(ctx, databaseURL, postgres.MigrateDown)
}

// MigrationStatus lists the steps of a PostgreSQL schema, in order. If some are of a newer program, it returns an error
// as well as the list.
func MigrationStatus(ctx context.Context, databaseURL string) ([]Migration, error) {
	return onSchema(ctx, databaseURL, postgres.MigrationStatus)
}

// onSchema runs one of the above. A URL that is none is [ErrOptions].
func onSchema[R any](ctx context.Context, databaseURL string, run func(context.Context, string) (R, error)) (result R, err error) {
	if err := postgres.CheckURL(databaseURL); err != nil {
		return result, fmt.Errorf("%w: --database-url: %w", ErrOptions, err)
	}
	return run(ctx, databaseURL)
}
