package engine

import (
	"math"
	"sync/atomic"
	"time"
)

// missedAfter is how long the pulse may stay away, which is to come with every sweep of leases.
const missedAfter = 5 * sweepEvery

// pulse tells when this process did not run for a while: it was stopped, or had no processor. What it waited for meanwhile may
// have come in time. It counts in nanoseconds since origin.
type pulse struct {
	origin time.Time
	// last is the last beat, and back the last one that came late.
	last, back atomic.Int64
}

func (p *pulse) init() { p.origin = time.Now() }

func (p *pulse) beat() {
	now := int64(time.Since(p.origin))
	if last := p.last.Swap(now); now-last > int64(missedAfter) {
		p.back.Store(now)
	}
}

// end is for when there are no more beats to come: none is missed.
func (p *pulse) end() { p.last.Store(math.MaxInt64) }

// awake is since when the process has run without a break.
func (p *pulse) awake() time.Time {
	now, since := time.Now(), p.back.Load()
	if int64(now.Sub(p.origin))-p.last.Load() > int64(missedAfter) {
		return now // it is about to beat again
	}
	return p.origin.Add(time.Duration(since))
}
