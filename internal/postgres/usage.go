package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seed503877ad/limits/internal/columns"
	"github.com/seed503877ad/limits/internal/usage"
)

var _ usage.Store = (*Store)(nil)

const (
	addUsageSQL = `
INSERT INTO usage_counts AS c (minutes, at, key, policy, user_name, allowed, denied, cost, peak)
SELECT 1, u.at, u.key, u.policy, u.user_name, u.allowed, u.denied, u.cost, u.allowed + u.denied
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[])
	AS u (at, key, policy, user_name, allowed, denied, cost)
ON CONFLICT (minutes, at, key, policy, user_name) DO UPDATE SET
	allowed = c.allowed + excluded.allowed, denied = c.denied + excluded.denied, cost = c.cost + excluded.cost,
	peak = c.peak + excluded.peak`

	addRequestsSQL = `
INSERT INTO usage_requests (at, key, user_name, endpoint, method, status, millis)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[])`
)

// AddUsage implements [usage.Store].
func (s *Store) AddUsage(ctx context.Context, counts []usage.Count) error {
	return s.insertUsage(ctx, "write usage", addUsageSQL,
		column(counts, func(c *usage.Count) int64 { return c.At }),
		column(counts, func(c *usage.Count) string { return c.Key }),
		column(counts, func(c *usage.Count) string { return c.Policy }),
		column(counts, func(c *usage.Count) string { return c.User }),
		column(counts, func(c *usage.Count) int64 { return c.Allowed }),
		column(counts, func(c *usage.Count) int64 { return c.Denied }),
		column(counts, func(c *usage.Count) int64 { return c.Cost }))
}

// AddRequests implements [usage.Store].
func (s *Store) AddRequests(ctx context.Context, requests []usage.Request) error {
	return s.insertUsage(ctx, "write requests", addRequestsSQL,
		column(requests, func(r *usage.Request) int64 { return r.At }),
		column(requests, func(r *usage.Request) string { return r.Key }),
		column(requests, func(r *usage.Request) string { return r.User }),
		column(requests, func(r *usage.Request) string { return r.Endpoint }),
		column(requests, func(r *usage.Request) string { return r.Method }),
		column(requests, func(r *usage.Request) int64 { return r.Status }),
		column(requests, func(r *usage.Request) int64 { return r.Millis }))
}

// insertUsage distinguishes a refused insert, which may be repeated, from one that may have been
// committed. It acquires the connection first, because an error of that is of the first kind.
func (s *Store) insertUsage(ctx context.Context, act, statement string, values ...any) error {
	conn, err := s.relay.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", act, err)
	}
	defer conn.Release()
	_, err = conn.Exec(ctx, statement, values...)
	switch {
	case err == nil:
		return nil
	case sqlState(err) != "" || pgconn.SafeToRetry(err):
		return notCommitted(act, err)
	}
	return commitUnknown(act, err)
}

// topUsageSQL orders by the sum of a column. Sums are capped at the largest integer that JSON
// numbers represent exactly. If the range begins within an hour that was rolled up, all of that
// hour counts.
func topUsageSQL(by string) string {
	return `
SELECT key, policy, user_name, least(sum(allowed), 9007199254740991)::bigint, least(sum(denied), 9007199254740991)::bigint,
	least(sum(cost), 9007199254740991)::bigint, max(peak)
FROM usage_counts
WHERE minutes IN (1, 60) AND at >= $1::bigint - $1 % 3600000 AND at < $2 AND (minutes = 60 OR at >= $1)
	AND ($3 = '' OR policy = $3) AND ($4 = '' OR user_name = $4) AND starts_with(key, $5)
GROUP BY key, policy, user_name HAVING sum(` + by + `) > 0
ORDER BY sum(` + by + `) DESC, key, policy, user_name LIMIT $6`
}

var topUsageSQLs = map[string]string{
	usage.ByDenied: topUsageSQL("denied"), usage.ByUsed: topUsageSQL("cost"), usage.ByAllowed: topUsageSQL("allowed"),
}

// TopUsage implements [usage.Store].
func (s *Store) TopUsage(ctx context.Context, q usage.TopQuery) ([]usage.Top, error) {
	return report(ctx, s, func(t *usage.Top) []any {
		return []any{&t.Key, &t.Policy, &t.User, &t.Allowed, &t.Denied, &t.Cost, &t.Peak}
	}, topUsageSQLs[q.By], q.Since, q.Until, q.Policy, q.User, q.Prefix, q.Max)
}

const (
	loggedSQL = `
FROM usage_requests WHERE at >= $1 AND at < $2 AND starts_with(key, $3)`

	trafficSQL = `
SELECT key, user_name, count(*), count(*) FILTER (WHERE status >= 500)` + loggedSQL + `
GROUP BY key, user_name ORDER BY count(*) DESC, key, user_name LIMIT $4`

	slowestSQL = `
SELECT endpoint, method, count(*), avg(millis)::float8, percentile_disc(0.95) WITHIN GROUP (ORDER BY millis), max(millis)` +
		loggedSQL + `
GROUP BY endpoint, method ORDER BY 5 DESC, endpoint, method LIMIT $4`

	failuresSQL = `
SELECT endpoint, method, status, count(*)` + loggedSQL + ` AND status >= 500
GROUP BY endpoint, method, status ORDER BY count(*) DESC, endpoint, method, status LIMIT $4`
)

// Traffic implements [usage.Store].
func (s *Store) Traffic(ctx context.Context, q usage.LogQuery) ([]usage.Traffic, error) {
	return report(ctx, s, func(t *usage.Traffic) []any {
		return []any{&t.Key, &t.User, &t.Requests, &t.Errors}
	}, trafficSQL, logArgs(q)...)
}

// SlowestEndpoints implements [usage.Store].
func (s *Store) SlowestEndpoints(ctx context.Context, q usage.LogQuery) ([]usage.Endpoint, error) {
	return report(ctx, s, func(e *usage.Endpoint) []any {
		return []any{&e.Endpoint, &e.Method, &e.Requests, &e.Mean, &e.P95, &e.Max}
	}, slowestSQL, logArgs(q)...)
}

// EndpointErrors implements [usage.Store].
func (s *Store) EndpointErrors(ctx context.Context, q usage.LogQuery) ([]usage.Failure, error) {
	return report(ctx, s, func(f *usage.Failure) []any {
		return []any{&f.Endpoint, &f.Method, &f.Status, &f.Requests}
	}, failuresSQL, logArgs(q)...)
}

func logArgs(q usage.LogQuery) []any { return []any{q.Since, q.Until, q.Prefix, q.Max} }

// reportingSQL sets up the transaction of a usage report. The planner expects few rows in a range
// of time, so it would sort all minutes of a day on disk to group them. With enable_sort off it
// groups by a hash table in memory. The result is still sorted, because there is no other way to
// order it.
const reportingSQL = `
SELECT set_config('enable_sort', 'off', true), set_config('statement_timeout', coalesce($1, current_setting('statement_timeout')), true)`

// report is read for a usage report. It may take as long as the caller's context allows: seconds
// for a request, minutes for a job.
func report[R any](ctx context.Context, s *Store, fields func(*R) []any, query string, args ...any) (all []R, err error) {
	release, err := acquire(ctx, s.reportSlot)
	if err != nil {
		return nil, fmt.Errorf("wait for the previous report: %w", err)
	}
	defer release()
	var most *string
	if end, ok := ctx.Deadline(); ok {
		left := min(time.Until(end), time.Hour)
		ctx = withStatementTimeout(ctx, left)
		if !hasSetting(s.relay.Config().ConnConfig.RuntimeParams, "statement_timeout") {
			text := millis(left)
			most = &text
		}
	}
	err = pgx.BeginTxFunc(ctx, s.relay, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, reportingSQL, most); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, query, args...)
		all, err = collect(rows, err, fields)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	return all, nil
}

const (
	// Rows that another worker writes to or rolls up are left to the next time.
	rollupUsageSQL = `
WITH gone AS (
	DELETE FROM usage_counts WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM usage_counts WHERE minutes = 1 AND at < $1 ORDER BY minutes, at LIMIT $2 FOR UPDATE SKIP LOCKED))
	RETURNING at - at % 3600000 AS hour, key, policy, user_name, allowed, denied, cost, peak
), added AS (
	INSERT INTO usage_counts AS c (minutes, at, key, policy, user_name, allowed, denied, cost, peak)
	SELECT 60, hour, key, policy, user_name, sum(allowed), sum(denied), sum(cost), max(peak)
	FROM gone GROUP BY hour, key, policy, user_name ORDER BY hour, key, policy, user_name
	ON CONFLICT (minutes, at, key, policy, user_name) DO UPDATE SET
		allowed = c.allowed + excluded.allowed, denied = c.denied + excluded.denied, cost = c.cost + excluded.cost,
		peak = greatest(c.peak, excluded.peak)
)
SELECT count(*) FROM gone`

	pruneUsageSQL = `
DELETE FROM usage_counts WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM usage_counts WHERE minutes IN (1, 60) AND at < $1 LIMIT $2 FOR UPDATE SKIP LOCKED))`

	pruneRequestsSQL = `
DELETE FROM usage_requests WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM usage_requests WHERE at < $1 ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED))`
)

// RollupUsage implements [usage.Store]. Only whole hours are rolled up.
func (s *Store) RollupUsage(ctx context.Context, before time.Time, max int) (int, error) {
	n, _, err := first(read(ctx, s, "roll up usage", columns.One[int], rollupUsageSQL, before.Truncate(time.Hour).UnixMilli(), max))
	return n, err
}

// PruneUsage implements [usage.Store].
func (s *Store) PruneUsage(ctx context.Context, before time.Time, max int) (int, error) {
	return s.exec(ctx, "remove old usage", pruneUsageSQL, before.UnixMilli(), max)
}

// PruneRequests implements [usage.Store].
func (s *Store) PruneRequests(ctx context.Context, before time.Time, max int) (int, error) {
	return s.exec(ctx, "remove old requests", pruneRequestsSQL, before.UnixMilli(), max)
}
