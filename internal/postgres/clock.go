package postgres

import "time"

// serverClock is the last reading of the server's clock, by a round trip from sent to received.
type serverClock struct {
	now            int64
	sent, received time.Time
	// floor is the latest time that a decision was made at, unless the clock was set back since.
	floor int64
}

// clockMargin is how long after its start an optimistic transaction may still write, in
// milliseconds.
const clockMargin = 25

// leastMargin is how long a decision must hold after its start to be worth an optimistic attempt, in
// milliseconds: nearly all attempts reach a near server within that. A distant one has as long as the
// reading of its clock took.
const leastMargin = 4

// estimate returns the range that the clock is in now; ok is false if it was never read.
func (c *serverClock) estimate() (from, latest int64, ok bool) {
	if c.now == 0 {
		return 0, 0, false
	}
	t := time.Now()
	// A reading that took long is imprecise, and must not take the time back to before an earlier
	// decision.
	c.floor = max(c.floor, c.now+t.Sub(c.received).Milliseconds())
	return c.floor, c.now + t.Sub(c.sent).Milliseconds() + 1, true
}

// record stores a reading.
func (c *serverClock) record(now int64, sent, received time.Time) {
	c.now, c.sent, c.received = now, sent, received
	if c.floor < now || c.floor > now+clockMargin {
		c.floor = now
	}
}
