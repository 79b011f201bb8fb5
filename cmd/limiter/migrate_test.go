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
	migrate("up").want(t, exitDone, "8 steps from version 0: the schema is at version 8\n", "")
	migrate("up").want(t, exitDone, "nothing to do: the schema is at version 8\n", "")
	migrate("down", "--yes").want(t, exitDone, "1 step back from version 8: the schema is at version 7\n", "")
	migrate("up").want(t, exitDone, "1 step from version 7: the schema is at version 8\n", "")
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
