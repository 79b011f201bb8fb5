package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"strings"

	"github.com/pressly/goose/v3"

	"github.com/seed503877ad/limits/migrations"
)

// migrate brings the schema up to date, over connections of its own.
func migrate(ctx context.Context, path string) error {
	files, err := fs.Sub(migrations.FS, "sqlite")
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", dsn(path, "rw"))
	if err != nil {
		return err
	}
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	have, known, err := p.GetVersions(ctx)
	if err != nil && strings.Contains(err.Error(), "table goose_db_version already exists") {
		// goose drops the error of reading the table's first row, or found none, and made the table.
		return fmt.Errorf("read schema version: %w, but its first row cannot be read; %s", err, damagedAdvice)
	}
	if err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	if have > known {
		return fmt.Errorf("its schema is at version %d, but this program only knows versions up to %d; upgrade limiter to a release that "+
			"knows version %d", have, known, have)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}
