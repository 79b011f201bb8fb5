package postgres

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
	// BETWEEN and ORDER BY make the planner use the primary key. With plain equality it may take
	// any index, if the table was small when it last looked.
	alertSQL = `
SELECT ` + columns.Alert + ` FROM alerts a WHERE id BETWEEN $1 AND $1 ORDER BY id LIMIT 1`

	// thoseAlerts joins the rows of u, which are locked, as in [alertSQL]. OFFSET 0 keeps
	// the planner's estimate of their number.
	thoseAlerts = `
	CROSS JOIN LATERAL (SELECT ctid AS place FROM alerts WHERE id BETWEEN u.id AND u.id ORDER BY id LIMIT 1) p OFFSET 0
) u WHERE a.ctid = u.place`

	alertsFilter = `
SELECT ` + columns.Alert + ` FROM alerts a
WHERE (raised_at, id) < ($2, $3) AND ($4 = '' OR rule = $4) AND ($5 = '' OR policy = $5)`

	alertsOrder = `
ORDER BY raised_at DESC, id DESC LIMIT $1`

	listAlertsSQL = alertsFilter + alertsOrder

	listOpenAlertsSQL = alertsFilter + ` AND resolved_at = 0` + alertsOrder

	// Not username = $6: the planner might read the alerts of all users in order of time.
	ofUser = ` AND username BETWEEN $6 AND $6
ORDER BY username, raised_at DESC, id DESC LIMIT $1`

	listAlertsOfUserSQL = alertsFilter + ofUser

	// Not resolved_at = 0: if the table has grown and was never analyzed, the planner would read
	// and sort the open alerts of all users.
	listOpenAlertsOfUserSQL = alertsFilter + ` AND resolved_at BETWEEN 0 AND 0` + ofUser
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

// Rows to remove are found through an index and locked. Rows that another transaction holds are
// skipped, as in expire.go.
const (
	pruneAlertsSQL = `
DELETE FROM alerts WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM alerts WHERE resolved_at > 0 AND resolved_at < $1 AND (notice <> 'held' OR digest <> '')
	ORDER BY resolved_at LIMIT $2 FOR UPDATE SKIP LOCKED))`

	pruneDeliveriesSQL = `
DELETE FROM alert_deliveries WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM alert_deliveries WHERE ended_at > 0 AND ended_at < $1
	ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED))`

	pruneSilencesSQL = `
DELETE FROM alert_silences WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM alert_silences WHERE expires_at < $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))`

	prunePoisonSQL = `
DELETE FROM alert_poison WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM alert_poison WHERE kept_at < $1 ORDER BY kept_at LIMIT $2 FOR UPDATE SKIP LOCKED))`

	// A transaction that raises an alert changes its group, so an alert that was raised meanwhile
	// is noticed when the group is locked.
	pruneGroupsSQL = `
DELETE FROM alert_groups WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM alert_groups g WHERE changed_at < $1
	AND (
		SELECT id FROM alerts WHERE grp BETWEEN g.grp AND g.grp AND rule = g.rule AND resolved_at = 0
		ORDER BY grp LIMIT 1
	) IS NULL
	ORDER BY changed_at LIMIT $2 FOR UPDATE SKIP LOCKED))`

	pruneTakenSQL = `
DELETE FROM alert_events WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM alert_events WHERE taken_at < $1 ORDER BY taken_at LIMIT $2 FOR UPDATE SKIP LOCKED))`
)

// PruneAlerts implements [alerts.Store].
func (s *Store) PruneAlerts(ctx context.Context, before time.Time, max int) (total int, err error) {
	for _, p := range []struct{ act, statement string }{
		{"remove old alerts", pruneAlertsSQL},
		{"remove old deliveries", pruneDeliveriesSQL},
		{"remove old silences", pruneSilencesSQL},
		{"remove old poison messages", prunePoisonSQL},
	} {
		n, err := s.exec(ctx, p.act, p.statement, before.UnixMilli(), max)
		if err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// PruneTaken implements [alerts.Store].
func (s *Store) PruneTaken(ctx context.Context, before time.Time, max int) (int, error) {
	return s.exec(ctx, "remove old event ids", pruneTakenSQL, before.UnixMilli(), max)
}

// PruneGroups implements [alerts.Store].
func (s *Store) PruneGroups(ctx context.Context, before time.Time, max int) (int, error) {
	return s.exec(ctx, "remove old event groups", pruneGroupsSQL, before.UnixMilli(), max)
}
