package app

import (
	"errors"
	"log/slog"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/outage"
	"github.com/seed503877ad/limits/internal/web"
)

// corruptionLog is the engine's observer. It updates the metrics, and logs counters whose stored state cannot be
// read: requests for such a counter are answered without the store while all others work, so nothing else would
// name it.
type corruptionLog struct {
	*web.Metrics
	log *outage.Log
}

func (l *limiter) engineObserver() engine.Observer {
	return corruptionLog{l.metrics, outage.New(l.log, slog.LevelError, "stored state cannot be read; answering without it",
		"no unreadable state was requested recently")}
}

// StoreFailed implements [engine.Observer].
func (c corruptionLog) StoreFailed(err error) {
	c.Metrics.StoreFailed(err)
	if errors.Is(err, engine.ErrCorrupt) {
		c.log.Tried(err, "mend", "limiter reset KEY")
	}
}

// Wrote implements [engine.Observer]. The engine calls it before StoreFailed for the corrupt counters of the same
// transaction.
func (c corruptionLog) Wrote(requests, counters int, took time.Duration) {
	c.Metrics.Wrote(requests, counters, took)
	c.log.Tried(nil)
}
