package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/seed503877ad/limits/internal/columns"
	"github.com/seed503877ad/limits/internal/overrides"
)

const (
	nextRevisionSQL = `UPDATE override_revision SET changed = changed + 1`

	nextRemovalSQL = `UPDATE override_revision SET changed = changed + 1, removed = changed + 1`

	countOverridesSQL = `SELECT count(*) FROM overrides WHERE (policy, name, subject) <> (?, ?, ?)`

	putOverrideSQL = `
INSERT INTO overrides (policy, name, subject, body, revision) SELECT ?, ?, ?, ?, changed FROM override_revision WHERE true
ON CONFLICT (policy, name, subject) DO UPDATE SET body = excluded.body, revision = excluded.revision`

	keepRemovalSQL = keepRemovalsSQL + `policy = ?2 AND name = ?3 AND subject = ?4`

	keepExpiredSQL = keepRemovalsSQL + `json_extract(body, '$.expiresAt') < ?2 LIMIT ?3`

	keepRemovalsSQL = `
INSERT INTO override_removals (revision, previous, policy, name, subject, at)
SELECT changed + 1, removed, policy, name, subject, ?1 FROM overrides, override_revision WHERE `

	deleteRemovedSQL = `
DELETE FROM overrides WHERE (policy, name, subject) IN (
	SELECT policy, name, subject FROM override_removals WHERE revision = (SELECT changed FROM override_revision))`

	forgetRemovalsSQL = `
DELETE FROM override_removals WHERE revision <= (
	SELECT max(revision) FROM (SELECT revision, at FROM override_removals ORDER BY revision LIMIT ?2) WHERE at < ?1)`

	listOverridesSQL = `
SELECT ` + columns.Override + ` FROM overrides WHERE (policy, name, subject) > (?1, ?2, ?3)
ORDER BY policy, name, subject LIMIT ?4`

	listOverridesOfPolicySQL = `
SELECT ` + columns.Override + ` FROM overrides WHERE policy = ?5 AND (policy, name, subject) > (?1, ?2, ?3)
ORDER BY policy, name, subject LIMIT ?4`

	readRevisionSQL = `SELECT changed, removed FROM override_revision`

	removedOverridesSQL = `
SELECT ` + columns.Removal + ` FROM override_removals WHERE revision > ? ORDER BY revision`

	changedOverridesSQL = `SELECT ` + columns.Override + ` FROM overrides WHERE revision > ? ORDER BY revision`
)

// PutOverride implements [overrides.Store].
func (s *Store) PutOverride(ctx context.Context, o overrides.Override, max int) error {
	return s.transact(ctx, "write override", func() (bool, error) {
		body, err := encode(&o)
		if err != nil {
			return false, err
		}
		if _, err := s.execInTx(nextRevisionSQL); err != nil {
			return false, err
		}
		others, _, err := first(readInTx(s, columns.One[int], countOverridesSQL, o.Policy, o.Name, o.Subject))
		if err != nil {
			return false, err
		}
		if others >= max {
			return false, overrides.ErrFull
		}
		_, err = s.execInTx(putOverrideSQL, o.Policy, o.Name, o.Subject, body)
		return true, err
	})
}

// DeleteOverride implements [overrides.Store].
func (s *Store) DeleteOverride(ctx context.Context, id overrides.ID) (found bool, err error) {
	n, err := s.removeOverrides(ctx, "remove override", keepRemovalSQL, id.Policy, id.Name, id.Subject)
	return n > 0, err
}

// PruneOverrides removes up to max overrides that expired before the given time, and returns how
// many.
func (s *Store) PruneOverrides(ctx context.Context, before time.Time, max int) (int, error) {
	return s.removeOverrides(ctx, "remove expired overrides", keepExpiredSQL, before.UnixMilli(), max)
}

// forgetBatch is how many old removals are forgotten with each new one, or batch of them: more than are added. Removals of
// one revision are forgotten together, or [overrides.ChangesSince] would not see that some are missing.
const forgetBatch = 1000

// removeOverrides runs a statement that keeps removals, and then removes those overrides. If there are none, the revision
// stays.
func (s *Store) removeOverrides(ctx context.Context, act, statement string, args ...any) (n int, err error) {
	err = s.transact(ctx, act, func() (bool, error) {
		now := s.now()
		forgotten, err := s.execInTx(forgetRemovalsSQL, now.Add(-overrides.KeepRemovals).UnixMilli(), forgetBatch)
		if err != nil {
			return false, err
		}
		removed, err := s.execInTx(statement, append([]any{now.UnixMilli()}, args...)...)
		if n = int(removed); err != nil || n == 0 {
			return forgotten > 0, err
		}
		if _, err := s.execInTx(nextRemovalSQL); err != nil {
			return false, err
		}
		_, err = s.execInTx(deleteRemovedSQL)
		return true, err
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
			if err = s.reader.QueryRowContext(ctx, readRevisionSQL).Scan(&changed, &removed); err != nil {
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
