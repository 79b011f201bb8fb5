package bus

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
)

// Pulls that bring nothing: either the stream has nothing, or it does not deliver.

// idleCheckInterval is how often a consumer whose pulls bring nothing asks why.
const idleCheckInterval = 5 * time.Second

// idlePulls is what a consumer knows about its pulls that bring nothing.
type idlePulls struct {
	askedAt time.Time
	// waiting says that messages were waiting when it asked last, and logged that the log said so.
	waiting, logged bool
}

// checkIdle asks, at most once in idleCheckInterval, how many messages have not been delivered
// although none came, and whether all that were delivered have been taken. Messages that were given
// back, or that an alerter had that died, are neither pending nor taken.
func (c *Consumer) checkIdle(ctx context.Context) (asked bool, pending uint64, taken bool, err error) {
	q := &c.idle
	if time.Since(q.askedAt) < idleCheckInterval {
		return false, 0, false, nil
	}
	info, err := c.consumer.Info(ctx)
	if err != nil {
		c.consumer = nil
		return false, 0, false, wrapConsumer("inspect", err)
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
	case q.waiting: // at the first time they may have come after the pull
		c.logIdle("other alerters hold as many unacknowledged messages as max_ack_pending allows, or this user may not publish to "+
			"$JS.API.CONSUMER.MSG.NEXT."+limits.EventStream+"."+consumerName, info)
	}
	q.waiting = true
	return true, info.NumPending, taken, nil
}

func (c *Consumer) logIdle(why string, info *jetstream.ConsumerInfo) {
	c.cfg.Logger.Warn("events wait in the stream, but its consumer delivers none", "pending", info.NumPending, "in hand", info.NumAckPending,
		"why", why)
	c.idle.logged = true
}

// reset is called when a message came, or none waits.
func (q *idlePulls) reset(log *slog.Logger) {
	if q.logged {
		log.Info("the consumer delivers events again")
	}
	q.waiting, q.logged = false, false
}
