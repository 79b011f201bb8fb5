package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/seed503877ad/limits/internal/alerts"
)

const (
	keepPoisonSQL = `
INSERT INTO alert_poison (sequence, subject, reason, data, kept_at) VALUES ($1, $2, $3, $4, ` + nowMillis + `)
ON CONFLICT (sequence) DO UPDATE SET subject = excluded.subject, reason = excluded.reason, data = excluded.data, kept_at = excluded.kept_at
WHERE (alert_poison.subject, alert_poison.data) <> (excluded.subject, excluded.data)`

	trimPoisonSQL = `
DELETE FROM alert_poison WHERE sequence IN (SELECT sequence FROM alert_poison ORDER BY kept_at DESC, sequence DESC OFFSET $1)`

	poisonSQL = `
SELECT sequence, subject, reason, data, kept_at FROM alert_poison ORDER BY kept_at DESC, sequence DESC LIMIT $1`

	disableChannelSQL = `
INSERT INTO alert_channels (channel, target, reason, disabled_at) VALUES ($1, $2, $3, ` + nowMillis + `)
ON CONFLICT (channel) DO UPDATE SET target = excluded.target, reason = excluded.reason, disabled_at = excluded.disabled_at`

	enableChannelSQL = `
DELETE FROM alert_channels WHERE channel = $1`

	disabledChannelsSQL = `
SELECT channel, target, reason, disabled_at FROM alert_channels ORDER BY channel`
)

// KeepPoison implements [alerts.Store].
func (s *Store) KeepPoison(ctx context.Context, p alerts.Poison) error {
	data := p.Data[:min(len(p.Data), alerts.MaxPoisonBytes)]
	if data == nil {
		data = []byte{}
	}
	if _, err := s.relay.Exec(ctx, keepPoisonSQL, int64(p.Sequence), clean(p.Subject), clean(p.Reason), data); err != nil {
		return fmt.Errorf("keep poison: %w", err)
	}
	if s.poisoned.Add(1)%alerts.PoisonTrim != 1 {
		return nil
	}
	if _, err := s.relay.Exec(ctx, trimPoisonSQL, alerts.MaxPoison); err != nil {
		return fmt.Errorf("remove old poison: %w", err)
	}
	return nil
}

// PoisonMessages implements [alerts.Store].
func (s *Store) PoisonMessages(ctx context.Context, max int) ([]alerts.Poison, error) {
	return collect(ctx, s, "read poison", func(row pgx.CollectableRow) (p alerts.Poison, err error) {
		var sequence int64
		err = row.Scan(&sequence, &p.Subject, &p.Reason, &p.Data, &p.At)
		p.Sequence = uint64(sequence)
		return p, err
	}, poisonSQL, max)
}

// DisableChannel implements [alerts.Store].
func (s *Store) DisableChannel(ctx context.Context, d alerts.Disabled) error {
	if _, err := s.relay.Exec(ctx, disableChannelSQL, d.Channel, d.Target, clean(d.Reason)); err != nil {
		return fmt.Errorf("disable channel %s: %w", d.Channel, err)
	}
	return nil
}

// EnableChannel implements [alerts.Store].
func (s *Store) EnableChannel(ctx context.Context, channel string) (found bool, err error) {
	tag, err := s.relay.Exec(ctx, enableChannelSQL, channel)
	if err != nil {
		return false, fmt.Errorf("enable channel %s: %w", channel, err)
	}
	return tag.RowsAffected() > 0, nil
}

// DisabledChannels implements [alerts.Store].
func (s *Store) DisabledChannels(ctx context.Context) ([]alerts.Disabled, error) {
	return collect(ctx, s, "read disabled channels", func(row pgx.CollectableRow) (d alerts.Disabled, err error) {
		err = row.Scan(&d.Channel, &d.Target, &d.Reason, &d.At)
		return d, err
	}, disabledChannelsSQL)
}
