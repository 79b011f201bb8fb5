package app

import (
	"errors"
	"log/slog"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/outage"
	"github.com/seed503877ad/limits/internal/web"
)

// damage is the engine's observer: it counts, and has the log name what is stored and cannot be read. Requests for such a counter
// are answered without the store while all others are well, so nothing else would tell which it is.
type damage struct {
	*web.Metrics
	log *outage.Log
}

func (l *limiter) watchDamage() engine.Observer {
	return damage{l.metrics, outage.New(l.log, slog.LevelError, "what is stored cannot be read: answering without it",
		"nothing that cannot be read was asked for lately")}
}

// StoreFailed implements [engine.Observer].
func (d damage) StoreFailed(err error) {
	d.Metrics.StoreFailed(err)
	if errors.Is(err, engine.ErrCorrupt) {
		d.log.Tried(err, "mend", "limiter reset KEY")
	}
}

// Wrote implements [engine.Observer]. It comes before what cannot be read of the same transaction.
func (d damage) Wrote(requests, counters int, took time.Duration) {
	d.Metrics.Wrote(requests, counters, took)
	d.log.Tried(nil)
}
