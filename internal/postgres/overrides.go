package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/columns"
	"github.com/seed503877ad/limits/internal/overrides"
)

const (
	// The revision row stays locked until the commit, so changes are committed one after another.
	nextRevisionSQL = `
UPDATE override_revision SET changed = changed + 1 WHERE one RETURNING changed`

	lockRevisionSQL = readRevisionSQL + ` FOR UPDATE`

	// The column removed is all that tells an older limiter of a removal, and others of one that an older limiter has made.
	nextRemovalSQL = `
UPDATE override_revision SET changed = changed + 1, removed = changed + 1 WHERE one`

	countOverridesSQL = `
SELECT count(*) FROM overrides WHERE (policy, name, subject) <> ($1, $2, $3)`

	putOverrideSQL = `
INSERT INTO overrides (policy, name, subject, body, revision) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (policy, name, subject) DO UPDATE SET body = excluded.body, revision = excluded.revision`

	deleteOverrideSQL = `
WITH gone AS (
	DELETE FROM overrides WHERE policy = $3 AND name = $4 AND subject = $5 RETURNING policy, name, subject
)` + keepRemovalsSQL

	pruneOverridesSQL = `
WITH gone AS (
	DELETE FROM overrides WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM overrides WHERE (body::json->>'expiresAt')::bigint < $3 ORDER BY policy, name, subject LIMIT $4))
	RETURNING policy, name, subject
)` + keepRemovalsSQL

	keepRemovalsSQL = `
INSERT INTO override_removals (revision, previous, policy, name, subject, at)
SELECT $1::bigint + 1, $2, policy, name, subject, ` + startMillis + ` FROM gone`

	forgetRemovalsSQL = `
DELETE FROM override_removals WHERE revision <= (
	SELECT max(revision) FROM (SELECT revision, at FROM override_removals ORDER BY revision LIMIT $2) oldest
	WHERE at < ` + startMillis + ` - $1)`

	listOverridesSQL = `
SELECT ` + columns.Override + ` FROM overrides WHERE (policy, name, subject) > ($1, $2, $3)
ORDER BY policy, name, subject LIMIT $4`

	listOverridesOfPolicySQL = `
SELECT ` + columns.Override + ` FROM overrides WHERE policy = $5 AND (policy, name, subject) > ($1, $2, $3)
ORDER BY policy, name, subject LIMIT $4`

	readRevisionSQL = `
SELECT changed, removed FROM override_revision WHERE one`

	removedOverridesSQL = `
SELECT ` + columns.Removal + ` FROM override_removals WHERE revision > $1 ORDER BY revision`

	changedOverridesSQL = `
SELECT ` + columns.Override + ` FROM overrides WHERE revision > $1 ORDER BY revision`
)

// PutOverride implements [overrides.Store].
func (s *Store) PutOverride(ctx context.Context, o overrides.Override, max int) error {
	body, err := json.Marshal(&o)
	if err != nil {
		return fmt.Errorf("write override: %w", err)
	}
	err = pgx.BeginFunc(ctx, s.relay, func(tx pgx.Tx) error {
		var revision, others int64
		if err := tx.QueryRow(ctx, nextRevisionSQL).Scan(&revision); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, countOverridesSQL, o.Policy, o.Name, o.Subject).Scan(&others); err != nil {
			return err
		}
		if others >= int64(max) {
			return overrides.ErrFull
		}
		_, err := tx.Exec(ctx, putOverrideSQL, o.Policy, o.Name, o.Subject, string(body), revision)
		return err
	})
	if err != nil {
		return fmt.Errorf("write override: %w", err)
	}
	return nil
}

// DeleteOverride implements [overrides.Store].
func (s *Store) DeleteOverride(ctx context.Context, id overrides.ID) (found bool, err error) {
	n, err := s.removeOverrides(ctx, "remove override", deleteOverrideSQL, id.Policy, id.Name, id.Subject)
	return n > 0, err
}

// PruneOverrides removes up to max overrides that expired before the given time, and returns how
// many.
func (s *Store) PruneOverrides(ctx context.Context, before time.Time, max int) (int, error) {
	return s.removeOverrides(ctx, "remove expired overrides", pruneOverridesSQL, before.UnixMilli(), max)
}

// forgetBatch is how many old removals are forgotten with each new one, or batch of them: more than are added. Removals of
// one revision are forgotten together, or [overrides.ChangesSince] would not see that some are missing.
const forgetBatch = 1000

// removeOverrides runs a statement that removes overrides and keeps their removals. It locks the revision first, as
// PutOverride does: all lock in the same order.
func (s *Store) removeOverrides(ctx context.Context, act, statement string, args ...any) (n int, err error) {
	err = s.transact(ctx, act, func(tx pgx.Tx) error {
		var revision, removed int64
		if err := tx.QueryRow(ctx, lockRevisionSQL).Scan(&revision, &removed); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, forgetRemovalsSQL, overrides.KeepRemovals.Milliseconds(), forgetBatch); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, statement, append([]any{revision, removed}, args...)...)
		if n = int(tag.RowsAffected()); err != nil || n == 0 {
			return err
		}
		_, err = tx.Exec(ctx, nextRemovalSQL)
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// ListOverrides implements [overrides.Store].
func (s *Store) ListOverrides(ctx context.Context, f overrides.Filter) ([]overrides.Override, error) {
	query, args := listOverridesSQL, []any{f.After.Policy, f.After.Name, f.After.Subject, f.Max}
	if f.Policy != "" {
		query, args = listOverridesOfPolicySQL, append(args, f.Policy)
	}
	return read(ctx, s, "read overrides", columns.OfOverride, query, args...)
}

// OverrideChanges implements [overrides.Store].
func (s *Store) OverrideChanges(ctx context.Context, since int64) (overrides.Changes, error) {
	return overrides.ChangesSince(since, overrides.Source{
		Revisions: func() (changed, removed int64, err error) {
			if err = s.relay.QueryRow(ctx, readRevisionSQL).Scan(&changed, &removed); err != nil {
				err = fmt.Errorf("read overrides: %w", err)
			}
			return changed, removed, err
		},
		Removals: func(after int64) ([]overrides.Removal, error) {
			return read(ctx, s, "read removed overrides", columns.OfRemoval, removedOverridesSQL, after)
		},
		Set: func(after int64) ([]overrides.Override, error) {
			return read(ctx, s, "read overrides", columns.OfOverride, changedOverridesSQL, after)
		},
	})
}
