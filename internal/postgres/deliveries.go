package postgres

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/columns"
)

const (
	addDeliveriesSQL = `
INSERT INTO alert_deliveries (id, channel, message, state, attempts, created_at, due_at, ended_at, error)
SELECT id, channel, message, 'waiting', 0, at, at, 0, ''
FROM (SELECT ` + nowMillis + ` AS at) now, unnest($1::text[], $2::text[], $3::text[]) AS u (id, channel, message)
ON CONFLICT (id) DO NOTHING`

	// The delivery which says that an alert is resolved waits for the one which says that it was
	// raised. The state is not in the inner WHERE: there the index of waiting deliveries would fit,
	// which the planner reads from end to end for each row as long as statistics say that few wait.
	notBefore = `
	AND (strpos(id, '.resolved/') = 0 OR (
		SELECT state FROM alert_deliveries
		WHERE id BETWEEN replace(d.id, '.resolved/', '.raised/') AND replace(d.id, '.resolved/', '.raised/') ORDER BY id LIMIT 1
	) IS DISTINCT FROM 'waiting')`

	dueDeliveriesSQL = `
WITH due AS MATERIALIZED (
	SELECT ctid, due_at FROM alert_deliveries d WHERE channel = $1 AND state = 'waiting' AND due_at <= ` + startMillis + notBefore + `
	ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE alert_deliveries d SET due_at = ` + startMillis + ` + $3 FROM due WHERE d.ctid = due.ctid
RETURNING ` + columns.Delivery + `, due.due_at`

	// Steps through the channels that have waiting deliveries, so that those of the other channels
	// are not read.
	waitingChannels = `
WITH RECURSIVE waiting AS (
	(SELECT channel FROM alert_deliveries WHERE state = 'waiting' ORDER BY channel LIMIT 1)
	UNION ALL
	SELECT (SELECT channel FROM alert_deliveries WHERE state = 'waiting' AND channel > w.channel ORDER BY channel LIMIT 1)
	FROM waiting w WHERE w.channel IS NOT NULL
)`

	otherDeliveriesSQL = waitingChannels + `
SELECT ` + columns.Delivery + ` FROM waiting w
CROSS JOIN LATERAL (
	SELECT * FROM alert_deliveries d WHERE channel BETWEEN w.channel AND w.channel AND state = 'waiting' AND due_at <= ` + startMillis + ` - $3` + notBefore + `
	ORDER BY channel, due_at LIMIT $2
) d
WHERE w.channel <> ALL ($1::text[]) LIMIT $2`

	// Not together with deliveries that are due: each poll would then read everything that waits.
	recallDeliveriesSQL = waitingChannels + `, ahead AS MATERIALIZED (
	SELECT place FROM waiting w CROSS JOIN LATERAL (
		SELECT ctid AS place FROM alert_deliveries
		WHERE channel BETWEEN w.channel AND w.channel AND state = 'waiting' AND due_at > ` + startMillis + ` + $1
		ORDER BY channel, due_at LIMIT $3 FOR UPDATE SKIP LOCKED
	) d LIMIT $3
)
UPDATE alert_deliveries d SET due_at = ` + startMillis + ` + $2,
	created_at = least(created_at, ` + startMillis + `), replayed_at = least(replayed_at, ` + startMillis + `)
FROM ahead WHERE d.ctid = ahead.place`

	advanceDeliveriesSQL = `
WITH ahead AS MATERIALIZED (
	SELECT ctid AS place FROM alert_deliveries WHERE channel = $1 AND state = 'waiting' AND due_at > ` + startMillis + ` + $2
	ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED
)
UPDATE alert_deliveries d SET due_at = ` + startMillis + ` FROM ahead WHERE d.ctid = ahead.place`

	// Locks in order of id.
	lockDeliveriesSQL = `
SELECT d.id FROM unnest($1::text[]) AS u (id)
CROSS JOIN LATERAL (SELECT id FROM alert_deliveries WHERE id BETWEEN u.id AND u.id ORDER BY id LIMIT 1 FOR UPDATE) d`

	saveResultsSQL = `
UPDATE alert_deliveries d SET state = u.state, attempts = d.attempts + u.counts, error = u.error,
	due_at = CASE u.state WHEN 'waiting' THEN u.due_at ELSE d.due_at END,
	ended_at = CASE u.state WHEN 'waiting' THEN 0 ELSE ` + nowMillis + ` END
FROM (
	SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::int[]) AS u (id, state, due_at, error, counts)
	CROSS JOIN LATERAL (
		SELECT ctid AS place, ended_at FROM alert_deliveries WHERE id BETWEEN u.id AND u.id ORDER BY id LIMIT 1
	) p OFFSET 0
) u
WHERE d.ctid = u.place AND u.ended_at = 0`

	// Without those that an alerter has claimed.
	oldDeliveriesSQL = `
SELECT ` + columns.Delivery + ` FROM alert_deliveries d
WHERE ended_at = 0 AND greatest(created_at, replayed_at) <= ` + startMillis + ` - $1
	AND (due_at <= ` + startMillis + ` OR due_at > ` + startMillis + ` + $2)` + notBefore + `
ORDER BY greatest(created_at, replayed_at) LIMIT $3 FOR UPDATE SKIP LOCKED`

	waitingDeliveriesSQL = `
SELECT channel, count(*) FROM alert_deliveries WHERE state = 'waiting' GROUP BY channel`

	// The ids that start with the alert's id, followed by a dot or a slash ('0' is the next
	// character).
	deliveriesOfSQL = `
SELECT ` + columns.Delivery + ` FROM alert_deliveries d WHERE id >= $1 || '.' AND id < $1 || '0' ORDER BY id LIMIT $2`

	deadOnes = ` FROM alert_deliveries d
WHERE state = 'dead' AND id > $1 AND id >= $2 AND id <= $3 ORDER BY id LIMIT $4`

	deadOnesOfChannel = ` FROM alert_deliveries d
WHERE state = 'dead' AND id > $1 AND id >= $2 AND id <= $3 AND channel BETWEEN $5 AND $5 ORDER BY channel, id LIMIT $4`

	deadDeliveriesSQL = `
SELECT ` + columns.Delivery + deadOnes

	deadDeliveriesOfChannelSQL = `
SELECT ` + columns.Delivery + deadOnesOfChannel

	// If the clock was ahead when a delivery was made, its age counts from now.
	replay = `
UPDATE alert_deliveries SET state = 'waiting', attempts = 0, ended_at = 0, due_at = ` + nowMillis + `, replayed_at = ` + nowMillis + `,
	created_at = least(created_at, ` + nowMillis + `)
WHERE ctid = ANY (ARRAY(SELECT ctid`

	replayDeliveriesSQL = replay + deadOnes + ` FOR UPDATE))`

	replayDeliveriesOfChannelSQL = replay + deadOnesOfChannel + ` FOR UPDATE))`
)

func deliveryID(d *alerts.Delivery) string { return d.ID }

// queueDeliveries inserts new deliveries, in order of id.
func queueDeliveries(b *pgx.Batch, all []alerts.Delivery) error {
	if len(all) == 0 {
		return nil
	}
	all = slices.SortedFunc(slices.Values(all), func(a, b alerts.Delivery) int { return strings.Compare(a.ID, b.ID) })
	messages, err := encode(all, func(d *alerts.Delivery) any { return &d.Message })
	if err != nil {
		return err
	}
	b.Queue(addDeliveriesSQL, column(all, deliveryID), column(all, func(d *alerts.Delivery) string { return d.Channel }), messages)
	return nil
}

// AddDelivery implements [alerts.Store].
func (s *Store) AddDelivery(ctx context.Context, d alerts.Delivery) error {
	return s.transact(ctx, "add a delivery", func(tx pgx.Tx) error {
		var b pgx.Batch
		if err := queueDeliveries(&b, []alerts.Delivery{d}); err != nil {
			return err
		}
		return tx.SendBatch(ctx, &b).Close()
	})
}

// DueDeliveries implements [alerts.Store].
func (s *Store) DueDeliveries(ctx context.Context, channel string, max int, lease time.Duration) (all []alerts.Delivery, err error) {
	err = retry(ctx, "claim deliveries", func() error {
		rows, err := s.relay.Query(ctx, dueDeliveriesSQL, channel, max, lease.Milliseconds())
		found, err := collect(rows, err, func(c *claimed[alerts.Delivery]) []any { return append(columns.OfDelivery(&c.row), &c.due) })
		all = inOrder(found, deliveryID)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// OtherDeliveries implements [alerts.Store].
func (s *Store) OtherDeliveries(ctx context.Context, channels []string, due time.Duration, max int) ([]alerts.Delivery, error) {
	if channels == nil {
		channels = []string{} // nil would be NULL, with which every comparison fails
	}
	return read(ctx, s, "read deliveries of other channels", columns.OfDelivery, otherDeliveriesSQL, channels, max, due.Milliseconds())
}

// RecallDeliveries implements [alerts.Store].
func (s *Store) RecallDeliveries(ctx context.Context, later, lease time.Duration, max int) (int, error) {
	return s.change(ctx, "recall deliveries", recallDeliveriesSQL, later.Milliseconds(), lease.Milliseconds(), max)
}

// AdvanceDeliveries implements [alerts.Store].
func (s *Store) AdvanceDeliveries(ctx context.Context, channel string, lease time.Duration, max int) (int, error) {
	return s.change(ctx, "bring deliveries forward", advanceDeliveriesSQL, channel, lease.Milliseconds(), max)
}

// SaveResults implements [alerts.Store].
func (s *Store) SaveResults(ctx context.Context, all []alerts.DeliveryResult) error {
	if len(all) == 0 {
		return nil
	}
	all = slices.SortedFunc(slices.Values(all), func(a, b alerts.DeliveryResult) int { return strings.Compare(a.ID, b.ID) })
	return retry(ctx, "store delivery results", func() error {
		var b pgx.Batch
		b.Queue(lockDeliveriesSQL, column(all, resultID))
		queueResults(&b, all)
		return inOneLine(s.relay.SendBatch(ctx, &b).Close())
	})
}

func resultID(t *alerts.DeliveryResult) string { return t.ID }

// queueResults writes the results of deliveries, which are locked.
func queueResults(b *pgx.Batch, all []alerts.DeliveryResult) {
	counts := column(all, func(t *alerts.DeliveryResult) int32 {
		if t.Counts {
			return 1
		}
		return 0
	})
	b.Queue(saveResultsSQL, column(all, resultID), column(all, func(t *alerts.DeliveryResult) string { return string(t.State) }),
		column(all, func(t *alerts.DeliveryResult) int64 { return t.DueAt }),
		column(all, func(t *alerts.DeliveryResult) string { return sanitize(t.Error) }), counts)
}

// EndDeliveries implements [alerts.Store].
func (s *Store) EndDeliveries(ctx context.Context, o alerts.Overdue, reason func(*alerts.Delivery) string) (ended []alerts.Delivery, err error) {
	err = s.transact(ctx, "dead-letter old deliveries", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, oldDeliveriesSQL, o.Age.Milliseconds(), o.Lease.Milliseconds(), o.Max)
		if ended, err = collect(rows, err, columns.OfDelivery); err != nil || len(ended) == 0 {
			return err
		}
		var b pgx.Batch
		queueResults(&b, column(ended, func(d *alerts.Delivery) alerts.DeliveryResult {
			return alerts.DeliveryResult{ID: d.ID, State: alerts.DeliveryDead, Error: reason(d)}
		}))
		return tx.SendBatch(ctx, &b).Close()
	})
	if err != nil {
		return nil, err
	}
	return ended, nil
}

// WaitingDeliveries implements [alerts.Store].
func (s *Store) WaitingDeliveries(ctx context.Context) (map[string]int64, error) {
	type waiting struct {
		channel string
		n       int64
	}
	all, err := read(ctx, s, "count deliveries", func(w *waiting) []any { return []any{&w.channel, &w.n} }, waitingDeliveriesSQL)
	counts := map[string]int64{}
	for _, w := range all {
		counts[w.channel] = w.n
	}
	return counts, err
}

// DeliveriesOf implements [alerts.Store].
func (s *Store) DeliveriesOf(ctx context.Context, alert string, max int) ([]alerts.Delivery, error) {
	return read(ctx, s, "read deliveries", columns.OfDelivery, deliveriesOfSQL, alert, max)
}

// deadArgs returns the statement about dead letters that fits the filter, and its arguments.
func deadArgs(f alerts.DeadFilter, all, ofChannel string) (statement string, args []any) {
	first, last := f.ID, f.ID
	if f.ID == "" {
		last = maxKey
	}
	if f.Channel == "" {
		return all, []any{f.After, first, last, f.Max}
	}
	return ofChannel, []any{f.After, first, last, f.Max, f.Channel}
}

// DeadDeliveries implements [alerts.Store].
func (s *Store) DeadDeliveries(ctx context.Context, f alerts.DeadFilter) ([]alerts.Delivery, error) {
	query, args := deadArgs(f, deadDeliveriesSQL, deadDeliveriesOfChannelSQL)
	return read(ctx, s, "read dead letters", columns.OfDelivery, query, args...)
}

// ReplayDeliveries implements [alerts.Store].
func (s *Store) ReplayDeliveries(ctx context.Context, f alerts.DeadFilter) (int, error) {
	statement, args := deadArgs(f, replayDeliveriesSQL, replayDeliveriesOfChannelSQL)
	return s.change(ctx, "replay dead letters", statement, args...)
}
