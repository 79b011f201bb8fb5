package app

import (
	"context"

	"github.com/seed503877ad/limits/internal/postgres"
)

// Migration is one step of the PostgreSQL schema; its AppliedAt is zero while it is pending.
type Migration = postgres.Migration

// Migrate brings a PostgreSQL schema to the version that this program knows.
func Migrate(ctx context.Context, databaseURL string) error {
	return postgres.Migrate(ctx, databaseURL)
}

// MigrateDown takes the last step of a PostgreSQL schema back, with the data in it.
func MigrateDown(ctx context.Context, databaseURL string) error {
	return postgres.MigrateDown(ctx, databaseURL)
}

// MigrationStatus lists the steps of a PostgreSQL schema, in order.
func MigrationStatus(ctx context.Context, databaseURL string) ([]Migration, error) {
	return postgres.MigrationStatus(ctx, databaseURL)
}
