package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/outage"
)

// ConsumerConfig configures a [Consumer].
type ConsumerConfig struct {
	// Conn and Logger are required.
	Conn   *nats.Conn
	Logger *slog.Logger
	// Take stores what a batch of events changes; required. After it has returned nil the events are acknowledged, so all
	// must be stored then. An event may come again, and a batch in which one cannot be taken comes again in parts. With no
	// events it asks whether the store answers, and must ask the store.
	Take func(ctx context.Context, events []alerts.Event) error
	// Poison keeps a message that cannot be taken; required. It may come again.
	Poison func(ctx context.Context, p alerts.Poison) error
	// Observer is told what became of messages; nil for nobody.
	Observer ConsumerObserver
	// Batch is how many messages are taken at a time at most. 256 unless set.
	Batch int
	// Retry is how long an event that could not be taken waits for its second try; each further one waits twice as long,
	// up to 300 times as long. 100 ms unless set.
	Retry time.Duration
}

// ConsumerObserver is told what became of messages, from one goroutine.
type ConsumerObserver interface {
	// EventsReturned counts messages that were given back to come again.
	EventsReturned(n int)
	// EventPoisoned tells of a message that was put aside.
	EventPoisoned()
	// EventsPending is how many messages of the stream nobody was given yet.
	EventsPending(n uint64)
	// EventsPendingUnknown tells that nobody knows, until EventsPending is told again: events cannot be taken.
	EventsPendingUnknown()
	// EventsLost counts messages that the stream removed before anybody was given them. Each consumer counts those it sees.
	EventsLost(n uint64)
}

type noConsumerObserver struct{}

func (noConsumerObserver) EventsReturned(int)    {}
func (noConsumerObserver) EventPoisoned()        {}
func (noConsumerObserver) EventsPending(uint64)  {}
func (noConsumerObserver) EventsPendingUnknown() {}
func (noConsumerObserver) EventsLost(uint64)     {}

func (c *ConsumerConfig) defaults() error {
	switch {
	case c.Conn == nil:
		return errors.New("consumer: Conn is missing")
	case c.Take == nil:
		return errors.New("consumer: Take is missing")
	case c.Poison == nil:
		return errors.New("consumer: Poison is missing")
	case c.Logger == nil:
		return errors.New("consumer: Logger is missing")
	}
	if c.Observer == nil {
		c.Observer = noConsumerObserver{}
	}
	c.Batch = cmp.Or(c.Batch, 256)
	c.Retry = cmp.Or(c.Retry, 100*time.Millisecond)
	return nil
}

const (
	// pullWait is how long a pull waits for messages. It is short because a stop waits for its end: a pull that is given
	// up may have been sent messages that nobody would give back.
	pullWait = time.Second
	// takeTimeout is how long a Take may take; less than ackWait.
	takeTimeout = 10 * time.Second
	// stopFor is how long, after Run's context has ended, what it has in hand may take.
	stopTimeout = 3 * time.Second
	// failingAfter is for how long events cannot be taken until that is a failure: a try that fails is none.
	failingAfter = 5 * time.Second
	// mostStrikes is how often an event may fail alone while the store answers.
	maxStrikes = 10
	// mostSuspects bounds the memory of strikes; past it counting begins anew.
	maxSuspects = 8192
)

// Consumer takes events from the stream: it pulls them, has them stored, and acknowledges them. Any number of processes
// share the work.
//
// A message that is no event is put aside at once. When a batch cannot be taken, the store is asked: if it does not answer
// all is given back, and nothing is pulled until it answers again; if it does, the batch is halved until the event is
// alone that cannot be taken. That one comes again after a growing delay, and is put aside after ten tries. Tries are
// counted in memory, as deliveries also grow by outages, which are not the event's fault.
type Consumer struct {
	cfg      ConsumerConfig
	js       jetstream.JetStream
	consumer jetstream.Consumer // nil until it was seen since the last failure
	// holding says that the store did not answer.
	storeDown bool
	// back is what the pull brought that is to be given back.
	toReturn []jetstream.Msg
	// strikes counts, by sequence, how often an event failed alone.
	strikes map[uint64]int
	outage  *outage.Log
	// poisoned counts the messages put aside, for the log.
	poisoned logThrottle
	losses   losses
	// behind says that the last pull left something.
	hasBacklog bool
	idle       idlePulls
	// caughtUp is in Unix milliseconds.
	caughtUp atomic.Int64
	// failure is nil while events are taken.
	failure atomic.Pointer[failure]
}

// failure is why events cannot be taken, and since when.
type failure struct {
	err   error
	since time.Time
}

// NewConsumer makes a consumer; Run runs it.
func NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	js, err := jetstream.New(cfg.Conn)
	if err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	return &Consumer{
		cfg: cfg, js: js, strikes: map[uint64]int{},
		outage: outage.New(cfg.Logger, slog.LevelError, "events wait in the stream", "events are taken again"),
	}, nil
}

// Run takes events until ctx ends, and then gives back what it has and did not take. Failures are retried for ever.
func (c *Consumer) Run(ctx context.Context) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 2*time.Second
	for ctx.Err() == nil {
		err := c.pass(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			c.failed(err)
			_ = sleep(ctx, wait.NextBackOff())
		default:
			c.failure.Store(nil)
			c.outage.Tried(nil)
			wait.Reset()
		}
	}
}

// failed notes that events cannot be taken.
func (c *Consumer) failed(err error) {
	f := &failure{err: err, since: time.Now()}
	if last := c.failure.Load(); last != nil {
		f.since = last.since
	}
	c.failure.Store(f)
	c.outage.Tried(err)
	c.cfg.Observer.EventsPendingUnknown()
	c.idle.askedAt = time.Time{} // or it would stay unknown for a while when nothing comes
}

// Failure is why events have not been taken for some seconds; nil while they are.
func (c *Consumer) Failure() error {
	f := c.failure.Load()
	if f == nil || time.Since(f.since) < failingAfter {
		return nil
	}
	return f.err
}

// pass pulls once, and takes what comes until the pull ends.
func (c *Consumer) pass(ctx context.Context) error {
	if err := c.prepare(ctx); err != nil {
		return err
	}
	began := time.Now()
	// The count alone bounds its memory. With a bound in bytes the server says that the pull is done as soon as it has chosen the
	// last message, which a consumer with replicas sends later: nats.go would not wait for what comes then.
	pull, err := c.consumer.Fetch(c.cfg.Batch, jetstream.FetchMaxWait(pullWait))
	if err != nil {
		c.consumer = nil
		return fmt.Errorf("pull events: %w", err)
	}
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(stopTimeout, cancel) })()
	var failed error
	pending, known, upTo := uint64(0), false, began
	for messages := range batches(pull.Messages(), c.cfg.Batch) {
		if meta, err := messages[len(messages)-1].Metadata(); err == nil {
			pending, known, upTo = meta.NumPending, true, began
			if pending > 0 && meta.Timestamp.Before(began) { // by the server's clock
				upTo = meta.Timestamp
			}
		}
		if failed != nil || ctx.Err() != nil {
			c.toReturn = append(c.toReturn, messages...)
			continue
		}
		failed = c.handle(work, messages)
	}
	c.returnAll()
	if err := pull.Error(); err != nil {
		// The stream or the consumer may be what is missing.
		c.consumer = nil
		return errors.Join(failed, fmt.Errorf("pull events: %w", err))
	}
	switch {
	case known:
		c.idle.reset(c.cfg.Logger)
	case failed != nil || ctx.Err() != nil:
		return failed
	default:
		asked, waiting, taken, err := c.checkIdle(ctx)
		if err != nil || !asked {
			return err
		}
		pending = waiting
		if pending > 0 || !taken {
			upTo = time.Time{}
		}
	}
	c.hasBacklog = pending > 0
	c.cfg.Observer.EventsPending(pending)
	if failed == nil && ctx.Err() == nil {
		c.noteCaughtUp(upTo)
	}
	return failed
}

// caught keeps up to when all events have been taken.
func (c *Consumer) noteCaughtUp(upTo time.Time) {
	at := c.caughtUp.Load()
	if at > time.Now().UnixMilli() {
		at = 0 // the clock was ahead
	}
	c.caughtUp.Store(max(at, upTo.UnixMilli()))
}

// CaughtUp is up to when all events have been taken, as far as this process knows: while it is given events itself, others may
// have some in hand. It is the zero time of Unix until it has looked.
func (c *Consumer) CaughtUp() time.Time { return time.UnixMilli(c.caughtUp.Load()) }

// prepare holds that there is a connection, a store and a consumer, before messages are asked for.
func (c *Consumer) prepare(ctx context.Context) error {
	if !connected(c.cfg.Conn) {
		c.consumer = nil
		return nats.ErrDisconnected
	}
	if c.storeDown {
		if err := c.take(ctx, nil); err != nil {
			return fmt.Errorf("ask the store: %w", err)
		}
		c.storeDown, c.losses.checkedAt = false, time.Time{}
	}
	if c.consumer == nil {
		consumer, err := ensureConsumer(ctx, c.js)
		if err != nil {
			return err
		}
		c.consumer, c.losses.checkedAt = consumer, time.Time{}
	}
	if l := &c.losses; l.losing || l.checkedAt.IsZero() || c.hasBacklog && time.Since(l.checkedAt) >= lossCheckInterval {
		return c.checkLosses(ctx)
	}
	return nil
}

// gathered gives what there is, as soon as there is something: few messages come at once, and what comes while a batch is
// taken is the next batch.
func batches(in <-chan jetstream.Msg, most int) iter.Seq[[]jetstream.Msg] {
	return func(yield func([]jetstream.Msg) bool) {
		for m := range in {
			batch := []jetstream.Msg{m}
			for more := true; more && len(batch) < most; {
				select {
				case next, ok := <-in:
					if more = ok; ok {
						batch = append(batch, next)
					}
				default:
					more = false
				}
			}
			if !yield(batch) {
				return
			}
		}
	}
}

// take calls Take.
func (c *Consumer) take(ctx context.Context, all []delivered) error {
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	events := make([]alerts.Event, len(all))
	for i := range all {
		events[i] = all[i].event
	}
	return c.cfg.Take(ctx, events)
}
