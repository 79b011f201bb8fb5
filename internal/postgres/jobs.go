package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/columns"
	"github.com/seed503877ad/limits/internal/jobs"
)

const (
	// A run that starts in the future started while the clock was ahead. It may still be running,
	// so it counts as started now.
	loseRunsSQL = `
WITH ahead AS (
	UPDATE job_runs SET started_at = ` + nowMillis + `, deadline = ` + nowMillis + ` + deadline - started_at
	WHERE ended_at = 0 AND started_at > ` + nowMillis + `
)
UPDATE job_runs SET outcome = 'lost', ended_at = ` + nowMillis + ` WHERE ended_at = 0 AND deadline < ` + nowMillis + ` RETURNING job`

	// A run that ended before the time it was for was made by a worker whose clock is ahead, or was. It
	// must not keep others from running the job when that time comes. Those whose clocks are ahead alike,
	// and claim the same time, leave it alone.
	forgetAheadSQL = `
DELETE FROM job_runs WHERE job = $1 AND scheduled > GREATEST($2, ` + nowMillis + ` + $3::bigint) AND ended_at <> 0`

	// Inserts nothing if the run exists, or if another run of the job started at the same moment:
	// unique indexes prevent both.
	claimRunSQL = `
INSERT INTO job_runs (job, scheduled, replica, started_at, deadline, ended_at, outcome, note, error)
SELECT $1, $2, $3, at, at + $4::bigint, CASE WHEN busy THEN at ELSE 0 END, CASE WHEN busy THEN 'skipped' ELSE 'running' END, '', ''
FROM (SELECT ` + nowMillis + ` AS at, EXISTS (SELECT FROM job_runs WHERE job = $1 AND ended_at = 0) AS busy) now
WHERE NOT (busy AND $5) ON CONFLICT DO NOTHING RETURNING outcome`

	finishRunSQL = `
UPDATE job_runs SET ended_at = ` + nowMillis + `, outcome = $3, note = $4, error = $5
WHERE job = $1 AND scheduled = $2 AND ended_at = 0`

	runsSQL = `
SELECT ` + columns.Run + ` FROM job_runs WHERE $2 = '' OR outcome = $2 ORDER BY scheduled DESC LIMIT $1`

	// Not job = $3: the planner might read the runs of all jobs in order of time.
	runsOfJobSQL = `
SELECT ` + columns.Run + ` FROM job_runs WHERE job BETWEEN $3 AND $3 AND ($2 = '' OR outcome = $2) ORDER BY job DESC, scheduled DESC LIMIT $1`

	pruneRunsSQL = `
DELETE FROM job_runs WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM job_runs r WHERE scheduled < $1 AND ended_at <> 0
	AND EXISTS (SELECT FROM job_runs l WHERE l.job = r.job AND l.scheduled > r.scheduled)
	ORDER BY scheduled LIMIT $2))`
)

// ClaimRun implements [jobs.Store].
func (s *Store) ClaimRun(ctx context.Context, c jobs.Claim) (claimed jobs.Claimed, err error) {
	err = pgx.BeginFunc(ctx, s.relay, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, loseRunsSQL)
		if claimed.Lost, err = collect(rows, err, columns.One[string]); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, forgetAheadSQL, c.Job, c.Scheduled, jobs.MaxAhead.Milliseconds()); err != nil {
			return err
		}
		rows, err = tx.Query(ctx, claimRunSQL, c.Job, c.Scheduled, c.Replica, c.Lease.Milliseconds(), c.IfIdle)
		claimed.Outcome, _, err = first(collect(rows, err, columns.One[jobs.Outcome]))
		return err
	})
	if err != nil {
		return jobs.Claimed{}, fmt.Errorf("claim a run: %w", err)
	}
	return claimed, nil
}

// FinishRun implements [jobs.Store].
func (s *Store) FinishRun(ctx context.Context, r jobs.Run) (found bool, err error) {
	n, err := s.exec(ctx, "end a run", finishRunSQL, r.Job, r.Scheduled, string(r.Outcome), r.Note, r.Error)
	return n > 0, err
}

// Runs implements [jobs.Store].
func (s *Store) Runs(ctx context.Context, f jobs.Filter) ([]jobs.Run, error) {
	query, args := runsSQL, []any{f.Max, string(f.Outcome)}
	if f.Job != "" {
		query, args = runsOfJobSQL, append(args, f.Job)
	}
	return read(ctx, s, "read runs", columns.OfRun, query, args...)
}

// PruneRuns implements [jobs.Store].
func (s *Store) PruneRuns(ctx context.Context, before time.Time, max int) (int, error) {
	return s.exec(ctx, "remove old runs", pruneRunsSQL, before.UnixMilli(), max)
}
