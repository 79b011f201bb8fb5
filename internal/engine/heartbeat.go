package engine

import (
	"math"
	"sync/atomic"
	"time"
)

// stalledAfter is how long the pulse may stay away, which is to come with every sweep of leases.
const stalledAfter = 5 * sweepEvery

// heartbeat tells when this process did not run for a while: it was stopped, or had no processor. What it waited for meanwhile may
// have come in time. It counts in nanoseconds since origin.
type heartbeat struct {
	origin time.Time
	// lastBeat is the last beat, and back the last one that came late.
	lastBeat, lateBeat atomic.Int64
}

func (p *heartbeat) init() { p.origin = time.Now() }

func (p *heartbeat) beat() {
	now := int64(time.Since(p.origin))
	if last := p.lastBeat.Swap(now); now-last > int64(stalledAfter) {
		p.lateBeat.Store(now)
	}
}

// stop is for when there are no more beats to come: none is missed.
func (p *heartbeat) stop() { p.lastBeat.Store(math.MaxInt64) }

// runningSince is since when the process has run without a break.
func (p *heartbeat) runningSince() time.Time {
	now, since := time.Now(), p.lateBeat.Load()
	if int64(now.Sub(p.origin))-p.lastBeat.Load() > int64(stalledAfter) {
		return now // it is about to beat again
	}
	return p.origin.Add(time.Duration(since))
}
