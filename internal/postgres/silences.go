package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/columns"
)

const (
	// The subquery makes the clock be read once.
	addSilenceSQL = `
INSERT INTO alert_silences (id, created_at, expires_at, body)
SELECT $1, at, at + $2, $3 FROM (SELECT ` + nowMillis + ` AS at) now RETURNING ` + columns.Silence

	endSilenceSQL = `
UPDATE alert_silences a SET expires_at = ` + startMillis + ` FROM (
	SELECT ctid FROM alert_silences WHERE id BETWEEN $1 AND $1 ORDER BY id LIMIT 1 FOR UPDATE
) p
WHERE a.ctid = p.ctid AND a.expires_at > ` + startMillis + ` RETURNING ` + columns.Silence

	// Materialized, because few silences are active and many have ended.
	silencesSQL = `
WITH now AS MATERIALIZED (
	SELECT * FROM alert_silences WHERE expires_at > ` + startMillis + ` ORDER BY expires_at
)
SELECT ` + columns.Silence + ` FROM now ORDER BY created_at DESC, id DESC LIMIT $1`

	allSilencesSQL = `
SELECT ` + columns.Silence + ` FROM alert_silences ORDER BY created_at DESC, id DESC LIMIT $1`
)

// AddSilence implements [alerts.Store].
func (s *Store) AddSilence(ctx context.Context, silence alerts.Silence, lasts time.Duration) (alerts.Silence, error) {
	body, err := json.Marshal(&silence)
	if err != nil {
		return alerts.Silence{}, fmt.Errorf("add a silence: %w", err)
	}
	added, _, err := first(read(ctx, s, "add a silence", columns.OfSilence, addSilenceSQL, silence.ID, lasts.Milliseconds(), string(body)))
	return added, err
}

// EndSilence implements [alerts.Store].
func (s *Store) EndSilence(ctx context.Context, id string) (alerts.Silence, bool, error) {
	return first(read(ctx, s, "end a silence", columns.OfSilence, endSilenceSQL, id))
}

// Silences implements [alerts.Store].
func (s *Store) Silences(ctx context.Context, ended bool, max int) ([]alerts.Silence, error) {
	query := silencesSQL
	if ended {
		query = allSilencesSQL
	}
	return read(ctx, s, "read silences", columns.OfSilence, query, max)
}
