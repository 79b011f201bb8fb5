package alerts

import (
	"sync"
	"time"
)

// maxHandover bounds the alerts that are handed over in memory. More than that wait in the store, for any process.
const maxHandover = 1024

// handover is a queue of alerts from Take to Run. Take claims them for this process when it stores them, so Run need not
// claim and read them from the store, which costs more than storing them. If this process ends or fails, another process
// gets them when the claim ends.
type handover struct {
	mu     sync.Mutex
	alerts []claimedAlert
	// polledAt is when the store was last polled for other alerts; pollNow asks for a poll at the next take.
	polledAt time.Time
	pollNow  bool
}

// claimedAlert is claimed by this process until a time, or a little longer.
type claimedAlert struct {
	Alert
	until time.Time
}

// claim returns for how long up to n new alerts are to be claimed; 0 if there is no room for them.
func (h *handover) claim(n int) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.alerts)+n > maxHandover {
		return 0
	}
	return pendingLease
}

// add appends alerts that are claimed until a time.
func (h *handover) add(all []Alert, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range all {
		h.alerts = append(h.alerts, claimedAlert{a, until})
	}
}

// requestPoll makes the next take ask for a poll of the store.
func (h *handover) requestPoll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pollNow = true
}

// any reports whether alerts are left.
func (h *handover) any() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.alerts) > 0
}

// take removes and returns up to n alerts. poll says that the store is to be polled for others too: if there are none here,
// on request, and every pendingPoll, so that the alerts of a process that died do not wait until this one is idle. Alerts
// whose claim may have ended are dropped; a poll finds them.
func (h *handover) take(n int) (all []Alert, poll bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for len(h.alerts) > 0 && len(all) < n {
		if now.Before(h.alerts[0].until) {
			all = append(all, h.alerts[0].Alert)
		}
		h.alerts = h.alerts[1:]
	}
	if poll = h.pollNow || len(all) == 0 || now.Sub(h.polledAt) >= pendingPoll; poll {
		h.pollNow, h.polledAt = false, now
	}
	return all, poll
}
