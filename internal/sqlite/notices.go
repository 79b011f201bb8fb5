package sqlite

import (
	"context"
	"errors"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/columns"
)

const (
	pendingAlertsSQL = `
SELECT ` + columns.Alert + ` FROM alerts WHERE notice = 'pending' AND due_at <= ?1 ORDER BY due_at LIMIT ?2`

	// Alerts that were claimed while the clock was ahead.
	pendingAheadSQL = `
SELECT ` + columns.Alert + ` FROM alerts WHERE notice = 'pending' AND due_at > ?1 ORDER BY due_at LIMIT ?2`

	claimAlertSQL = `UPDATE alerts SET due_at = ?2 WHERE id = ?1`

	saveNoticeSQL = `
UPDATE alerts SET notice = ?2, reason = ?3, notice_at = ?4, held_until = ?5 WHERE id = ?1 AND +notice = 'pending'`

	resolvable = `
SELECT ` + columns.Alert + ` FROM alerts WHERE resolved_at = 0 AND notice <> 'pending' AND resolve_at `

	resolvableAlertsSQL = resolvable + `<= ?1 ORDER BY resolve_at LIMIT ?2`

	resolvableAheadSQL = resolvable + `> ?1 ORDER BY resolve_at LIMIT ?2`

	resolveAlertSQL = `UPDATE alerts SET resolved_at = ?2 WHERE id = ?1`

	heldNow = `notice = 'held' AND digest = '' AND (held_until <= ?1 OR held_until > ?4)`

	heldUsersSQL = `
SELECT DISTINCT username FROM alerts WHERE ` + heldNow + ` AND username > ?2
ORDER BY username LIMIT ?3`

	// The first page may begin with alerts without a user.
	allHeldUsersSQL = `
SELECT DISTINCT username FROM alerts WHERE ` + heldNow + ` AND username >= ?2
ORDER BY username LIMIT ?3`

	heldAlertsSQL = `
SELECT ` + columns.Alert + ` FROM alerts WHERE ` + heldNow + ` AND username = ?2
ORDER BY raised_at, id LIMIT ?3`

	digestAlertSQL = `UPDATE alerts SET digest = ?2 WHERE id = ?1`

	holdAlertSQL = `UPDATE alerts SET held_until = ?2 WHERE id = ?1`
)

// PendingAlerts implements [alerts.Store].
func (s *Store) PendingAlerts(ctx context.Context, max int, lease time.Duration) (all []alerts.Alert, now int64, err error) {
	err = s.transact(ctx, "claim pending alerts", func() (bool, error) {
		now = s.now().UnixMilli()
		all, err = readInTx(s, columns.OfAlert, pendingAlertsSQL, now, max)
		if err == nil && len(all) == 0 {
			all, err = readInTx(s, columns.OfAlert, pendingAheadSQL, now+time.Hour.Milliseconds(), max)
		}
		if err != nil {
			return false, err
		}
		return len(all) > 0, s.eachAlert(all, claimAlertSQL, now+lease.Milliseconds())
	})
	if err != nil {
		return nil, 0, err
	}
	return all, now, nil
}

// eachAlert runs a statement with each alert's id and a value.
func (s *Store) eachAlert(all []alerts.Alert, statement string, value any) error {
	for i := range all {
		if _, err := s.execInTx(statement, all[i].ID, value); err != nil {
			return err
		}
	}
	return nil
}

// SaveNotices implements [alerts.Store].
func (s *Store) SaveNotices(ctx context.Context, all []alerts.NoticeDecision) (changed []string, err error) {
	err = s.transact(ctx, "store alert notices", func() (bool, error) {
		now := s.now().UnixMilli()
		for i := range all {
			t := &all[i]
			n, err := s.execInTx(saveNoticeSQL, t.Alert, string(t.Notice), t.Reason, now, t.HeldUntil)
			if err != nil {
				return false, err
			}
			if n == 0 {
				continue
			}
			changed = append(changed, t.Alert)
			if err := s.addDeliveries(now, t.Deliveries); err != nil {
				return false, err
			}
		}
		return len(changed) > 0, nil
	})
	if err != nil {
		return nil, err
	}
	return changed, nil
}

// ResolveAlerts implements [alerts.Store].
func (s *Store) ResolveAlerts(ctx context.Context, max int, build func(alerts.Alert) ([]alerts.Delivery, error)) (n int, err error) {
	err = s.transact(ctx, "resolve alerts", func() (bool, error) {
		now := s.now().UnixMilli()
		due, err := readInTx(s, columns.OfAlert, resolvableAlertsSQL, now, max)
		if err == nil && len(due) < max {
			var ahead []alerts.Alert
			ahead, err = readInTx(s, columns.OfAlert, resolvableAheadSQL, now+alerts.MaxResolveDelay.Milliseconds(), max-len(due))
			due = append(due, ahead...)
		}
		if n = len(due); err != nil || n == 0 {
			return false, err
		}
		for i := range due {
			due[i].ResolvedAt = now
			deliveries, err := build(due[i])
			if err != nil {
				return false, err
			}
			if err := s.addDeliveries(now, deliveries); err != nil {
				return false, err
			}
		}
		return true, s.eachAlert(due, resolveAlertSQL, now)
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// HeldUsers implements [alerts.Store].
func (s *Store) HeldUsers(ctx context.Context, after string, max int) ([]string, error) {
	query := heldUsersSQL
	if after == "" {
		query = allHeldUsersSQL
	}
	now := s.now().UnixMilli()
	return read(ctx, s, "read users with held alerts", columns.One[string], query, now+alerts.DigestLead.Milliseconds(), after, max, now+alerts.MaxHoldDelay.Milliseconds())
}

// errNoName prevents a digest without a name, whose alerts would be sent again and again.
var errNoName = errors.New("the digest has no name")

// DigestAlerts implements [alerts.Store].
func (s *Store) DigestAlerts(ctx context.Context, user string, max int, build func(held []alerts.Alert, now int64) (alerts.DigestDecision, error)) (n int, err error) {
	err = s.transact(ctx, "write a digest", func() (bool, error) {
		now := s.now().UnixMilli()
		held, err := readInTx(s, columns.OfAlert, heldAlertsSQL, now+alerts.DigestLead.Milliseconds(), user, max, now+alerts.MaxHoldDelay.Milliseconds())
		if n = len(held); err != nil || n == 0 {
			return false, err
		}
		made, err := build(held, now)
		if err != nil {
			return false, err
		}
		if err := s.addDeliveries(now, made.Deliveries); err != nil {
			return false, err
		}
		return true, s.writeDigest(held, &made)
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

func (s *Store) writeDigest(held []alerts.Alert, made *alerts.DigestDecision) (err error) {
	for i := range held {
		until, later := made.Postponed[held[i].ID]
		switch {
		case later:
			_, err = s.execInTx(holdAlertSQL, held[i].ID, until)
		case made.Name == "":
			err = errNoName
		default:
			_, err = s.execInTx(digestAlertSQL, held[i].ID, made.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
