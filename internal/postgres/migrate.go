package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/seed503877ad/limits/migrations"
)

// Migration is one schema migration.
type Migration struct {
	Version int64
	// Name is its file name; empty if only a newer program has the file.
	Name string
	// AppliedAt is zero if it was not applied.
	AppliedAt time.Time
}

// Migrated is what a call did to the schema, which is now at version To.
type Migrated struct {
	Steps    int
	From, To int64
}

// MigrateUp brings the schema to the version that this program knows. Any number of processes may
// call it at the same time: one migrates, the others wait for it. It returns an error if the schema
// is newer than the program.
func MigrateUp(ctx context.Context, url string) (m Migrated, err error) {
	err = withProvider(ctx, "migrate up", url, func(db *sql.DB, p *goose.Provider) error {
		if err := checkEncoding(db.QueryRowContext(ctx, takesUTF8SQL)); err != nil {
			return err
		}
		if _, err := checkedVersion(ctx, p); err != nil {
			return err
		}
		done, err := p.Up(ctx)
		if err != nil {
			return stepFailed(err)
		}
		m, err = migrated(ctx, p, done)
		return err
	})
	return m, err
}

// checkedVersion returns the version of the schema, or an error if it is newer than this program.
func checkedVersion(ctx context.Context, p *goose.Provider) (int64, error) {
	have, want, err := p.GetVersions(ctx)
	if err != nil {
		return 0, err
	}
	return have, checkNotNewer(have, want)
}

// migrated returns what the steps that were applied have changed. The version before is derived
// from the first of them, since versions have no gaps: a version that was read before the lock may
// be outdated.
func migrated(ctx context.Context, p *goose.Provider, done []*goose.MigrationResult) (Migrated, error) {
	to, err := p.GetDBVersion(ctx)
	m := Migrated{len(done), to, to}
	if len(done) > 0 {
		m.From = done[0].Source.Version
		if done[0].Direction == "up" {
			m.From--
		}
	}
	return m, err
}

// MigrateDown reverts the last step of the schema, and drops the data in it. It returns an error if
// the schema is newer than the program, or has no step.
func MigrateDown(ctx context.Context, url string) (m Migrated, err error) {
	err = withProvider(ctx, "migrate down", url, func(db *sql.DB, p *goose.Provider) error {
		have, err := checkedVersion(ctx, p)
		switch {
		case err != nil:
			return err
		case have == 0:
			return errors.New("no step has been applied")
		case have == journalStep:
			if err := checkFolded(ctx, db); err != nil {
				return err
			}
		}
		done, err := p.Down(ctx)
		if err != nil {
			return stepFailed(err)
		}
		m, err = migrated(ctx, p, []*goose.MigrationResult{done})
		return err
	})
	return m, err
}

// stepFailed says which step has failed. Each step is a transaction, so nothing of it was done,
// although goose calls the result partial.
func stepFailed(err error) error {
	if part, ok := errors.AsType[*goose.PartialError](err); ok {
		return fmt.Errorf("step %d failed and was rolled back: %w", part.Failed.Source.Version, part.Err)
	}
	return err
}

// journalStep is the migration that adds the journal.
const journalStep = 6

// Step 6 checks the same itself, whichever program reverts it.
const unfoldedSQL = `
SELECT (SELECT count(*) FROM journal) > 1 OR EXISTS (SELECT FROM journal WHERE length(changes) > 16)`

// checkFolded says what to do for an operator who has reverted the steps after the journal: no
// limiter of this release runs with the schema as it is. Those steps do not check, because an
// operator who reverts only them needs no limiter of this release.
func checkFolded(ctx context.Context, db *sql.DB) error {
	var unfolded bool
	if err := db.QueryRowContext(ctx, unfoldedSQL).Scan(&unfolded); err != nil {
		return fmt.Errorf("check the journal: %w", err)
	}
	if unfolded {
		return errors.New("the journal is not empty, because no limiter has stopped cleanly; run limiter migrate up, " +
			"start and stop a limiter once, and then revert the steps again")
	}
	return nil
}

// A reverted version has no row.
const newerStepsSQL = `
SELECT version_id, tstamp FROM goose_db_version WHERE is_applied AND version_id > $1 ORDER BY version_id`

// MigrationStatus lists the steps that this program knows, in order, and then those that a newer
// program has applied. If there are any of the latter, it returns an error as well as the list.
func MigrationStatus(ctx context.Context, url string) (steps []Migration, err error) {
	err = withProvider(ctx, "read migration status", url, func(db *sql.DB, p *goose.Provider) error {
		all, err := p.Status(ctx)
		if err != nil {
			return err
		}
		for _, m := range all {
			steps = append(steps, Migration{m.Source.Version, path.Base(m.Source.Path), m.AppliedAt})
		}
		known := steps[len(steps)-1].Version
		rows, err := db.QueryContext(ctx, newerStepsSQL, known)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var m Migration
			if err := rows.Scan(&m.Version, &m.AppliedAt); err != nil {
				return err
			}
			steps = append(steps, m)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		return checkNotNewer(steps[len(steps)-1].Version, known)
	})
	return steps, err
}

// checkNotNewer returns an error if the schema is newer than this program.
func checkNotNewer(have, want int64) error {
	if have > want {
		return fmt.Errorf("the database is at version %d, but this program only knows versions up to %d; upgrade limiter to a release that knows version %d", have, want, have)
	}
	return nil
}

// withProvider runs f with the migrations and the database. Concurrent migrations exclude each
// other by an advisory lock of the session, which is tried every second for five minutes. So the
// session must not be shared.
func withProvider(ctx context.Context, act, url string, f func(*sql.DB, *goose.Provider) error) error {
	cfg, err := parse(url)
	if err != nil {
		return err
	}
	configureMigrationSession(cfg.ConnConfig)
	if err := checkSessionsOf(ctx, cfg.ConnConfig); err != nil {
		return fmt.Errorf("%s: %w", act, err)
	}
	db := stdlib.OpenDB(*cfg.ConnConfig)
	defer db.Close()
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return fmt.Errorf("open migrations: %w", err)
	}
	p, err := provider(db, goose.WithSessionLocker(namedLock{locker}))
	if err != nil {
		return fmt.Errorf("open migrations: %w", err)
	}
	if err = checkSchemaIsOurs(ctx, db); err == nil {
		err = f(db, p)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %w", act, err)
	switch sqlState(err) {
	case insufficientPrivilege:
		return fmt.Errorf("%w; use the role that owns the tables, or one that may create them if there are none yet", err)
	case duplicateTable:
		return fmt.Errorf("%w; if it belongs to another program, "+placeOfItsOwn, err)
	}
	return err
}

// namedLock is a lock whose errors say what was waited for.
type namedLock struct{ lock.SessionLocker }

func (l namedLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	err := l.SessionLocker.SessionLock(ctx, conn)
	if err != nil && sqlState(err) == "" { // the server has refused nothing
		return fmt.Errorf("wait for the advisory lock %d, which another migration of this database holds (see pg_locks): %w", lock.DefaultLockID, err)
	}
	return err
}

// placeOfItsOwn is what to do if another program has what limits needs.
const placeOfItsOwn = "give limits a database of its own, or a schema of its own (?search_path=limits in the URL)"

// checkSchemaIsOurs returns an error if the schema cannot be migrated because another program
// migrates it, or because there is none.
func checkSchemaIsOurs(ctx context.Context, db *sql.DB) error {
	var path, role string
	var schema, versions bool
	if err := db.QueryRowContext(ctx, searchPathSQL).Scan(&path, &role, &schema, &versions); err != nil {
		return err
	}
	if !schema {
		return fmt.Errorf("the search_path %s names no schema that role %[2]q may use; "+
			"make one for it with CREATE SCHEMA … AUTHORIZATION %[2]q", path, role)
	}
	if !versions {
		return nil // goose makes its table there
	}
	known, err := knownVersion()
	if err != nil {
		return err
	}
	var have int64
	if err := db.QueryRowContext(ctx, schemaVersionSQL).Scan(&have); err != nil {
		return err
	}
	return checkTables(have, known, func(tables []string) pgx.Row {
		return db.QueryRowContext(ctx, missingTableSQL, tables)
	})
}

// goose looks for its table in the first schema of the path alone, and in all schemas if there is
// none.
const searchPathSQL = `
SELECT current_setting('search_path'), current_user::text, current_schema() IS NOT NULL,
	to_regclass(quote_ident(current_schema()) || '.goose_db_version') IS NOT NULL`

const missingTableSQL = `
SELECT coalesce((SELECT name FROM unnest($1::text[]) WITH ORDINALITY t (name, n) WHERE to_regclass(name) IS NULL ORDER BY n LIMIT 1), '')`

// stepTables are the tables that steps made. Other programs also use goose, whose table has the
// same name for all and does not say whose it is. A goose table with another name would tell them
// apart, but not find the schemas that exist.
var stepTables = []struct {
	step   int64
	tables []string
}{
	{1, []string{"counters", "receipts", "outbox"}},
	{2, []string{"api_keys", "overrides", "override_revision"}},
	{3, []string{"usage_counts", "usage_requests"}},
	{4, []string{"job_runs"}},
	{5, []string{"alert_events", "alert_groups", "alerts", "alert_deliveries", "alert_channels", "alert_silences", "alert_poison"}},
	{journalStep, []string{"journal"}},
	{9, []string{"outbox_refused"}},
	{11, []string{"override_removals"}},
	{12, []string{"key_revision"}},
}

// checkTables returns an error if a table is missing that a schema of ours has at this version.
// Then it is another program that migrates, and our steps would fail on its tables or drop them.
func checkTables(have, known int64, missing func(tables []string) pgx.Row) error {
	upTo := have
	if have > known {
		upTo = 1 // a newer release may have dropped others
	}
	var tables []string
	for _, s := range stepTables {
		if s.step <= upTo {
			tables = append(tables, s.tables...)
		}
	}
	var table string
	if err := missing(tables).Scan(&table); err != nil {
		return err
	}
	if table != "" {
		return fmt.Errorf("goose_db_version in this database belongs to another program: it is at version %d, but there is no table %s; "+
			placeOfItsOwn, have, table)
	}
	return nil
}

func provider(db *sql.DB, options ...goose.ProviderOption) (*goose.Provider, error) {
	files, err := fs.Sub(migrations.FS, "postgres")
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectPostgres, db, files, append(options, goose.WithDisableGlobalRegistry(true))...)
}

// A reverted version has no row.
const schemaVersionSQL = `
SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`

// Each partition of a partitioned table may have the same ctid, so deleting by ctid could delete a
// row in each.
const plainTableSQL = `
SELECT relkind = 'r' FROM pg_class WHERE oid = 'counters'::regclass`

// An encoding with several bytes for some characters refuses others; one with a byte for each
// accepts any bytes.
const takesUTF8SQL = `
SELECT getdatabaseencoding(), getdatabaseencoding() = 'UTF8' OR pg_encoding_max_length(pg_char_to_encoding(getdatabaseencoding())) = 1`

// checkEncoding refuses a database that accepts keys of ASCII and fails at the first other one.
func checkEncoding(row pgx.Row) error {
	var name string
	var takes bool
	err := row.Scan(&name, &takes)
	if err == nil && !takes {
		err = fmt.Errorf("the database has the encoding %s, which cannot store UTF-8 keys; create it with "+
			"CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0", name)
	}
	return err
}

// CheckSchema returns an error if this program and the schema do not fit together, which says what
// to do.
func (s *Store) CheckSchema(ctx context.Context) error {
	want, err := knownVersion()
	if err != nil {
		return fmt.Errorf("check schema: %w", err)
	}
	if err := checkEncoding(s.relay.QueryRow(ctx, takesUTF8SQL)); err != nil {
		return fmt.Errorf("check schema: %w", err)
	}
	var have int64
	err = s.relay.QueryRow(ctx, schemaVersionSQL).Scan(&have)
	switch state := sqlState(err); {
	case state == insufficientPrivilege:
		return fmt.Errorf("check schema: %w; deploy/roles.sql has the grants", err)
	case err != nil && state != undefinedTable:
		return fmt.Errorf("check schema: %w", err)
	}
	err = checkTables(have, want, func(tables []string) pgx.Row { return s.relay.QueryRow(ctx, missingTableSQL, tables) })
	if err != nil {
		return fmt.Errorf("check schema: %w", err)
	}
	if have < want {
		return fmt.Errorf("check schema: the database is at version %d and this program needs %d; run: limiter migrate up", have, want)
	}
	if err := checkNotNewer(have, want); err != nil {
		return fmt.Errorf("check schema: %w", err)
	}
	var plain bool
	if err := s.relay.QueryRow(ctx, plainTableSQL).Scan(&plain); err != nil {
		return fmt.Errorf("check schema: %w", err)
	}
	if !plain {
		return errors.New("check schema: counters is partitioned or not a table; it must be a plain table")
	}
	return nil
}

// knownVersion returns the version of the last migration file.
func knownVersion() (last int64, err error) {
	names, err := fs.Glob(migrations.FS, "postgres/*.sql")
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		v, err := goose.NumericComponent(path.Base(name))
		if err != nil {
			return 0, err
		}
		last = max(last, v)
	}
	return last, nil
}
