package bus

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
)

// Pulls that bring nothing: there is nothing, or nothing is given.

// askEvery is how often a consumer whose pulls bring nothing asks why.
const idleCheckInterval = 5 * time.Second

// idle is what a consumer knows of that.
type idlePulls struct {
	askedAt time.Time
	// waiting says that there was something when it asked last, and said that the log told so.
	waiting, logged bool
}

// stillness tells, where it asks, how many messages nobody was given yet though none came, and whether the others are taken. What
// was given back, or is in the hand of an alerter that died, is neither pending nor taken.
func (c *Consumer) checkIdle(ctx context.Context) (asked bool, pending uint64, taken bool, err error) {
	q := &c.idle
	if time.Since(q.askedAt) < idleCheckInterval {
		return false, 0, false, nil
	}
	info, err := c.consumer.Info(ctx)
	if err != nil {
		c.consumer = nil
		return false, 0, false, wrapConsumer("look at", err)
	}
	q.askedAt = time.Now()
	taken = info.NumAckPending == 0
	switch {
	case info.NumPending == 0 && (taken || !info.Paused):
		q.reset(c.cfg.Logger)
		return true, 0, taken, nil
	case q.logged:
	case info.Paused:
		c.logIdle("it is paused: nats consumer resume "+limits.EventStream+" "+consumerName, info)
	case q.waiting: // else the first may have come behind the pull
		c.logIdle("others have as many in hand as may be, or this user may not publish to "+
			"$JS.API.CONSUMER.MSG.NEXT."+limits.EventStream+"."+consumerName, info)
	}
	q.waiting = true
	return true, info.NumPending, taken, nil
}

func (c *Consumer) logIdle(why string, info *jetstream.ConsumerInfo) {
	c.cfg.Logger.Warn("events wait in the stream, and its consumer gives none", "pending", info.NumPending, "in hand", info.NumAckPending,
		"why", why)
	c.idle.logged = true
}

// ended is for when something came, or nothing waits.
func (q *idlePulls) reset(log *slog.Logger) {
	if q.logged {
		log.Info("the consumer of events gives them again")
	}
	q.waiting, q.logged = false, false
}
