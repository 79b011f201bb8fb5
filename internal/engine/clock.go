package engine

import "time"

// clockReading is the store's clock, in Unix milliseconds, as a transaction read it between sent and
// received on the worker's own clock. If the store's clock was estimated, it lay between
// now and now + ahead.
type clockReading struct {
	now, ahead     int64
	sent, received time.Time
}

// earliest and latest bound the store's clock at t. latest compares monotonic and wall time,
// because the monotonic clock stands still while the machine sleeps.
func (r *clockReading) earliest(t time.Time) int64 { return r.now + t.Sub(r.received).Milliseconds() }
func (r *clockReading) latest(t time.Time) int64 {
	passed := max(t.Sub(r.sent), t.Round(0).Sub(r.sent.Round(0)))
	return r.now + r.ahead + passed.Milliseconds() + 2
}

// now estimates the store's clock. It is never ahead of it as long as the worker's clock does not
// run fast.
func (e *Engine) now() int64 { return e.clock.Load().earliest(time.Now()) }

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
