package app

import (
	"sync"
	"time"

	"github.com/seed503877ad/limits/internal/web"
)

// muchWork is how many events, alerts and tries to deliver in one second are more than what requests leave room for on the
// processors that they have: each takes about a third of a millisecond.
const muchWork = 100

// alertWork is told what becomes of events and alerts. It measures that, and says when it is much.
type alertWork struct {
	*web.AlertMetrics
	busy func()

	mu sync.Mutex
	// done counts since second, in Unix seconds.
	done   int
	second int64
}

// EventsMatched implements [alerts.Observer].
func (w *alertWork) EventsMatched(fresh, repeated, unmatched int) {
	w.did(fresh + repeated)
	w.AlertMetrics.EventsMatched(fresh, repeated, unmatched)
}

// AlertChanged implements [alerts.Observer].
func (w *alertWork) AlertChanged(what, rule string) {
	w.did(1)
	w.AlertMetrics.AlertChanged(what, rule)
}

// DeliveryTried implements [deliver.Observer].
func (w *alertWork) DeliveryTried(channel, outcome string, took time.Duration) {
	w.did(1)
	w.AlertMetrics.DeliveryTried(channel, outcome, took)
}

func (w *alertWork) did(n int) {
	w.mu.Lock()
	if now := time.Now().Unix(); now != w.second {
		w.second, w.done = now, 0
	}
	w.done += n
	much := w.done >= muchWork
	w.mu.Unlock()
	if much && w.busy != nil {
		w.busy()
	}
}
