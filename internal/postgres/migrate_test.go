package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestSchema(t *testing.T) {
	url := testenv.EmptyPostgres(t)
	s := open(t, Config{URL: url})
	check := func(want string) {
		t.Helper()
		err := s.CheckSchema(t.Context())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("CheckSchema: %v; want %q", err, want)
		}
	}
	check("run: limiter migrate up")
	if err := s.Update(t.Context(), batch("a"), set("1")); err == nil || errors.Is(err, engine.ErrCommitUnknown) {
		t.Errorf("update without a schema: %v", err)
	}

	errs := make(chan error, 3)
	var did atomic.Int64
	for range 3 { // concurrently: one migrates, the others wait
		go func() {
			m, err := MigrateUp(t.Context(), url)
			did.Add(int64(m.Steps))
			errs <- err
		}()
	}
	if err := errors.Join(<-errs, <-errs, <-errs); err != nil {
		t.Fatal(err)
	}
	check("")
	if err := s.Update(t.Context(), batch("a"), set("1")); err != nil {
		t.Errorf("update: %v", err)
	}
	steps, err := MigrationStatus(t.Context(), url)
	if err != nil || len(steps) == 0 || did.Load() != int64(len(steps)) || steps[0].Version != 1 || steps[0].Name != "00001_init.sql" || time.Since(steps[0].AppliedAt).Abs() > time.Hour {
		t.Errorf("MigrationStatus = %v, %v, after %d steps", steps, err, did.Load())
	}

	if _, err := connect(t, s).Exec(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, true)`); err != nil {
		t.Fatal(err)
	}
	newer := "upgrade limiter to a release that knows version 999"
	check(newer)
	for name, migrate := range map[string]func(context.Context, string) (Migrated, error){"up": MigrateUp, "down": MigrateDown} {
		if _, err := migrate(t.Context(), url); err == nil || !strings.Contains(err.Error(), newer) {
			t.Errorf("migrate %s of a newer schema: %v", name, err)
		}
	}
	all, err := MigrationStatus(t.Context(), url)
	if err == nil || !strings.Contains(err.Error(), newer) || len(all) != len(steps)+1 || all[len(steps)].Version != 999 ||
		all[len(steps)].Name != "" || time.Since(all[len(steps)].AppliedAt).Abs() > 24*time.Hour {
		t.Errorf("MigrationStatus of a newer schema = %v, %v", all, err)
	}
	if _, err := connect(t, s).Exec(t.Context(), `DELETE FROM goose_db_version WHERE version_id = 999`); err != nil {
		t.Fatal(err)
	}

	for err = nil; err == nil; { // the steps after the journal
		_, err = MigrateDown(t.Context(), url)
	}
	if !strings.Contains(err.Error(), "run limiter migrate up, start and stop a limiter once") || strings.Contains(err.Error(), "partial") {
		t.Errorf("migrate down over a journal that was not folded: %v", err)
	}
	if _, err := MigrateUp(t.Context(), url); err != nil { // since no limiter runs with the schema as it is
		t.Error(err)
	}
	s.foldAll() // as a limiter that stops
	err = nil
	for range len(steps) + 1 { // one more than there are
		if err == nil {
			_, err = MigrateDown(t.Context(), url)
		}
	}
	if err == nil || !strings.Contains(err.Error(), "no step has been applied") {
		t.Errorf("migrate down without a step: %v", err)
	}
	check("run: limiter migrate up")
	if steps, err = MigrationStatus(t.Context(), url); err != nil || !steps[0].AppliedAt.IsZero() {
		t.Errorf("MigrationStatus = %v, %v", steps, err)
	}
}

// TestMigrateWithoutPrivilegeNamesRightRole, on a database without any migration, and on one whose
// tables another role owns.
func TestMigrateWithoutPrivilegeNamesRightRole(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"empty": testenv.EmptyPostgres(t), "migrated": testenv.Postgres(t)} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		role := "stranger_" + name + strings.TrimPrefix(u.Path, "/limits_test")
		owner := connect(t, open(t, Config{URL: text}))
		exec(t, owner, `REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE ROLE `+role+` LOGIN PASSWORD 'secret'`)
		u.User = url.UserPassword(role, "secret")
		_, err = MigrationStatus(t.Context(), u.String())
		if err == nil || !strings.Contains(err.Error(), "use the role that owns the tables, or one that may create them if there are none yet") {
			t.Errorf("MigrationStatus of a stranger, %s: %v", name, err)
		}
		if _, err := owner.Exec(t.Context(), `DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	}
}

// TestFailedMigrationIsRolledBack, and the error says so.
func TestFailedMigrationIsRolledBack(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	s := open(t, Config{URL: url})
	exec(t, connect(t, s), `
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
CREATE TRIGGER refuse BEFORE DELETE ON goose_db_version EXECUTE FUNCTION refuse()`)
	last, err := knownVersion()
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("step %d failed and was rolled back", last)
	if _, err := MigrateDown(t.Context(), url); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "partial") {
		t.Errorf("migrate down: %v; want %q", err, want)
	}
	if err := s.CheckSchema(t.Context()); err != nil {
		t.Error(err)
	}
}

// A worker that ran on partitions would charge counters of other keys: those with the same ctid.
func TestPartitionedTableIsRejected(t *testing.T) {
	s := open(t, Config{})
	_, err := connect(t, s).Exec(t.Context(), `
DROP TABLE counters;
CREATE TABLE counters (key text, name text, spec text, state bytea, expires_at bigint, PRIMARY KEY (key, name)) PARTITION BY HASH (key)`)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CheckSchema(t.Context()); err == nil || !strings.Contains(err.Error(), "must be a plain table") {
		t.Errorf("CheckSchema of a partitioned table: %v", err)
	}
}
