package bus

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
)

// Losses: messages that the stream removed, because it was full or they were old, before any
// alerter received them.

// lossCheckInterval is how often a consumer with a backlog looks for losses. If it finds some it
// looks before each pull, because there may be more with each.
const lossCheckInterval = 10 * time.Second

// losses is what a consumer knows about lost messages.
type losses struct {
	checkedAt time.Time
	// losing says that the last look found some.
	losing bool
	// upTo is the last sequence that was counted, in the stream that was created at streamCreated.
	upTo          uint64
	streamCreated time.Time
	// unlogged counts the losses since loggedAt, when the log told about some.
	unlogged uint64
	loggedAt time.Time
	// cannotCount says that the log told that losses cannot be counted.
	cannotCount bool
}

// checkLosses counts what was lost since the last look. It must run before a pull: after it nothing
// shows what was skipped.
func (c *Consumer) checkLosses(ctx context.Context) error {
	// The stream is asked first. If it was the consumer, a message could be delivered and then
	// removed before the stream is asked, and would look lost.
	stream, err := c.js.Stream(ctx, limits.EventStream)
	if err != nil {
		return wrapStream("inspect", limits.EventStream, err)
	}
	info, err := c.consumer.Info(ctx)
	if err != nil {
		c.consumer = nil
		return wrapConsumer("inspect", err)
	}
	l := &c.losses
	l.checkedAt = time.Now()
	s := stream.CachedInfo()
	if !coversStream(&info.Config, s.Config.Subjects) {
		if !l.cannotCount {
			c.cfg.Logger.Warn("cannot count events that the stream removes too early: its consumer does not receive all of its subjects; " +
				"remove the consumer and it is recreated: nats consumer rm " + limits.EventStream + " " + consumerName)
		}
		l.cannotCount = true
		return nil
	}
	n := l.count(s, info.Delivered.Stream)
	l.losing = n > 0
	if n > 0 {
		c.cfg.Observer.EventsLost(n)
	}
	c.logLosses()
	return nil
}

// count returns how many messages are gone between the last that was delivered to anybody and the
// first that is left. A purge moves both. The floor of what was acknowledged would not do: the
// server moves it past what is gone.
func (l *losses) count(s *jetstream.StreamInfo, delivered uint64) uint64 {
	if !l.streamCreated.Equal(s.Created) {
		l.streamCreated, l.upTo = s.Created, 0
	}
	from, first := max(delivered, l.upTo), s.State.FirstSeq
	if first <= from+1 {
		return 0
	}
	l.upTo = first - 1
	l.unlogged += l.upTo - from
	return l.upTo - from
}

// logLosses logs what is lost, at intervals while more follows.
func (c *Consumer) logLosses() {
	l := &c.losses
	if now := time.Now(); l.unlogged > 0 && (!l.losing || now.Sub(l.loggedAt) >= logInterval) {
		c.cfg.Logger.Error("events are lost: the stream removed them, because it was full or they were too old, before an alerter received them; "+
			"keep alerters running, and give the stream more room: nats stream edit "+limits.EventStream+" --max-bytes SIZE --max-age TIME",
			"count", l.unlogged, "last", l.upTo)
		l.unlogged, l.loggedAt = 0, now
	}
}

// coversStream reports whether the consumer receives everything that the stream takes. Otherwise
// messages that are not meant for it would look lost.
func coversStream(cfg *jetstream.ConsumerConfig, subjects []string) bool {
	filters := filtersOf(cfg)
	return len(filters) == 0 || len(missingSubjects(subjects, filters)) == 0
}

// OldestEvent returns the time of the oldest event that the stream has, zero if it has none.
func (c *Consumer) OldestEvent(ctx context.Context) (time.Time, error) {
	stream, err := c.js.Stream(ctx, limits.EventStream)
	if err != nil {
		return time.Time{}, wrapStream("inspect", limits.EventStream, err)
	}
	return stream.CachedInfo().State.FirstTime, nil
}
