package sqlite

import (
	"context"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/columns"
)

const (
	addSilenceSQL = `INSERT INTO alert_silences (id, created_at, expires_at, body) VALUES (?, ?, ?, ?)`

	endSilenceSQL = `
UPDATE alert_silences SET expires_at = ?2 WHERE id = ?1 AND expires_at > ?2 RETURNING ` + columns.Silence

	// Few silences are active and many have ended, so the active ones are found by expiry and
	// sorted.
	silencesSQL = `
SELECT ` + columns.Silence + ` FROM alert_silences INDEXED BY alert_silences_expires WHERE expires_at > ?2
ORDER BY created_at DESC, id DESC LIMIT ?1`

	allSilencesSQL = `SELECT ` + columns.Silence + ` FROM alert_silences ORDER BY created_at DESC, id DESC LIMIT ?1`
)

// AddSilence implements [alerts.Store].
func (s *Store) AddSilence(ctx context.Context, silence alerts.Silence, lasts time.Duration) (alerts.Silence, error) {
	err := s.transact(ctx, "add a silence", func() (bool, error) {
		silence.CreatedAt = s.now().UnixMilli()
		silence.ExpiresAt = silence.CreatedAt + lasts.Milliseconds()
		body, err := encode(&silence)
		if err != nil {
			return false, err
		}
		_, err = s.execInTx(addSilenceSQL, silence.ID, silence.CreatedAt, silence.ExpiresAt, body)
		return true, err
	})
	if err != nil {
		return alerts.Silence{}, err
	}
	return silence, nil
}

// EndSilence implements [alerts.Store].
func (s *Store) EndSilence(ctx context.Context, id string) (silence alerts.Silence, found bool, err error) {
	err = s.transact(ctx, "end a silence", func() (bool, error) {
		silence, found, err = first(readInTx(s, columns.OfSilence, endSilenceSQL, id, s.now().UnixMilli()))
		return found, err
	})
	if err != nil {
		return alerts.Silence{}, false, err
	}
	return silence, found, nil
}

// Silences implements [alerts.Store].
func (s *Store) Silences(ctx context.Context, ended bool, max int) ([]alerts.Silence, error) {
	query := silencesSQL
	if ended {
		query = allSilencesSQL
	}
	return read(ctx, s, "read silences", columns.OfSilence, query, max, s.now().UnixMilli())
}
