package main

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMigrate(t *testing.T) {
	url := testenv.Postgres(t, nil)
	migrate := func(args ...string) *invocation {
		return limiter(t, append(append([]string{"migrate"}, args...), "--database-url", url)...)
	}
	migrate("down", "--yes").want(t, exitError, "", "no step is applied")
	migrate("up").want(t, exitDone, "the schema is up to date", "")
	migrate("status").want(t, exitDone, "00001_init.sql", "")
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	if _, err := c.Exec(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, true)`); err != nil {
		t.Fatal(err)
	}
	newer := "upgrade limiter to a release that knows version 999"
	migrate("up").want(t, exitError, "", newer)
	migrate("down", "--yes").want(t, exitError, "", newer)
	migrate("status").want(t, exitError, "999      of a newer release", newer)
}
