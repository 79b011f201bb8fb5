package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/seed503877ad/limits/internal/overrides"
)

const (
	nextRevisionSQL = `UPDATE override_revision SET changed = changed + 1`

	nextRemovalSQL = `UPDATE override_revision SET changed = changed + 1, removed = changed + 1`

	countOverridesSQL = `SELECT count(*) FROM overrides WHERE (policy, name, subject) <> (?, ?, ?)`

	putOverrideSQL = `
INSERT INTO overrides (policy, name, subject, body, revision) SELECT ?, ?, ?, ?, changed FROM override_revision WHERE true
ON CONFLICT (policy, name, subject) DO UPDATE SET body = excluded.body, revision = excluded.revision`

	deleteOverrideSQL = `DELETE FROM overrides WHERE policy = ? AND name = ? AND subject = ?`

	pruneOverridesSQL = `
DELETE FROM overrides WHERE (policy, name, subject) IN (
	SELECT policy, name, subject FROM overrides WHERE json_extract(body, '$.expiresAt') < ?1 LIMIT ?2)`

	overrideColumns = `policy, name, subject, body`

	listOverridesSQL = `
SELECT ` + overrideColumns + ` FROM overrides WHERE (policy, name, subject) > (?1, ?2, ?3)
ORDER BY policy, name, subject LIMIT ?4`

	listOverridesOfPolicySQL = `
SELECT ` + overrideColumns + ` FROM overrides WHERE policy = ?5 AND (policy, name, subject) > (?1, ?2, ?3)
ORDER BY policy, name, subject LIMIT ?4`

	readRevisionSQL = `SELECT changed, removed FROM override_revision`

	changedOverridesSQL = `SELECT ` + overrideColumns + ` FROM overrides WHERE revision > ? ORDER BY revision`
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
		others, _, err := first(readInTx(s, oneColumn[int], countOverridesSQL, o.Policy, o.Name, o.Subject))
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
	n, err := s.removeOverrides(ctx, "remove override", deleteOverrideSQL, id.Policy, id.Name, id.Subject)
	return n > 0, err
}

// PruneOverrides removes up to max overrides that expired before the given time, and returns how
// many.
func (s *Store) PruneOverrides(ctx context.Context, before time.Time, max int) (int, error) {
	return s.removeOverrides(ctx, "remove expired overrides", pruneOverridesSQL, before.UnixMilli(), max)
}

// removeOverrides runs a statement that removes overrides. If it removes none, the revision stays:
// a new one would make every worker read all overrides again.
func (s *Store) removeOverrides(ctx context.Context, act, statement string, args ...any) (n int, err error) {
	err = s.transact(ctx, act, func() (bool, error) {
		removed, err := s.execInTx(statement, args...)
		if n = int(removed); err != nil || n == 0 {
			return false, err
		}
		_, err = s.execInTx(nextRemovalSQL)
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
	return read(ctx, s, "read overrides", overrideFields, query, args...)
}

// OverrideChanges implements [overrides.Store]. It reads the revision first, so a change that is
// committed between the two reads is returned twice rather than missed.
func (s *Store) OverrideChanges(ctx context.Context, since int64) (c overrides.Changes, err error) {
	var revision, removed int64
	if err := s.reader.QueryRowContext(ctx, readRevisionSQL).Scan(&revision, &removed); err != nil {
		return c, fmt.Errorf("read overrides: %w", err)
	}
	c, from := overrides.ChangesAfter(since, revision, removed)
	if from != revision {
		c.Overrides, err = read(ctx, s, "read overrides", overrideFields, changedOverridesSQL, from)
	}
	return c, err
}

// overrideFields returns the scan targets of [overrideColumns].
func overrideFields(o *overrides.Override) []any {
	return []any{&o.Policy, &o.Name, &o.Subject, jsonColumn{o}}
}
