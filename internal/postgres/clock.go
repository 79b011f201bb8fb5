package postgres

import "time"

// serverClock is the server's clock as last read, by a round trip that lasted from sent to received.
type serverClock struct {
	now            int64
	sent, received time.Time
	// floor is the latest moment that a decision was made at, unless the clock was set back since.
	floor int64
}

// clockMargin is how long behind its start a transaction over what is remembered may write, in milliseconds.
const clockMargin = 25

// between tells between what the clock is now; ok is false when it was never read.
func (c *serverClock) between() (from, latest int64, ok bool) {
	if c.now == 0 {
		return 0, 0, false
	}
	t := time.Now()
	// A reading that took long says little: it must not take the time back behind what was decided before.
	c.floor = max(c.floor, c.now+t.Sub(c.received).Milliseconds())
	return c.floor, c.now + t.Sub(c.sent).Milliseconds() + 1, true
}

// tell notes a reading.
func (c *serverClock) tell(now int64, sent, received time.Time) {
	c.now, c.sent, c.received = now, sent, received
	if c.floor < now || c.floor > now+clockMargin {
		c.floor = now
	}
}
