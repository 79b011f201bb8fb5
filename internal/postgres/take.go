package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/columns"
)

// To avoid deadlocks, every transaction locks groups before alerts before deliveries, and each of
// them in order. The lateral subqueries make the planner go through the arrays in their order.
const (
	// Waits for another transaction that has just inserted the same id.
	takeEventsSQL = `
INSERT INTO alert_events (id, taken_at)
SELECT id, ` + nowMillis + ` FROM unnest($1::text[]) AS u (id)
ON CONFLICT DO NOTHING RETURNING id`

	// changedAt is rounded up to a whole hour: see migration 5.
	changedAt = `((floor(extract(epoch FROM clock_timestamp()) / 3600) + 1) * 3600000)::bigint`

	// Updates nothing, but locks the existing rows. DO NOTHING would not lock them, and SELECT FOR
	// UPDATE would not see a group that another transaction inserts at the same time.
	lockGroupsSQL = `
INSERT INTO alert_groups AS g (rule, grp, state, changed_at)
SELECT rule, grp, '', ` + changedAt + ` FROM unnest($1::text[], $2::text[]) AS u (rule, grp)
ON CONFLICT (rule, grp) DO UPDATE SET state = g.state WHERE false`

	// LIMIT keeps a subquery from becoming a join, and ORDER BY makes it use the index of that
	// column.
	readGroupsSQL = `
SELECT g.rule, g.grp, g.state FROM unnest($1::text[], $2::text[]) AS u (rule, grp)
CROSS JOIN LATERAL (
	SELECT rule, grp, state FROM alert_groups WHERE rule = u.rule AND grp = u.grp AND state <> '' LIMIT 1
) g`

	// A range over both columns would be read up to the end of the rule if there is no row. Alerts
	// are locked in order of id, as in SaveNotices. The last condition leaves out an alert that was
	// resolved while its lock was waited for.
	lockAlertsSQL = `
SELECT ` + columns.Alert + `
FROM unnest(ARRAY(
	SELECT o.id FROM unnest($1::text[], $2::text[]) AS u (rule, grp)
	CROSS JOIN LATERAL (
		SELECT id FROM alerts WHERE grp BETWEEN u.grp AND u.grp AND rule = u.rule AND resolved_at = 0
		ORDER BY grp LIMIT 1
	) o
	ORDER BY o.id
)) AS i (id)
CROSS JOIN LATERAL (SELECT * FROM alerts WHERE id BETWEEN i.id AND i.id ORDER BY id LIMIT 1 FOR UPDATE) a
WHERE a.resolved_at = 0`

	// One row for each alert. An aggregate would have other plans; nobody has so many rules that find the same subject.
	exceededSQL = `
SELECT u.subject, a.resolve_at FROM unnest($1::text[]) AS u (subject)
CROSS JOIN LATERAL (
	SELECT resolve_at FROM alerts WHERE subject BETWEEN u.subject AND u.subject AND resolved_at = 0 AND type = 'limits.exceeded'
	ORDER BY subject LIMIT 100
) a`

	alertClockSQL = `SELECT ` + nowMillis

	// The groups exist and are locked. An upsert is used because it needs no join, which has many
	// plans.
	writeGroupsSQL = `
INSERT INTO alert_groups (rule, grp, state, changed_at)
SELECT rule, grp, state, ` + changedAt + ` FROM unnest($1::text[], $2::text[], $3::text[]) AS u (rule, grp, state)
ON CONFLICT (rule, grp) DO UPDATE SET state = excluded.state, changed_at = excluded.changed_at`

	insertAlertsSQL = `
INSERT INTO alerts (id, rule, grp, subject, type, username, policy, raised_at, resolve_at, resolved_at, notice, reason, notice_at,
	due_at, held_until, digest, body)
SELECT id, rule, grp, subject, type, username, policy, raised_at, resolve_at, 0, 'pending', '', 0, $1, 0, '', body
FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::bigint[], $10::bigint[], $11::text[])
	AS u (id, rule, grp, subject, type, username, policy, raised_at, resolve_at, body)`

	// A pending alert keeps its due_at, since an alerter may be working on it.
	updateAlertsSQL = `
UPDATE alerts a SET body = u.body, resolve_at = u.resolve_at,
	notice = CASE WHEN a.notice = 'silenced' AND u.pending THEN 'pending' ELSE a.notice END,
	due_at = CASE WHEN a.notice = 'silenced' AND u.pending THEN $1 ELSE a.due_at END
FROM (
	SELECT * FROM unnest($2::text[], $3::bigint[], $4::bool[], $5::text[]) AS u (id, resolve_at, pending, body)` + thoseAlerts
)

// Take implements [alerts.Store]. It takes two round trips.
func (s *Store) Take(ctx context.Context, t alerts.TakeQuery, decide func(alerts.TakeState) (alerts.Changes, error)) error {
	return s.transactInBatches(ctx, "take events", func(tx *batches) error {
		taken := alerts.TakeState{
			Fresh: map[string]bool{}, States: map[alerts.GroupID]json.RawMessage{},
			Open: map[alerts.GroupID]alerts.Alert{}, Exceeded: map[string]int64{},
		}
		if err := tx.first(ctx, func(b *pgx.Batch) { queueTakeState(b, &t, &taken) }); err != nil {
			return err
		}
		changes, err := decide(taken)
		if err != nil {
			return err
		}
		var b pgx.Batch
		if err := queueTaken(&b, taken.Now, &changes); err != nil {
			return err
		}
		return tx.last(ctx, &b)
	})
}

// sortedUnique returns each string once, in the order in which rows are locked.
func sortedUnique(all []string) []string { return slices.Compact(slices.Sorted(slices.Values(all))) }

func orderedGroups(all []alerts.GroupID) (rules, keys []string) {
	sorted := slices.Compact(slices.SortedFunc(slices.Values(all), func(a, b alerts.GroupID) int {
		return cmp.Or(strings.Compare(a.Rule, b.Rule), strings.Compare(a.Key, b.Key))
	}))
	return column(sorted, func(g *alerts.GroupID) string { return g.Rule }), column(sorted, func(g *alerts.GroupID) string { return g.Key })
}

// queueTakeState queues what locks and reads, with the clock last. The results fill taken.
func queueTakeState(b *pgx.Batch, t *alerts.TakeQuery, taken *alerts.TakeState) {
	rules, keys := orderedGroups(t.Groups)
	b.Queue(takeEventsSQL, sortedUnique(t.Events)).Query(eachText(func(id string) { taken.Fresh[id] = true }))
	b.Queue(lockGroupsSQL, rules, keys)
	b.Queue(readGroupsSQL, rules, keys).Query(func(rows pgx.Rows) error {
		var g alerts.GroupID
		var state string
		_, err := pgx.ForEachRow(rows, []any{&g.Rule, &g.Key, &state}, func() error {
			taken.States[g] = json.RawMessage(state)
			return nil
		})
		return err
	})
	b.Queue(lockAlertsSQL, rules, keys).Query(func(rows pgx.Rows) error {
		open, err := collect(rows, nil, columns.OfAlert)
		for i := range open {
			taken.Open[open[i].GroupID] = open[i]
		}
		return err
	})
	if len(t.Subjects) > 0 {
		b.Queue(exceededSQL, sortedUnique(t.Subjects)).Query(func(rows pgx.Rows) error {
			var subject string
			var until int64
			_, err := pgx.ForEachRow(rows, []any{&subject, &until}, func() error {
				taken.Exceeded[subject] = max(taken.Exceeded[subject], until)
				return nil
			})
			return err
		})
	}
	b.Queue(alertClockSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&taken.Now) })
}

func eachText(f func(string)) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var text string
		_, err := pgx.ForEachRow(rows, []any{&text}, func() error { f(text); return nil })
		return err
	}
}

func queueTaken(b *pgx.Batch, now int64, c *alerts.Changes) error {
	queueStates(b, c.States)
	if len(c.Resolved) > 0 {
		b.Queue(resolveAlertsSQL, now, idsOf(c.Resolved))
	}
	if err := queueRaised(b, now+c.Claim.Milliseconds(), c.Raised); err != nil {
		return err
	}
	if err := queueUpdated(b, now, c.Updated); err != nil {
		return err
	}
	return queueDeliveries(b, c.Deliveries)
}

func queueStates(b *pgx.Batch, states map[alerts.GroupID]json.RawMessage) {
	if len(states) == 0 {
		return
	}
	rules, keys, texts := make([]string, 0, len(states)), make([]string, 0, len(states)), make([]string, 0, len(states))
	for g, state := range states {
		rules, keys, texts = append(rules, g.Rule), append(keys, g.Key), append(texts, string(state))
	}
	b.Queue(writeGroupsSQL, rules, keys, texts)
}

func queueRaised(b *pgx.Batch, due int64, all []alerts.Alert) error {
	if len(all) == 0 {
		return nil
	}
	bodies, err := encode(all, func(a *alerts.Alert) any { return a })
	if err != nil {
		return err
	}
	b.Queue(insertAlertsSQL, due,
		idsOf(all),
		column(all, func(a *alerts.Alert) string { return a.Rule }),
		column(all, func(a *alerts.Alert) string { return a.GroupID.Key }),
		column(all, func(a *alerts.Alert) string { return a.Subject }),
		column(all, func(a *alerts.Alert) string { return a.Type }),
		column(all, func(a *alerts.Alert) string { return a.User }),
		column(all, func(a *alerts.Alert) string { return a.Policy }),
		column(all, func(a *alerts.Alert) int64 { return a.RaisedAt }),
		column(all, func(a *alerts.Alert) int64 { return a.ResolveAt }),
		bodies)
	return nil
}

func queueUpdated(b *pgx.Batch, now int64, all []alerts.Alert) error {
	if len(all) == 0 {
		return nil
	}
	bodies, err := encode(all, func(a *alerts.Alert) any { return a })
	if err != nil {
		return err
	}
	b.Queue(updateAlertsSQL, now,
		idsOf(all),
		column(all, func(a *alerts.Alert) int64 { return a.ResolveAt }),
		column(all, func(a *alerts.Alert) bool { return a.Notice == alerts.Pending }),
		bodies)
	return nil
}
