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

func checkURL(databaseURL string) error {
	if err := postgres.CheckURL(databaseURL); err != nil {
		return fmt.Errorf("%w: --database-url: %w", ErrOptions, err)
	}
	return nil
}

// MigrateUp brings a PostgreSQL schema to the version that this program knows.
func MigrateUp(ctx context.Context, databaseURL string) (Migrated, error) {
	if err := checkURL(databaseURL); err != nil {
		return Migrated{}, err
	}
	return postgres.MigrateUp(ctx, databaseURL)
}

// MigrateDown takes back the last step of a PostgreSQL schema, with the data in it. It fails if there is no step.
func MigrateDown(ctx context.Context, databaseURL string) (Migrated, error) {
	if err := checkURL(databaseURL); err != nil {
		return Migrated{}, err
	}
	return postgres.MigrateDown(ctx, databaseURL)
}

// MigrationStatus lists the steps of a PostgreSQL schema, in order. If some are of a newer program, it returns an error
// as well as the list.
func MigrationStatus(ctx context.Context, databaseURL string) ([]Migration, error) {
	if err := checkURL(databaseURL); err != nil {
		return nil, err
	}
	return postgres.MigrationStatus(ctx, databaseURL)
}
