package postgres

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/columns"
)

const (
	// Also returns the previous due_at, because UPDATE returns rows in no particular order. A row
	// that moved before it was locked stays until the next time. The minute is for a claim of an
	// hour by a statement that began later and was quicker.
	pendingAlertsSQL = `
WITH due AS MATERIALIZED (
	SELECT ctid, due_at FROM alerts WHERE notice = 'pending' AND (due_at <= ` + startMillis + ` OR due_at > ` + startMillis + ` + 3660000)
	ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE alerts a SET due_at = ` + startMillis + ` + $2 FROM due WHERE a.ctid = due.ctid RETURNING ` + columns.Alert + `, due.due_at`

	lockPendingSQL = `
SELECT a.id FROM unnest($1::text[]) AS u (id)
CROSS JOIN LATERAL (SELECT id, notice FROM alerts WHERE id BETWEEN u.id AND u.id ORDER BY id LIMIT 1 FOR UPDATE) a
WHERE a.notice = 'pending'`

	saveNoticesSQL = `
UPDATE alerts a SET notice = u.notice, reason = u.reason, notice_at = ` + nowMillis + `, held_until = u.held_until
FROM (
	SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS u (id, notice, reason, held_until)` + thoseAlerts

	resolvable = `
SELECT ` + columns.Alert + ` FROM alerts a
WHERE resolved_at = 0 AND notice <> 'pending' AND resolve_at `

	resolvableAlertsSQL = resolvable + `<= ` + startMillis + `
ORDER BY resolve_at LIMIT $1 FOR UPDATE SKIP LOCKED`

	// A statement of its own: with both conditions in one, all open alerts would be read.
	resolvableAheadSQL = resolvable + `> ` + startMillis + ` + $2
ORDER BY resolve_at LIMIT $1 FOR UPDATE SKIP LOCKED`

	resolveAlertsSQL = `
UPDATE alerts a SET resolved_at = $1 FROM (
	SELECT * FROM unnest($2::text[]) AS u (id)` + thoseAlerts

	heldNow = `notice = 'held' AND digest = '' AND (held_until <= ` + startMillis + ` + $3 OR held_until > ` + startMillis + ` + $4)`

	heldUsersSQL = `
SELECT DISTINCT username FROM alerts
WHERE ` + heldNow + ` AND username >= $1
ORDER BY username LIMIT $2`

	// Waits for locked alerts: left out, they would be in no digest for another hour. They are locked
	// in order of id, as in Take.
	heldAlertsSQL = `
SELECT ` + columns.Alert + `
FROM unnest(ARRAY(
	SELECT id FROM (
		SELECT id FROM alerts WHERE ` + heldNow + ` AND username BETWEEN $1 AND $1
		ORDER BY username, raised_at, id LIMIT $2
	) h ORDER BY id
)) AS i (id)
CROSS JOIN LATERAL (SELECT * FROM alerts WHERE id BETWEEN i.id AND i.id ORDER BY id LIMIT 1 FOR UPDATE) a
WHERE ` + heldNow + `
ORDER BY raised_at, a.id`

	digestAlertsSQL = `
UPDATE alerts a SET digest = $1 FROM (
	SELECT * FROM unnest($2::text[]) AS u (id)` + thoseAlerts

	holdAlertsSQL = `
UPDATE alerts a SET held_until = u.held_until FROM (
	SELECT * FROM unnest($1::text[], $2::bigint[]) AS u (id, held_until)` + thoseAlerts
)

// claimed is a row with its due time before the claim.
type claimed[R any] struct {
	row R
	due int64
}

// inOrder returns the rows of a claim, the first due first.
func inOrder[R any](all []claimed[R], id func(*R) string) []R {
	slices.SortFunc(all, func(a, b claimed[R]) int {
		return cmp.Or(cmp.Compare(a.due, b.due), strings.Compare(id(&a.row), id(&b.row)))
	})
	return column(all, func(c *claimed[R]) R { return c.row })
}

// PendingAlerts implements [alerts.Store].
func (s *Store) PendingAlerts(ctx context.Context, max int, lease time.Duration) (all []alerts.Alert, now int64, err error) {
	err = s.transact(ctx, "claim pending alerts", func(tx pgx.Tx) (err error) {
		var found []claimed[alerts.Alert]
		fields := func(c *claimed[alerts.Alert]) []any { return append(columns.OfAlert(&c.row), &c.due) }
		found, now, err = lockAlerts(ctx, tx, fields, pendingAlertsSQL, max, lease.Milliseconds())
		all = inOrder(found, func(a *alerts.Alert) string { return a.ID })
		return err
	})
	return all, now, err
}

// SaveNotices implements [alerts.Store].
func (s *Store) SaveNotices(ctx context.Context, all []alerts.NoticeDecision) (changed []string, err error) {
	if len(all) == 0 {
		return nil, nil
	}
	byID := make(map[string]*alerts.NoticeDecision, len(all))
	for i := range slices.Backward(all) { // of two results for one alert, the first counts
		byID[all[i].Alert] = &all[i]
	}
	ids := sortedUnique(column(all, func(t *alerts.NoticeDecision) string { return t.Alert }))
	err = s.transact(ctx, "store alert notices", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, lockPendingSQL, ids)
		if changed, err = collect(rows, err, columns.One[string]); err != nil || len(changed) == 0 {
			return err
		}
		return writeNotices(ctx, tx, changed, byID)
	})
	if err != nil {
		return nil, err
	}
	return changed, nil
}

func writeNotices(ctx context.Context, tx pgx.Tx, ids []string, byID map[string]*alerts.NoticeDecision) error {
	decided := make([]*alerts.NoticeDecision, len(ids))
	var deliveries []alerts.Delivery
	for i, id := range ids {
		decided[i] = byID[id]
		deliveries = append(deliveries, decided[i].Deliveries...)
	}
	var b pgx.Batch
	b.Queue(saveNoticesSQL, ids,
		column(decided, func(t **alerts.NoticeDecision) string { return string((*t).Notice) }),
		column(decided, func(t **alerts.NoticeDecision) string { return sanitize((*t).Reason) }),
		column(decided, func(t **alerts.NoticeDecision) int64 { return (*t).HeldUntil }))
	if err := queueDeliveries(&b, deliveries); err != nil {
		return err
	}
	return tx.SendBatch(ctx, &b).Close()
}

// lockAlerts runs a query that locks alerts, and then reads the clock.
func lockAlerts[R any](ctx context.Context, tx pgx.Tx, fields func(*R) []any, query string, args ...any) (all []R, now int64, err error) {
	var b pgx.Batch
	b.Queue(query, args...).Query(func(rows pgx.Rows) (err error) {
		all, err = collect(rows, nil, fields)
		return err
	})
	b.Queue(alertClockSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	err = tx.SendBatch(ctx, &b).Close()
	return all, now, err
}

func idsOf(all []alerts.Alert) []string {
	return column(all, func(a *alerts.Alert) string { return a.ID })
}

// ResolveAlerts implements [alerts.Store].
func (s *Store) ResolveAlerts(ctx context.Context, max int, build func(alerts.Alert) ([]alerts.Delivery, error)) (n int, err error) {
	err = s.transact(ctx, "resolve alerts", func(tx pgx.Tx) error {
		due, now, err := lockAlerts(ctx, tx, columns.OfAlert, resolvableAlertsSQL, max)
		if err == nil && len(due) < max {
			var ahead []alerts.Alert
			ahead, now, err = lockAlerts(ctx, tx, columns.OfAlert, resolvableAheadSQL, max-len(due), alerts.MaxResolveDelay.Milliseconds())
			due = append(due, ahead...)
		}
		if n = len(due); err != nil || n == 0 {
			return err
		}
		var deliveries []alerts.Delivery
		for i := range due {
			due[i].ResolvedAt = now
			built, err := build(due[i])
			if err != nil {
				return err
			}
			deliveries = append(deliveries, built...)
		}
		var b pgx.Batch
		b.Queue(resolveAlertsSQL, now, idsOf(due))
		if err := queueDeliveries(&b, deliveries); err != nil {
			return err
		}
		return tx.SendBatch(ctx, &b).Close()
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// HeldUsers implements [alerts.Store].
func (s *Store) HeldUsers(ctx context.Context, after string, max int) ([]string, error) {
	from := after
	if after != "" {
		from += "\x01" // the next string after it: no text has a NUL
	}
	return read(ctx, s, "read users with held alerts", columns.One[string], heldUsersSQL, from, max, alerts.DigestLead.Milliseconds(), alerts.MaxHoldDelay.Milliseconds())
}

// errNoName prevents a digest without a name, whose alerts would be sent again and again.
var errNoName = errors.New("the digest has no name")

// DigestAlerts implements [alerts.Store].
func (s *Store) DigestAlerts(ctx context.Context, user string, max int, build func(held []alerts.Alert, now int64) (alerts.DigestDecision, error)) (n int, err error) {
	err = s.transact(ctx, "write a digest", func(tx pgx.Tx) error {
		held, now, err := lockAlerts(ctx, tx, columns.OfAlert, heldAlertsSQL, user, max, alerts.DigestLead.Milliseconds(), alerts.MaxHoldDelay.Milliseconds())
		if n = len(held); err != nil || n == 0 {
			return err
		}
		made, err := build(held, now)
		if err != nil {
			return err
		}
		var told, later []string
		var until []int64
		for i := range held {
			if at, wait := made.Postponed[held[i].ID]; wait {
				later, until = append(later, held[i].ID), append(until, at)
				continue
			}
			told = append(told, held[i].ID)
		}
		if made.Name == "" && len(told) > 0 {
			return errNoName
		}
		var b pgx.Batch
		b.Queue(digestAlertsSQL, made.Name, told)
		b.Queue(holdAlertsSQL, later, until)
		if err := queueDeliveries(&b, made.Deliveries); err != nil {
			return err
		}
		return tx.SendBatch(ctx, &b).Close()
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}
