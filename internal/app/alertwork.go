package app

import (
	"sync"
	"time"

	"github.com/seed503877ad/limits/internal/web"
)

// busyThreshold is how many events, alerts and delivery attempts in one second are too many for the processors that
// requests use: each takes about a third of a millisecond.
const busyThreshold = 100

// alertWork observes events, alerts and deliveries. It updates their metrics, and calls busy when they are many.
type alertWork struct {
	*web.AlertMetrics
	busy func()

	mu sync.Mutex
	// done counts them within second, a Unix time.
	done   int
	second int64
}

// EventsMatched implements [alerts.Observer].
func (w *alertWork) EventsMatched(fresh, repeated, unmatched int) {
	w.add(fresh + repeated)
	w.AlertMetrics.EventsMatched(fresh, repeated, unmatched)
}

// AlertChanged implements [alerts.Observer].
func (w *alertWork) AlertChanged(what, rule string) {
	w.add(1)
	w.AlertMetrics.AlertChanged(what, rule)
}

// DeliveryTried implements [deliver.Observer].
func (w *alertWork) DeliveryTried(channel, outcome string, took time.Duration) {
	w.add(1)
	w.AlertMetrics.DeliveryTried(channel, outcome, took)
}

func (w *alertWork) add(n int) {
	w.mu.Lock()
	if now := time.Now().Unix(); now != w.second {
		w.second, w.done = now, 0
	}
	w.done += n
	busy := w.done >= busyThreshold
	w.mu.Unlock()
	if busy && w.busy != nil {
		w.busy()
	}
}
