package main

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed503877ad/limits/internal/app"
)

// migrateCmd migrates the PostgreSQL schema. SQLite is migrated when it is opened.
type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" help:"Bring the schema up to date."`
	Down   migrateDownCmd   `cmd:"" help:"Take back the last step of the schema, with its data."`
	Status migrateStatusCmd `cmd:"" help:"Show which steps are applied."`
}

func (*migrateCmd) Help() string {
	return `Examples:

  limiter migrate status --database-url postgres://limits@db/limits
  limiter migrate up --database-url postgres://limits@db/limits`
}

// databaseFlags name the database.
type databaseFlags struct {
	DatabaseURL string `name:"database-url" env:"DATABASE_URL" required:"" placeholder:"URL" help:"PostgreSQL."`
}

// patience is after how long a verb says that it is not stuck.
const patience = 5 * time.Second

// patiently runs what may take minutes: a step over large tables, or the wait for another migration.
func patiently[R any](s *session, act string, run func() (R, error)) (R, error) {
	ended := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-ended:
		case <-time.After(patience):
			fmt.Fprintf(s.err, "limiter: %s is still at work, or waits for another migration of this database, "+
				"which then holds an advisory lock (see pg_locks); Ctrl-C ends it\n", act)
		}
	})
	defer watch.Wait()
	defer close(ended)
	return run()
}

type migrateUpCmd struct{ databaseFlags }

func (*migrateUpCmd) Help() string {
	return `Examples:

  limiter migrate up --database-url postgres://limits@db/limits
  DATABASE_URL=postgres://limits@db/limits limiter migrate up

Several may run at once; one does the work.`
}

func (c *migrateUpCmd) Run(s *session) error {
	m, err := patiently(s, "migrate up", func() (app.Migrated, error) { return app.MigrateUp(s.ctx, c.DatabaseURL) })
	switch {
	case err != nil:
		return err
	case m.Steps == 0:
		fmt.Fprintf(s.out, "nothing to do: the schema is at version %d\n", m.To)
	default:
		fmt.Fprintf(s.out, "%s from version %d: the schema is at version %d\n", count(m.Steps, "step"), m.From, m.To)
	}
	return nil
}

type migrateDownCmd struct {
	databaseFlags
	Yes bool `short:"y" help:"Confirm: the step's tables are dropped with their data."`
}

func (*migrateDownCmd) Help() string {
	return `Examples:

  limiter migrate down --yes --database-url postgres://limits@db/limits`
}

func (c *migrateDownCmd) Validate() error {
	if !c.Yes {
		return errors.New("the tables of the last step are dropped with their data; pass --yes")
	}
	return nil
}

func (c *migrateDownCmd) Run(s *session) error {
	m, err := patiently(s, "migrate down", func() (app.Migrated, error) { return app.MigrateDown(s.ctx, c.DatabaseURL) })
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "1 step back from version %d: the schema is at version %d\n", m.From, m.To)
	return nil
}

type migrateStatusCmd struct{ databaseFlags }

func (*migrateStatusCmd) Help() string {
	return `Examples:

  limiter migrate status --database-url postgres://limits@db/limits`
}

func (c *migrateStatusCmd) Run(s *session) error {
	steps, err := patiently(s, "migrate status", func() ([]app.Migration, error) { return app.MigrationStatus(s.ctx, c.DatabaseURL) })
	if len(steps) == 0 {
		return err
	}
	t := newTable(s.out, "VERSION", "STEP", "APPLIED")
	for _, m := range steps {
		applied := "pending"
		if !m.AppliedAt.IsZero() {
			applied = moment(s, m.AppliedAt.UnixMilli(), "-")
		}
		t.row(m.Version, cmp.Or(m.Name, "of a newer release"), applied)
	}
	t.flush()
	return err
}
