package postgres

import (
	"context"

	"github.com/seed503877ad/limits/internal/alerts"
)

const (
	// poisonKeys is 2^48, more messages than a stream has. The key of a message is its sequence number. While a different
	// message has that key, one of a stream that was deleted since, poisonKeys is added. A wider key would be a migration
	// after which an older release could not write here.
	poisonKeys = "281474976710656"

	poisonSequence = "sequence % " + poisonKeys

	keepPoisonSQL = `
WITH RECURSIVE w (key) AS (
	SELECT $1::bigint
	UNION ALL
	SELECT key + ` + poisonKeys + ` FROM w WHERE EXISTS (SELECT FROM alert_poison WHERE sequence = key AND (subject, data) <> ($2::text, $4::bytea)))
INSERT INTO alert_poison (sequence, subject, reason, data, kept_at)
SELECT max(key), $2::text, $3::text, $4::bytea, ` + nowMillis + ` FROM w
ON CONFLICT (sequence) DO NOTHING`

	trimPoisonSQL = `
DELETE FROM alert_poison WHERE sequence IN (SELECT sequence FROM alert_poison ORDER BY kept_at DESC, sequence DESC OFFSET $1)`

	poisonSQL = `
SELECT ` + poisonSequence + `, subject, reason, data, kept_at FROM alert_poison
ORDER BY kept_at DESC, ` + poisonSequence + ` DESC, sequence DESC LIMIT $1`

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
	_, err := s.exec(ctx, "store poison message", keepPoisonSQL, int64(p.Sequence), sanitize(p.Subject), sanitize(p.Reason), data)
	if err == nil && s.poisoned.Add(1)%alerts.PoisonTrim == 1 {
		_, err = s.exec(ctx, "remove old poison messages", trimPoisonSQL, alerts.MaxPoison)
	}
	return err
}

// PoisonMessages implements [alerts.Store].
func (s *Store) PoisonMessages(ctx context.Context, max int) ([]alerts.Poison, error) {
	return read(ctx, s, "read poison messages", func(p *alerts.Poison) []any {
		return []any{&p.Sequence, &p.Subject, &p.Reason, &p.Data, &p.At}
	}, poisonSQL, max)
}

// DisableChannel implements [alerts.Store].
func (s *Store) DisableChannel(ctx context.Context, d alerts.Disabled) error {
	_, err := s.exec(ctx, "disable channel "+d.Channel, disableChannelSQL, d.Channel, d.Target, sanitize(d.Reason))
	return err
}

// EnableChannel implements [alerts.Store].
func (s *Store) EnableChannel(ctx context.Context, channel string) (found bool, err error) {
	n, err := s.exec(ctx, "enable channel "+channel, enableChannelSQL, channel)
	return n > 0, err
}

// DisabledChannels implements [alerts.Store].
func (s *Store) DisabledChannels(ctx context.Context) ([]alerts.Disabled, error) {
	return read(ctx, s, "read disabled channels", func(d *alerts.Disabled) []any {
		return []any{&d.Channel, &d.Target, &d.Reason, &d.At}
	}, disabledChannelsSQL)
}
