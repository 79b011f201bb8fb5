package alerts

import (
	"sync"
	"time"
)

// mostHanded bounds the alerts that are handed over in memory. What is raised beyond waits in the store, for whoever has time.
const mostHanded = 1024

// handed are alerts on their way from Take to Run: they are claimed when they are written, and need not be claimed and read
// from the store again, which costs more than to write them. When this process ends, or cannot tell of them, they are
// somebody's when the claim ends.
type handed struct {
	mu     sync.Mutex
	alerts []handedAlert
	// asked is when the store was last asked for others, and ask says that somebody wants it asked now.
	asked time.Time
	ask   bool
}

// handedAlert is claimed until a moment, at least.
type handedAlert struct {
	Alert
	until time.Time
}

// claim says for how long up to n new alerts are to be claimed; 0 when there is no room for them.
func (h *handed) claim(n int) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.alerts)+n > mostHanded {
		return 0
	}
	return pendingLease
}

// add hands alerts over.
func (h *handed) add(all []Alert, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range all {
		h.alerts = append(h.alerts, handedAlert{a, until})
	}
}

// askStore lets the next take say that the store is to be asked.
func (h *handed) askStore() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ask = true
}

// any tells whether alerts are left.
func (h *handed) any() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.alerts) > 0
}

// take gives up to n alerts, and whether to ask the store for others: it is asked when there are none here, when somebody
// wants it, and every pendingPoll, so that those of a process that died do not wait for a quiet moment. Alerts whose claim may
// be over are left to the store.
func (h *handed) take(n int) (all []Alert, ask bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for len(h.alerts) > 0 && len(all) < n {
		if now.Before(h.alerts[0].until) {
			all = append(all, h.alerts[0].Alert)
		}
		h.alerts = h.alerts[1:]
	}
	if ask = h.ask || len(all) == 0 || now.Sub(h.asked) >= pendingPoll; ask {
		h.ask, h.asked = false, now
	}
	return all, ask
}
