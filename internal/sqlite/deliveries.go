package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/columns"
)

const (
	addDeliverySQL = `
INSERT INTO alert_deliveries (id, channel, message, state, attempts, created_at, due_at, ended_at, error)
VALUES (?1, ?2, ?3, 'waiting', 0, ?4, ?4, 0, '') ON CONFLICT (id) DO NOTHING`

	// The delivery which says that an alert is resolved waits for the one which says that it was
	// raised.
	notBefore = `
AND (instr(id, '.resolved/') = 0 OR NOT EXISTS (
	SELECT 1 FROM alert_deliveries r WHERE r.id = replace(d.id, '.resolved/', '.raised/') AND +r.state = 'waiting'))`

	dueDeliveriesSQL = `
SELECT ` + columns.Delivery + ` FROM alert_deliveries d WHERE channel = ?1 AND state = 'waiting' AND due_at <= ?2` + notBefore + `
ORDER BY due_at LIMIT ?3`

	// Without those that an alerter has claimed.
	oldDeliveriesSQL = `
SELECT ` + columns.Delivery + ` FROM alert_deliveries d
WHERE ended_at = 0 AND max(created_at, replayed_at) <= ?1 AND (+due_at <= ?2 OR +due_at > ?3)` + notBefore + `
ORDER BY max(created_at, replayed_at) LIMIT ?4`

	claimDeliverySQL = `UPDATE alert_deliveries SET due_at = ?2 WHERE id = ?1`

	// Steps through the channels that have waiting deliveries, so that those of the other channels
	// are not read.
	waitingChannels = `
WITH RECURSIVE waiting (channel) AS (
	SELECT min(channel) FROM alert_deliveries WHERE state = 'waiting'
	UNION ALL
	SELECT (SELECT min(channel) FROM alert_deliveries WHERE state = 'waiting' AND channel > w.channel)
	FROM waiting w WHERE w.channel IS NOT NULL
)`

	otherDeliveriesSQL = waitingChannels + `
SELECT ` + columns.Delivery + ` FROM waiting w CROSS JOIN alert_deliveries d ON d.channel = w.channel AND d.state = 'waiting' AND d.due_at <= ?3
WHERE w.channel NOT IN (SELECT value FROM json_each(?1))` + notBefore + ` LIMIT ?2`

	// Not together with deliveries that are due: each poll would then read everything that waits.
	recallDeliveriesSQL = waitingChannels + `
UPDATE alert_deliveries SET due_at = ?3, created_at = min(created_at, ?1), replayed_at = min(replayed_at, ?1) WHERE id IN (
	SELECT d.id FROM waiting w CROSS JOIN alert_deliveries d ON d.channel = w.channel AND d.state = 'waiting' AND d.due_at > ?2 LIMIT ?4)`

	advanceDeliveriesSQL = `
UPDATE alert_deliveries SET due_at = ?2 WHERE id IN (
	SELECT id FROM alert_deliveries WHERE channel = ?1 AND state = 'waiting' AND due_at > ?3 ORDER BY due_at LIMIT ?4)`

	saveResultSQL = `
UPDATE alert_deliveries SET state = ?2, attempts = attempts + ?3, error = ?4,
	due_at = CASE ?2 WHEN 'waiting' THEN ?5 ELSE due_at END, ended_at = CASE ?2 WHEN 'waiting' THEN 0 ELSE ?6 END
WHERE id = ?1 AND +state = 'waiting'`

	waitingDeliveriesSQL = `SELECT channel, count(*) FROM alert_deliveries WHERE state = 'waiting' GROUP BY channel`

	// The ids that start with the alert's id, followed by a dot or a slash ('0' is the next
	// character).
	deliveriesOfSQL = `
SELECT ` + columns.Delivery + ` FROM alert_deliveries d WHERE id >= ?1 || '.' AND id < ?1 || '0' ORDER BY id LIMIT ?2`

	deadOnes = `
FROM alert_deliveries d WHERE state = 'dead' AND id > ?1 AND (?2 = '' OR id = ?2)`

	deadOnesOfChannel = deadOnes + ` AND channel = ?4`

	deadOrder = ` ORDER BY id LIMIT ?3`

	deadDeliveriesSQL = `SELECT ` + columns.Delivery + deadOnes + deadOrder

	deadDeliveriesOfChannelSQL = `SELECT ` + columns.Delivery + deadOnesOfChannel + deadOrder

	// If the clock was ahead when a delivery was made, its age counts from now.
	replay = `
UPDATE alert_deliveries SET state = 'waiting', attempts = 0, ended_at = 0, due_at = ?5, replayed_at = ?5, created_at = min(created_at, ?5)
WHERE id IN (SELECT id `

	replayDeliveriesSQL = replay + deadOnes + deadOrder + `)`

	replayDeliveriesOfChannelSQL = replay + deadOnesOfChannel + deadOrder + `)`
)

// addDeliveries inserts new deliveries.
func (s *Store) addDeliveries(now int64, all []alerts.Delivery) error {
	for i := range all {
		d := &all[i]
		message, err := encode(&d.Message)
		if err != nil {
			return err
		}
		if _, err := s.execInTx(addDeliverySQL, d.ID, d.Channel, message, now); err != nil {
			return err
		}
	}
	return nil
}

// AddDelivery implements [alerts.Store].
func (s *Store) AddDelivery(ctx context.Context, d alerts.Delivery) error {
	return s.transact(ctx, "add a delivery", func() (bool, error) {
		return true, s.addDeliveries(s.now().UnixMilli(), []alerts.Delivery{d})
	})
}

// DueDeliveries implements [alerts.Store].
func (s *Store) DueDeliveries(ctx context.Context, channel string, max int, lease time.Duration) (all []alerts.Delivery, err error) {
	err = s.transact(ctx, "claim deliveries", func() (bool, error) {
		now := s.now().UnixMilli()
		if all, err = readInTx(s, columns.OfDelivery, dueDeliveriesSQL, channel, now, max); err != nil {
			return false, err
		}
		for i := range all {
			all[i].DueAt = now + lease.Milliseconds()
			if _, err := s.execInTx(claimDeliverySQL, all[i].ID, all[i].DueAt); err != nil {
				return false, err
			}
		}
		return len(all) > 0, nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// OtherDeliveries implements [alerts.Store].
func (s *Store) OtherDeliveries(ctx context.Context, channels []string, due time.Duration, max int) ([]alerts.Delivery, error) {
	list, err := encode(append([]string{}, channels...))
	if err != nil {
		return nil, fmt.Errorf("read deliveries of other channels: %w", err)
	}
	return read(ctx, s, "read deliveries of other channels", columns.OfDelivery, otherDeliveriesSQL, list, max, s.now().Add(-due).UnixMilli())
}

// RecallDeliveries implements [alerts.Store].
func (s *Store) RecallDeliveries(ctx context.Context, later, lease time.Duration, max int) (int, error) {
	now := s.now().UnixMilli()
	return s.change(ctx, "recall deliveries", recallDeliveriesSQL, now, now+later.Milliseconds(), now+lease.Milliseconds(), max)
}

// AdvanceDeliveries implements [alerts.Store].
func (s *Store) AdvanceDeliveries(ctx context.Context, channel string, lease time.Duration, max int) (n int, err error) {
	err = s.transact(ctx, "bring deliveries forward", func() (bool, error) {
		now := s.now().UnixMilli() // not earlier: what was claimed meanwhile would seem to be due after the lease
		changed, err := s.execInTx(advanceDeliveriesSQL, channel, now, now+lease.Milliseconds(), max)
		n = int(changed)
		return changed > 0, err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// SaveResults implements [alerts.Store].
func (s *Store) SaveResults(ctx context.Context, all []alerts.DeliveryResult) error {
	return s.transact(ctx, "store delivery results", func() (wrote bool, err error) {
		now := s.now().UnixMilli()
		for i := range all {
			n, err := s.writeResult(&all[i], now)
			if err != nil {
				return false, err
			}
			wrote = wrote || n > 0
		}
		return wrote, nil
	})
}

func (s *Store) writeResult(t *alerts.DeliveryResult, now int64) (int64, error) {
	return s.execInTx(saveResultSQL, t.ID, string(t.State), t.Counts, t.Error, t.DueAt, now)
}

// EndDeliveries implements [alerts.Store].
func (s *Store) EndDeliveries(ctx context.Context, o alerts.Overdue, reason func(*alerts.Delivery) string) (ended []alerts.Delivery, err error) {
	err = s.transact(ctx, "dead-letter old deliveries", func() (bool, error) {
		now := s.now().UnixMilli()
		ended, err = readInTx(s, columns.OfDelivery, oldDeliveriesSQL, now-o.Age.Milliseconds(), now, now+o.Lease.Milliseconds(), o.Max)
		if err != nil {
			return false, err
		}
		for i := range ended {
			d := &ended[i]
			if _, err := s.writeResult(&alerts.DeliveryResult{ID: d.ID, State: alerts.DeliveryDead, Error: reason(d)}, now); err != nil {
				return false, err
			}
		}
		return len(ended) > 0, nil
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

// DeadDeliveries implements [alerts.Store].
func (s *Store) DeadDeliveries(ctx context.Context, f alerts.DeadFilter) ([]alerts.Delivery, error) {
	query := deadDeliveriesSQL
	if f.Channel != "" {
		query = deadDeliveriesOfChannelSQL
	}
	return read(ctx, s, "read dead letters", columns.OfDelivery, query, f.After, f.ID, f.Max, f.Channel)
}

// ReplayDeliveries implements [alerts.Store].
func (s *Store) ReplayDeliveries(ctx context.Context, f alerts.DeadFilter) (int, error) {
	statement := replayDeliveriesSQL
	if f.Channel != "" {
		statement = replayDeliveriesOfChannelSQL
	}
	return s.change(ctx, "replay dead letters", statement, f.After, f.ID, f.Max, f.Channel, s.now().UnixMilli())
}
