package sqlite

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/columns"
)

var _ alerts.Store = (*Store)(nil)

const (
	alertSQL = `SELECT ` + columns.Alert + ` FROM alerts WHERE id = ?1`

	alertsFilter = `
SELECT ` + columns.Alert + ` FROM alerts WHERE (raised_at, id) < (?2, ?3) AND (?4 = '' OR rule = ?4) AND (?5 = '' OR policy = ?5)`

	alertsOrder = ` ORDER BY raised_at DESC, id DESC LIMIT ?1`

	listAlertsSQL = alertsFilter + alertsOrder

	listOpenAlertsSQL = alertsFilter + ` AND resolved_at = 0` + alertsOrder

	listAlertsOfUserSQL = alertsFilter + ` AND username = ?6` + alertsOrder

	// The plus keeps SQLite from using the index of open alerts.
	listOpenAlertsOfUserSQL = alertsFilter + ` AND +resolved_at = 0 AND username = ?6` + alertsOrder
)

// Alerts implements [alerts.Store].
func (s *Store) Alerts(ctx context.Context, f alerts.AlertFilter) ([]alerts.Alert, error) {
	args := []any{f.Max, cmp.Or(f.Before, math.MaxInt64), f.BeforeID, f.Rule, f.Policy}
	query := listAlertsSQL
	switch {
	case f.User != "" && f.OpenOnly:
		query, args = listOpenAlertsOfUserSQL, append(args, f.User)
	case f.User != "":
		query, args = listAlertsOfUserSQL, append(args, f.User)
	case f.OpenOnly:
		query = listOpenAlertsSQL
	}
	return read(ctx, s, "read alerts", columns.OfAlert, query, args...)
}

// Alert implements [alerts.Store].
func (s *Store) Alert(ctx context.Context, id string) (alerts.Alert, bool, error) {
	return first(read(ctx, s, "read alert", columns.OfAlert, alertSQL, id))
}

const (
	pruneAlertsSQL = `
DELETE FROM alerts WHERE id IN (
	SELECT id FROM alerts WHERE resolved_at > 0 AND resolved_at < ?1 AND (notice <> 'held' OR digest <> '')
	ORDER BY resolved_at LIMIT ?2)`

	pruneDeliveriesSQL = `
DELETE FROM alert_deliveries WHERE id IN (
	SELECT id FROM alert_deliveries WHERE ended_at > 0 AND ended_at < ?1 ORDER BY ended_at LIMIT ?2)`

	pruneSilencesSQL = `
DELETE FROM alert_silences WHERE id IN (
	SELECT id FROM alert_silences WHERE expires_at < ?1 ORDER BY expires_at LIMIT ?2)`

	prunePoisonSQL = `
DELETE FROM alert_poison WHERE sequence IN (
	SELECT sequence FROM alert_poison WHERE kept_at < ?1 ORDER BY kept_at LIMIT ?2)`

	pruneGroupsSQL = `
DELETE FROM alert_groups WHERE (rule, grp) IN (
	SELECT rule, grp FROM alert_groups g WHERE changed_at < ?1
	AND NOT EXISTS (SELECT 1 FROM alerts a WHERE a.rule = g.rule AND a.grp = g.grp AND a.resolved_at = 0)
	ORDER BY changed_at LIMIT ?2)`

	pruneTakenSQL = `
DELETE FROM alert_events WHERE id IN (
	SELECT id FROM alert_events WHERE taken_at < ?1 ORDER BY taken_at LIMIT ?2)`
)

// PruneAlerts implements [alerts.Store].
func (s *Store) PruneAlerts(ctx context.Context, before time.Time, max int) (total int, err error) {
	for _, p := range []struct{ act, statement string }{
		{"remove old alerts", pruneAlertsSQL},
		{"remove old deliveries", pruneDeliveriesSQL},
		{"remove old silences", pruneSilencesSQL},
		{"remove old poison messages", prunePoisonSQL},
	} {
		n, err := s.change(ctx, p.act, p.statement, before.UnixMilli(), max)
		if err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// PruneTaken implements [alerts.Store].
func (s *Store) PruneTaken(ctx context.Context, before time.Time, max int) (int, error) {
	return s.change(ctx, "remove old event ids", pruneTakenSQL, before.UnixMilli(), max)
}

// PruneGroups implements [alerts.Store].
func (s *Store) PruneGroups(ctx context.Context, before time.Time, max int) (int, error) {
	return s.change(ctx, "remove old event groups", pruneGroupsSQL, before.UnixMilli(), max)
}
