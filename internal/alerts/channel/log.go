package channel

import (
	"context"
	"log/slog"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

// logChannel writes a line for each message.
type logChannel struct {
	logger *slog.Logger
	name   string
}

// maxLogText is how many characters of a text are logged.
const maxLogText = 1000

// Send logs a message. It never fails.
func (l logChannel) Send(ctx context.Context, m *alerts.Message) error {
	l.logger.Log(ctx, level(m), "alert", "channel", l.name, "kind", m.Kind, "severity", m.Severity, "id", m.ID, "user", m.User,
		"title", firstRunes(m.Title, maxLogText), "text", firstRunes(m.Text, maxLogText),
		"at", time.UnixMilli(m.Time).UTC())
	return nil
}

// level returns the level of a message's severity; info for a resolved alert.
func level(m *alerts.Message) slog.Level {
	switch {
	case m.Kind == alerts.KindResolved:
		return slog.LevelInfo
	case m.Severity == alerts.Critical:
		return slog.LevelError
	case m.Severity == alerts.Warning:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}
