package sqlite

import (
	"context"
	"time"

	"github.com/seed503877ad/limits/internal/columns"
	"github.com/seed503877ad/limits/internal/jobs"
)

const (
	// A run that starts in the future started while the clock was ahead. It may still be running,
	// so it counts as started now.
	runsAheadSQL = `UPDATE job_runs SET started_at = ?1, deadline = ?1 + deadline - started_at WHERE ended_at = 0 AND started_at > ?1`

	loseRunsSQL = `UPDATE job_runs SET outcome = 'lost', ended_at = ?1 WHERE ended_at = 0 AND deadline < ?1 RETURNING job`

	// A run that ended before the time it was for was made while the clock was ahead. It must not keep
	// the job from running when that time comes. Who claims the same time again leaves it alone.
	forgetAheadSQL = `DELETE FROM job_runs WHERE job = ?1 AND scheduled > ?2 AND ended_at <> 0`

	claimRunSQL = `
INSERT INTO job_runs (job, scheduled, replica, started_at, deadline, ended_at, outcome, note, error)
SELECT ?1, ?2, ?3, ?4, ?4 + ?5, CASE WHEN busy THEN ?4 ELSE 0 END, CASE WHEN busy THEN 'skipped' ELSE 'running' END, '', ''
FROM (SELECT EXISTS (SELECT 1 FROM job_runs WHERE job = ?1 AND ended_at = 0) AS busy)
WHERE NOT (busy AND ?6) ON CONFLICT DO NOTHING RETURNING outcome`

	finishRunSQL = `
UPDATE job_runs SET ended_at = ?3, outcome = ?4, note = ?5, error = ?6 WHERE job = ?1 AND scheduled = ?2 AND ended_at = 0`

	runsSQL = `SELECT ` + columns.Run + ` FROM job_runs WHERE ?2 = '' OR outcome = ?2 ORDER BY scheduled DESC LIMIT ?1`

	runsOfJobSQL = `
SELECT ` + columns.Run + ` FROM job_runs WHERE job = ?3 AND (?2 = '' OR outcome = ?2) ORDER BY scheduled DESC LIMIT ?1`

	pruneRunsSQL = `
DELETE FROM job_runs WHERE (job, scheduled) IN (
	SELECT job, scheduled FROM job_runs r WHERE scheduled < ?1 AND ended_at <> 0
	AND EXISTS (SELECT 1 FROM job_runs l WHERE l.job = r.job AND l.scheduled > r.scheduled)
	ORDER BY scheduled LIMIT ?2)`
)

// ClaimRun implements [jobs.Store].
func (s *Store) ClaimRun(ctx context.Context, c jobs.Claim) (claimed jobs.Claimed, err error) {
	err = s.transact(ctx, "claim a run", func() (bool, error) {
		now := s.now().UnixMilli()
		if _, err := s.execInTx(runsAheadSQL, now); err != nil {
			return false, err
		}
		lost, err := readInTx(s, columns.One[string], loseRunsSQL, now)
		if err != nil {
			return false, err
		}
		claimed.Lost = lost
		if _, err := s.execInTx(forgetAheadSQL, c.Job, max(c.Scheduled, now+jobs.MaxAhead.Milliseconds())); err != nil {
			return false, err
		}
		claimed.Outcome, _, err = first(readInTx(s, columns.One[jobs.Outcome], claimRunSQL, c.Job, c.Scheduled, c.Replica, now,
			c.Lease.Milliseconds(), c.IfIdle))
		return true, err
	})
	if err != nil {
		return jobs.Claimed{}, err
	}
	return claimed, nil
}

// FinishRun implements [jobs.Store].
func (s *Store) FinishRun(ctx context.Context, r jobs.Run) (found bool, err error) {
	n, err := s.change(ctx, "end a run", finishRunSQL, r.Job, r.Scheduled, s.now().UnixMilli(), string(r.Outcome), r.Note, r.Error)
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
	return s.change(ctx, "remove old runs", pruneRunsSQL, before.UnixMilli(), max)
}
