package sqlite

import (
	"context"
	"time"

	"github.com/seed503877ad/limits/internal/usage"
)

var _ usage.Store = (*Store)(nil)

const (
	addUsageSQL = `
INSERT INTO usage_counts AS c (minutes, at, key, policy, user_name, allowed, denied, cost, peak)
VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?5 + ?6)
ON CONFLICT (minutes, at, key, policy, user_name) DO UPDATE SET
	allowed = c.allowed + excluded.allowed, denied = c.denied + excluded.denied, cost = c.cost + excluded.cost,
	peak = c.peak + excluded.peak`

	addRequestSQL = `
INSERT INTO usage_requests (at, key, user_name, endpoint, method, status, millis) VALUES (?, ?, ?, ?, ?, ?, ?)`
)

// AddUsage implements [usage.Store]. Decisions wait for it, so there should be few counts.
func (s *Store) AddUsage(ctx context.Context, counts []usage.Count) error {
	return s.transact(ctx, "write usage", func() (bool, error) {
		for i := range counts {
			c := &counts[i]
			if _, err := s.execInTx(addUsageSQL, c.At, c.Key, c.Policy, c.User, c.Allowed, c.Denied, c.Cost); err != nil {
				return false, err
			}
		}
		return true, nil
	})
}

// AddRequests implements [usage.Store]. Decisions wait for it, so there should be few requests.
func (s *Store) AddRequests(ctx context.Context, requests []usage.Request) error {
	return s.transact(ctx, "write requests", func() (bool, error) {
		for i := range requests {
			r := &requests[i]
			if _, err := s.execInTx(addRequestSQL, r.At, r.Key, r.User, r.Endpoint, r.Method, r.Status, r.Millis); err != nil {
				return false, err
			}
		}
		return true, nil
	})
}

// topUsageSQL orders by the sum of a column. Sums are capped at the largest integer that JSON
// numbers represent exactly. If the range begins within an hour that was rolled up, all of that
// hour counts.
func topUsageSQL(by string) string {
	return `
SELECT key, policy, user_name, CAST(min(total(allowed), 9007199254740991) AS INTEGER),
	CAST(min(total(denied), 9007199254740991) AS INTEGER), CAST(min(total(cost), 9007199254740991) AS INTEGER), max(peak)
FROM usage_counts
WHERE minutes IN (1, 60) AND at >= ?1 - ?1 % 3600000 AND at < ?2 AND (minutes = 60 OR at >= ?1)
	AND (?3 = '' OR policy = ?3) AND (?4 = '' OR user_name = ?4) AND substr(key, 1, length(?5)) = ?5
GROUP BY key, policy, user_name HAVING total(` + by + `) > 0
ORDER BY total(` + by + `) DESC, key, policy, user_name LIMIT ?6`
}

var topUsageSQLs = map[string]string{
	usage.ByDenied: topUsageSQL("denied"), usage.ByUsed: topUsageSQL("cost"), usage.ByAllowed: topUsageSQL("allowed"),
}

// TopUsage implements [usage.Store].
func (s *Store) TopUsage(ctx context.Context, q usage.TopQuery) ([]usage.Top, error) {
	return read(ctx, s, "read usage", func(t *usage.Top) []any {
		return []any{&t.Key, &t.Policy, &t.User, &t.Allowed, &t.Denied, &t.Cost, &t.Peak}
	}, topUsageSQLs[q.By], q.Since, q.Until, q.Policy, q.User, q.Prefix, q.Max)
}

const (
	loggedSQL = `
FROM usage_requests WHERE at >= ?1 AND at < ?2 AND substr(key, 1, length(?3)) = ?3`

	trafficSQL = `
SELECT key, user_name, count(*), count(*) FILTER (WHERE status >= 500)` + loggedSQL + `
GROUP BY key, user_name ORDER BY count(*) DESC, key, user_name LIMIT ?4`

	// The 95th percentile is the least time that 95 of 100 requests do not exceed, like
	// PostgreSQL's percentile_disc.
	slowestSQL = `
WITH ranked AS (
	SELECT endpoint, method, millis, row_number() OVER (PARTITION BY endpoint, method ORDER BY millis) AS place,
		count(*) OVER (PARTITION BY endpoint, method) AS requests` + loggedSQL + `
)
SELECT endpoint, method, count(*), avg(millis), min(millis) FILTER (WHERE place * 100 >= requests * 95), max(millis)
FROM ranked GROUP BY endpoint, method ORDER BY 5 DESC, endpoint, method LIMIT ?4`

	failuresSQL = `
SELECT endpoint, method, status, count(*)` + loggedSQL + ` AND status >= 500
GROUP BY endpoint, method, status ORDER BY count(*) DESC, endpoint, method, status LIMIT ?4`
)

// Traffic implements [usage.Store].
func (s *Store) Traffic(ctx context.Context, q usage.LogQuery) ([]usage.Traffic, error) {
	return read(ctx, s, "read usage", func(t *usage.Traffic) []any {
		return []any{&t.Key, &t.User, &t.Requests, &t.Errors}
	}, trafficSQL, logArgs(q)...)
}

// SlowestEndpoints implements [usage.Store].
func (s *Store) SlowestEndpoints(ctx context.Context, q usage.LogQuery) ([]usage.Endpoint, error) {
	return read(ctx, s, "read usage", func(e *usage.Endpoint) []any {
		return []any{&e.Endpoint, &e.Method, &e.Requests, &e.Mean, &e.P95, &e.Max}
	}, slowestSQL, logArgs(q)...)
}

// EndpointErrors implements [usage.Store].
func (s *Store) EndpointErrors(ctx context.Context, q usage.LogQuery) ([]usage.Failure, error) {
	return read(ctx, s, "read usage", func(f *usage.Failure) []any {
		return []any{&f.Endpoint, &f.Method, &f.Status, &f.Requests}
	}, failuresSQL, logArgs(q)...)
}

func logArgs(q usage.LogQuery) []any { return []any{q.Since, q.Until, q.Prefix, q.Max} }

const (
	// Reads the same rows as rolledUpSQL removes.
	rollupUsageSQL = `
INSERT INTO usage_counts AS c (minutes, at, key, policy, user_name, allowed, denied, cost, peak)
SELECT 60, at - at % 3600000, key, policy, user_name, sum(allowed), sum(denied), sum(cost), max(peak) FROM (
	SELECT * FROM usage_counts WHERE minutes = 1 AND at < ?1 ORDER BY minutes, at, key, policy, user_name LIMIT ?2)
WHERE true GROUP BY at - at % 3600000, key, policy, user_name
ON CONFLICT (minutes, at, key, policy, user_name) DO UPDATE SET
	allowed = c.allowed + excluded.allowed, denied = c.denied + excluded.denied, cost = c.cost + excluded.cost,
	peak = max(c.peak, excluded.peak)`

	rolledUpSQL = `
DELETE FROM usage_counts WHERE (minutes, at, key, policy, user_name) IN (
	SELECT minutes, at, key, policy, user_name FROM usage_counts WHERE minutes = 1 AND at < ?1
	ORDER BY minutes, at, key, policy, user_name LIMIT ?2)`

	pruneUsageSQL = `
DELETE FROM usage_counts WHERE (minutes, at, key, policy, user_name) IN (
	SELECT minutes, at, key, policy, user_name FROM usage_counts WHERE minutes IN (1, 60) AND at < ?1 LIMIT ?2)`

	pruneRequestsSQL = `
DELETE FROM usage_requests WHERE id IN (SELECT id FROM usage_requests WHERE at < ?1 ORDER BY at LIMIT ?2)`
)

// RollupUsage implements [usage.Store]. Only whole hours are rolled up.
func (s *Store) RollupUsage(ctx context.Context, before time.Time, max int) (int, error) {
	hour := before.Truncate(time.Hour).UnixMilli()
	var n int64
	err := s.transact(ctx, "roll up usage", func() (wrote bool, err error) {
		if _, err = s.execInTx(rollupUsageSQL, hour, max); err != nil {
			return false, err
		}
		n, err = s.execInTx(rolledUpSQL, hour, max)
		return n > 0, err
	})
	if err != nil {
		return 0, err
	}
	return int(n), nil
}

// PruneUsage implements [usage.Store].
func (s *Store) PruneUsage(ctx context.Context, before time.Time, max int) (int, error) {
	return s.change(ctx, "remove old usage", pruneUsageSQL, before.UnixMilli(), max)
}

// PruneRequests implements [usage.Store].
func (s *Store) PruneRequests(ctx context.Context, before time.Time, max int) (int, error) {
	return s.change(ctx, "remove old requests", pruneRequestsSQL, before.UnixMilli(), max)
}
