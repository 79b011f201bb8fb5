package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/seed503877ad/limits/internal/jobs"
)

const (
	// What began in the time to come began while the clock was ahead, and counts as begun now: it may still go on.
	runsAheadSQL = `UPDATE job_runs SET started_at = ?1, deadline = ?1 + deadline - started_at WHERE ended_at = 0 AND started_at > ?1`

	loseRunsSQL = `UPDATE job_runs SET outcome = 'lost', ended_at = ?1 WHERE ended_at = 0 AND deadline < ?1 RETURNING job`

	claimRunSQL = `
INSERT INTO job_runs (job, scheduled, replica, started_at, deadline, ended_at, outcome, note, error)
SELECT ?1, ?2, ?3, ?4, ?4 + ?5, CASE WHEN busy THEN ?4 ELSE 0 END, CASE WHEN busy THEN 'skipped' ELSE 'running' END, '', ''
FROM (SELECT EXISTS (SELECT 1 FROM job_runs WHERE job = ?1 AND ended_at = 0) AS busy)
WHERE NOT (busy AND ?6) ON CONFLICT DO NOTHING RETURNING outcome`

	finishRunSQL = `
UPDATE job_runs SET ended_at = ?3, outcome = ?4, note = ?5, error = ?6 WHERE job = ?1 AND scheduled = ?2 AND ended_at = 0`

	runColumns = `job, scheduled, replica, started_at, ended_at, outcome, note, error`

	runsSQL = `SELECT ` + runColumns + ` FROM job_runs ORDER BY scheduled DESC LIMIT ?`

	runsOfJobSQL = `SELECT ` + runColumns + ` FROM job_runs WHERE job = ?2 ORDER BY scheduled DESC LIMIT ?1`

	pruneRunsSQL = `
DELETE FROM job_runs WHERE (job, scheduled) IN (
	SELECT job, scheduled FROM job_runs r WHERE scheduled < ?1 AND ended_at <> 0
	AND EXISTS (SELECT 1 FROM job_runs l WHERE l.job = r.job AND l.scheduled > r.scheduled)
	ORDER BY scheduled LIMIT ?2)`
)

// ClaimRun implements [jobs.Store].
func (s *Store) ClaimRun(ctx context.Context, c jobs.Claim) (claimed jobs.Claimed, err error) {
	err = s.alter(ctx, "claim a run", func() (bool, error) {
		now := s.now().UnixMilli()
		if _, err := s.exec(runsAheadSQL, now); err != nil {
			return false, err
		}
		lost, err := inside(s, func(job *string) []any { return []any{job} }, loseRunsSQL, now)
		if err != nil {
			return false, err
		}
		claimed = jobs.Claimed{Lost: lost}
		err = s.conn.QueryRowContext(context.Background(), claimRunSQL, c.Job, c.Scheduled, c.Replica, now,
			c.Lease.Milliseconds(), c.IfIdle).Scan(&claimed.Outcome)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return false, err
		}
		return true, nil
	})
	if err != nil {
		return jobs.Claimed{}, err
	}
	return claimed, nil
}

// FinishRun implements [jobs.Store].
func (s *Store) FinishRun(ctx context.Context, r jobs.Run) (found bool, err error) {
	err = s.alter(ctx, "end a run", func() (bool, error) {
		n, err := s.exec(finishRunSQL, r.Job, r.Scheduled, s.now().UnixMilli(), string(r.Outcome), r.Note, r.Error)
		found = n > 0
		return found, err
	})
	return found && err == nil, err
}

// LastRun implements [jobs.Store].
func (s *Store) LastRun(ctx context.Context, job string) (r jobs.Run, found bool, err error) {
	runs, err := s.Runs(ctx, jobs.Filter{Job: job, Max: 1})
	if err != nil || len(runs) == 0 {
		return r, false, err
	}
	return runs[0], true, nil
}

// Runs implements [jobs.Store].
func (s *Store) Runs(ctx context.Context, f jobs.Filter) (all []jobs.Run, err error) {
	query, args := runsSQL, []any{f.Max}
	if f.Job != "" {
		query, args = runsOfJobSQL, append(args, f.Job)
	}
	var r jobs.Run
	into := []any{&r.Job, &r.Scheduled, &r.Replica, &r.StartedAt, &r.EndedAt, &r.Outcome, &r.Note, &r.Error}
	if err := eachRow(ctx, s.reader, query, args, into, func() { all = append(all, r) }); err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}
	return all, nil
}

// PruneRuns implements [jobs.Store].
func (s *Store) PruneRuns(ctx context.Context, before time.Time, max int) (n int, err error) {
	return s.remove(ctx, "remove old runs", pruneRunsSQL, before.UnixMilli(), max)
}

// remove runs one statement that deletes, and gives how many rows it took.
func (s *Store) remove(ctx context.Context, act, statement string, args ...any) (int, error) {
	var n int64
	err := s.alter(ctx, act, func() (wrote bool, err error) {
		n, err = s.exec(statement, args...)
		return n > 0, err
	})
	if err != nil {
		return 0, err
	}
	return int(n), nil
}
