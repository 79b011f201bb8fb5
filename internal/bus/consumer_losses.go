package bus

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
)

// What the stream has removed, being full or old, before any alerter was given it.

// lookEvery is how often a consumer that is behind looks for losses. One that finds some looks before each pull, as there may
// be more with each.
const lossCheckInterval = 10 * time.Second

// losses is what a consumer knows of them.
type losses struct {
	checkedAt time.Time
	// losing says that the last look found some.
	losing bool
	// upTo is the last sequence that was counted, of the stream that was made at a time.
	upTo          uint64
	streamCreated time.Time
	// unsaid counts those since saidAt, when the log told of some.
	unlogged uint64
	loggedAt time.Time
	// blind says that the log told that losses cannot be seen.
	cannotCount bool
}

// look counts what was lost since the last look. It is to come before a pull: after it nothing shows what was skipped.
func (c *Consumer) checkLosses(ctx context.Context) error {
	// The stream comes first: what it had removed by then and an alerter was given, the consumer has counted later.
	stream, err := c.js.Stream(ctx, limits.EventStream)
	if err != nil {
		return wrapStream("look at", limits.EventStream, err)
	}
	info, err := c.consumer.Info(ctx)
	if err != nil {
		c.consumer = nil
		return wrapConsumer("look at", err)
	}
	l := &c.losses
	l.checkedAt = time.Now()
	s := stream.CachedInfo()
	if !coversStream(&info.Config, s.Config.Subjects) {
		if !l.cannotCount {
			c.cfg.Logger.Warn("events that the stream removes too early cannot be counted: its consumer leaves out some subjects of it; " +
				"remove it and it is made anew: nats consumer rm " + limits.EventStream + " " + consumerName)
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

// count gives how many messages are gone between the last that was given to anybody and the first that is left. A purge moves
// both. The floor of what was acknowledged would not do: the server moves it behind what is gone.
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

// sayLost logs what is lost, and while more follows, at times.
func (c *Consumer) logLosses() {
	l := &c.losses
	if now := time.Now(); l.unlogged > 0 && (!l.losing || now.Sub(l.loggedAt) >= logInterval) {
		c.cfg.Logger.Error("events are lost: the stream removed them, being full or old, before an alerter took them; keep alerters "+
			"running, and give the stream more room: nats stream edit "+limits.EventStream+" --max-bytes SIZE --max-age TIME",
			"count", l.unlogged, "last", l.upTo)
		l.unlogged, l.loggedAt = 0, now
	}
}

// takesAll tells whether a consumer is given all that a stream takes. What is not meant for it would look lost otherwise.
func coversStream(cfg *jetstream.ConsumerConfig, subjects []string) bool {
	filters := filtersOf(cfg)
	return len(filters) == 0 || len(missingSubjects(subjects, filters)) == 0
}
