package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/columns"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
	"github.com/seed503877ad/limits/internal/usage"
)

// TestUsageIsSummedInMemory checks the plan that the connection keeps: sorting minutes to sum
// them up would use the disk.
func TestUsageIsSummedInMemory(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	if _, err := s.TopUsage(t.Context(), usage.TopQuery{By: usage.ByUsed, Until: 1, Max: 1}); err != nil {
		t.Fatal(err)
	}
	c, err := s.relay.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	var name string
	if err := c.QueryRow(t.Context(), `SELECT name FROM pg_prepared_statements WHERE starts_with(statement, $1)`, topUsageSQLs[usage.ByUsed]).Scan(&name); err != nil {
		t.Fatal(err)
	}
	rows, err := c.Query(t.Context(), `EXPLAIN (COSTS OFF) EXECUTE `+name+` (0, 1, '', '', '', 1)`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if want := reportQueries[0].plan; err != nil || !slices.Equal(nodesOf(lines), want) {
		t.Errorf("the plan is\n%s\nwant %q; %v", strings.Join(lines, "\n"), want, err)
	}
}

// TestReportHasTimeoutOfItsJob, and not that of a statement of a request.
func TestReportHasTimeoutOfItsJob(t *testing.T) {
	t.Parallel()
	s := open(t, Config{relayTimeout: 200 * time.Millisecond})
	for _, sql := range []string{
		`ALTER TABLE usage_counts RENAME TO kept`,
		// The key of its only row is the statement timeout, in milliseconds.
		`CREATE VIEW usage_counts AS
			SELECT 1 AS minutes, 0::bigint AS at, setting AS key, '' AS policy, '' AS user_name,
				1::bigint AS allowed, 1::bigint AS denied, 1::bigint AS cost, 1::bigint AS peak
			FROM pg_settings, pg_sleep(0.4) WHERE name = 'statement_timeout'`,
	} {
		exec(t, s.pool, sql)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	top, err := s.TopUsage(ctx, usage.TopQuery{By: usage.ByUsed, Until: 1, Max: 1})
	if err != nil || len(top) != 1 {
		t.Fatal(top, err)
	}
	if may, err := time.ParseDuration(top[0].Key + "ms"); err != nil || may > time.Hour || may < 50*time.Minute {
		t.Errorf("a statement may take %s of an hour", top[0].Key+"ms")
	}
	var after string
	if err := s.relay.QueryRow(t.Context(), `SHOW statement_timeout`).Scan(&after); err != nil || after != "10s" {
		t.Errorf("the next statement may take %s, %v", after, err)
	}
}

// TestStatementTimeoutOfURLHoldsForReports, as for everything else.
func TestStatementTimeoutOfURLHoldsForReports(t *testing.T) {
	t.Parallel()
	s := open(t, Config{URL: testenv.Postgres(t) + "&statement_timeout=7s"})
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	got, err := report(ctx, s, columns.One[string], `SHOW statement_timeout`)
	if err != nil || !slices.Equal(got, []string{"7s"}) {
		t.Errorf("a statement may take %q, %v", got, err)
	}
}

// TestUsageErrorSaysWhetherItMayBeStored: what was refused is written again, and what may be stored
// is not, or it would count twice.
func TestUsageErrorSaysWhetherItMayBeStored(t *testing.T) {
	t.Parallel()
	for what, add := range map[string]func(ctx context.Context, s *Store, key string) error{
		"counts": func(ctx context.Context, s *Store, key string) error {
			return s.AddUsage(ctx, []usage.Count{{ID: usage.ID{Key: key}, Allowed: 1}})
		},
		"requests": func(ctx context.Context, s *Store, key string) error {
			return s.AddRequests(ctx, []usage.Request{{Key: key}})
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			proxy := startProxy(t, testenv.Postgres(t))
			s := open(t, Config{URL: proxy.url})
			if err := add(t.Context(), s, "no text\x00"); err == nil || errors.Is(err, engine.ErrCommitUnknown) {
				t.Errorf("refused: %v", err)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if err := add(ended, s, "late"); err == nil || errors.Is(err, engine.ErrCommitUnknown) {
				t.Errorf("not sent: %v", err)
			}
			proxy.loseAnswers()
			if err := add(t.Context(), s, "stored"); !errors.Is(err, engine.ErrCommitUnknown) {
				t.Errorf("stored, but the answer is lost: %v", err)
			}
			if err := add(t.Context(), s, "stored too"); err != nil {
				t.Error(err)
			}
		})
	}
}
