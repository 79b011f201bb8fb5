package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/overrides"
)

const (
	// The revision row stays locked until the commit, so changes are committed one after another.
	nextRevisionSQL = `
UPDATE override_revision SET changed = changed + 1 WHERE one RETURNING changed`

	nextRemovalSQL = `
UPDATE override_revision SET changed = changed + 1, removed = changed + 1 WHERE one`

	countOverridesSQL = `
SELECT count(*) FROM overrides WHERE (policy, name, subject) <> ($1, $2, $3)`

	putOverrideSQL = `
INSERT INTO overrides (policy, name, subject, body, revision) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (policy, name, subject) DO UPDATE SET body = excluded.body, revision = excluded.revision`

	deleteOverrideSQL = `
DELETE FROM overrides WHERE policy = $1 AND name = $2 AND subject = $3`

	pruneOverridesSQL = `
DELETE FROM overrides WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM overrides WHERE (body::json->>'expiresAt')::bigint < $1 ORDER BY policy, name, subject LIMIT $2))`

	overrideColumns = `policy, name, subject, body`

	listOverridesSQL = `
SELECT ` + overrideColumns + ` FROM overrides WHERE (policy, name, subject) > ($1, $2, $3)
ORDER BY policy, name, subject LIMIT $4`

	listOverridesOfPolicySQL = `
SELECT ` + overrideColumns + ` FROM overrides WHERE policy = $5 AND (policy, name, subject) > ($1, $2, $3)
ORDER BY policy, name, subject LIMIT $4`

	readRevisionSQL = `
SELECT changed, removed FROM override_revision WHERE one`

	changedOverridesSQL = `
SELECT ` + overrideColumns + ` FROM overrides WHERE revision > $1 ORDER BY revision`
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

// removeOverrides runs a statement that removes overrides. It sets the revision first, as
// PutOverride does: all lock in the same order.
func (s *Store) removeOverrides(ctx context.Context, act, statement string, args ...any) (n int, err error) {
	err = pgx.BeginFunc(ctx, s.relay, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, nextRemovalSQL); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, statement, args...)
		if n = int(tag.RowsAffected()); err == nil && n == 0 {
			return errNothing
		}
		return err
	})
	if err != nil && !errors.Is(err, errNothing) {
		return 0, fmt.Errorf("%s: %w", act, err)
	}
	return n, nil
}

// errNothing rolls back the new revision, which would make every worker read all overrides again.
var errNothing = errors.New("nothing to remove")

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
	if err := s.relay.QueryRow(ctx, readRevisionSQL).Scan(&revision, &removed); err != nil {
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
