package engine

import (
	"math"
	"sync/atomic"
	"time"
)

// stalledAfter is how long the next beat may take before the process counts as stalled. There is a
// beat with every sweep of leases.
const stalledAfter = 5 * sweepEvery

// heartbeat detects that this process did not run for a while: it was stopped, or had no processor.
// What the process waited for in that time may have come in time. Times are nanoseconds since
// origin.
type heartbeat struct {
	origin time.Time
	// lastBeat is when the last beat was, and lateBeat when the last late one was.
	lastBeat, lateBeat atomic.Int64
}

func (h *heartbeat) init() { h.origin = time.Now() }

func (h *heartbeat) beat() {
	now := int64(time.Since(h.origin))
	if last := h.lastBeat.Swap(now); now-last > int64(stalledAfter) {
		h.lateBeat.Store(now)
	}
}

// stop ends the heartbeat: no later beat is missed.
func (h *heartbeat) stop() { h.lastBeat.Store(math.MaxInt64) }

// runningSince is since when the process has run without a stall.
func (h *heartbeat) runningSince() time.Time {
	now, since := time.Now(), h.lateBeat.Load()
	if int64(now.Sub(h.origin))-h.lastBeat.Load() > int64(stalledAfter) {
		return now // the next beat is late already
	}
	return h.origin.Add(time.Duration(since))
}
