package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMigrate(t *testing.T) {
	url := testenv.EmptyPostgres(t)
	migrate := func(args ...string) *invocation {
		return limiter(t, append(append([]string{"migrate"}, args...), "--database-url", url)...)
	}
	migrate("down", "--yes").want(t, exitError, "", "no step has been applied")
	migrate("down").want(t, exitUsage, "", "limiter: migrate down: the tables of the last step are dropped with their data; pass --yes\n")
	files, err := filepath.Glob("../../migrations/postgres/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	last := len(files)
	migrate("up").want(t, exitDone, fmt.Sprintf("%d steps from version 0: the schema is at version %d\n", last, last), "")
	migrate("up").want(t, exitDone, fmt.Sprintf("nothing to do: the schema is at version %d\n", last), "")
	migrate("down", "--yes").want(t, exitDone, fmt.Sprintf("1 step back from version %d: the schema is at version %d\n", last, last-1), "")
	migrate("up").want(t, exitDone, fmt.Sprintf("1 step from version %d: the schema is at version %d\n", last-1, last), "")
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

// TestALongMigrationSaysThatItIsNotStuck, once, and one that is done soon says nothing.
func TestALongMigrationSaysThatItIsNotStuck(t *testing.T) {
	t.Parallel()
	for takes, want := range map[time.Duration]string{patience - 1: "", 10 * patience: "limiter: migrate up is still at work, or waits"} {
		synctest.Test(t, func(t *testing.T) {
			var log strings.Builder
			n, err := patiently(&session{err: &log}, "migrate up", func() (int, error) {
				time.Sleep(takes)
				return 7, errors.New("failed")
			})
			if n != 7 || err == nil || !strings.HasPrefix(log.String(), want) || want == "" && log.Len() > 0 || strings.Count(log.String(), "\n") > 1 {
				t.Errorf("after %s: %d, %v, %q", takes, n, err, log.String())
			}
		})
	}
}
