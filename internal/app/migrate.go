package app

import (
	"context"
	"fmt"

	"github.com/seed503877ad/limits/internal/postgres"
)

// Migration is one step of the PostgreSQL schema; its AppliedAt is zero while it is pending, and its Name empty where only a
// newer program has it.
type Migration = postgres.Migration

// Migrated is what was done to the PostgreSQL schema.
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

// MigrateDown takes the last step of a PostgreSQL schema back, with the data in it. Without one it fails.
func MigrateDown(ctx context.Context, databaseURL string) (Migrated, error) {
	if err := checkURL(databaseURL); err != nil {
		return Migrated{}, err
	}
	return postgres.MigrateDown(ctx, databaseURL)
}

// MigrationStatus lists the steps of a PostgreSQL schema, in order; beside those of a newer program there is an error.
func MigrationStatus(ctx context.Context, databaseURL string) ([]Migration, error) {
	if err := checkURL(databaseURL); err != nil {
		return nil, err
	}
	return postgres.MigrationStatus(ctx, databaseURL)
}
