package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	// Take stores what a batch of events changes; required. When it returns nil the events are
	// acknowledged, so all of it must be stored by then. An event may come again, and a batch with
	// an event that cannot be taken comes again in parts. Called without events it must ask the
	// store, and return nil if the store answers.
	Take func(ctx context.Context, events []alerts.Event) error
	// OwnFault reports whether an error of Take is the store's own, such as a full disk, so that no
	// event is to blame. A store may fail so and yet answer a Take without events, which writes
	// nothing. Nil if no error tells.
	OwnFault func(err error) bool
	// Poison stores a message that cannot be taken; required. The message may come again.
	Poison func(ctx context.Context, p alerts.Poison) error
	// Observer is told what became of messages. May be nil.
	Observer ConsumerObserver
	// Batch bounds how many messages are taken at a time. 256 unless set.
	Batch int
	// retry is retryWait, unless a test sets it.
	retry time.Duration
}

// ConsumerObserver is told what became of messages. One goroutine calls it.
type ConsumerObserver interface {
	// EventsReturned counts messages that were given back to the stream, to come again.
	EventsReturned(n int)
	// EventPoisoned counts a message that was dead-lettered.
	EventPoisoned()
	// EventsPending is how many messages of the stream have not been delivered to anybody yet.
	EventsPending(n uint64)
	// EventsPendingUnknown says that this number is not known, until EventsPending is called again:
	// events cannot be taken.
	EventsPendingUnknown()
	// EventsLost counts messages that the stream removed before they were delivered. Each consumer
	// counts those that it notices.
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
	if c.OwnFault == nil {
		c.OwnFault = func(error) bool { return false }
	}
	c.Batch = cmp.Or(c.Batch, 256)
	c.retry = cmp.Or(c.retry, retryWait)
	return nil
}

const (
	// pullWait is how long a pull waits for messages. It is short because a stop waits for its end:
	// if a pull were abandoned, messages might already be on their way, and nobody would give them
	// back.
	pullWait = time.Second
	// takeTimeout bounds a Take. It is less than ackWait.
	takeTimeout = 10 * time.Second
	// stopTimeout bounds the work on messages in hand after Run's context has ended.
	stopTimeout = 3 * time.Second
	// retryWait is how long an event that could not be taken waits for its second try. Each further
	// try waits twice as long, up to 300 times that.
	retryWait = 100 * time.Millisecond
	// failingAfter is how long events must have failed to be taken before that counts as a failure.
	// A single failed try does not.
	failingAfter = 5 * time.Second
	// maxStrikes is how often an event may fail alone, while the store answers, before it is
	// dead-lettered.
	maxStrikes = 10
	// maxSuspects bounds the events that have strikes. Beyond it counting starts again.
	maxSuspects = 8192
)

// Consumer takes events from the stream: it pulls them, has them stored, and acknowledges them. Any
// number of processes share the work.
//
// A message that is no event is dead-lettered at once. If a batch cannot be taken and the error is
// the store's own, or the store does not answer when it is asked, all events are given back, and
// nothing is pulled until it answers again. Otherwise the batch is halved until the event that
// cannot be taken is alone. That event comes again after a growing delay, and is dead-lettered after
// ten tries. Tries are counted in memory: the server's count of deliveries also grows during
// outages, which are not the event's fault.
type Consumer struct {
	cfg      ConsumerConfig
	js       jetstream.JetStream
	stream   streamWatch
	consumer jetstream.Consumer // nil after a failure, until it was looked up again
	// storeDown says that the store did not answer.
	storeDown bool
	hand      hand
	// toReturn are the messages of the pull that are to be given back.
	toReturn []jetstream.Msg
	// strikes counts, by sequence, how often an event failed alone.
	strikes map[uint64]int
	outage  *outage.Log
	// poisoned counts the messages dead-lettered, for the log; unkept logs that they cannot be.
	poisoned logThrottle
	unkept   *outage.Log
	losses   losses
	// hasBacklog says that the last pull left something in the stream.
	hasBacklog bool
	idle       idlePulls
	// caughtUp is the time of [Consumer.CaughtUp] in Unix milliseconds.
	caughtUp atomic.Int64
	// failure is nil while events are taken.
	failure atomic.Pointer[failure]
	// struck is why events failed alone, as long as none has been taken since.
	struck atomic.Pointer[failure]
}

// failure is why events cannot be taken, since when, and when that was last seen.
type failure struct {
	err       error
	since, at time.Time
}

// note notes that events cannot be taken. An earlier failure that was seen after oldest goes on.
func note(f *atomic.Pointer[failure], err error, oldest time.Time) {
	now := time.Now()
	next := &failure{err: err, since: now, at: now}
	if last := f.Load(); last != nil && last.at.After(oldest) {
		next.since = last.since
	}
	f.Store(next)
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
		cfg: cfg, js: js, strikes: map[uint64]int{}, stream: streamWatch{log: cfg.Logger},
		outage: outage.New(cfg.Logger, slog.LevelError, "events cannot be processed and wait in the stream", "event processing resumed"),
		unkept: outage.New(cfg.Logger, slog.LevelError, "messages cannot be dead-lettered and come again", "messages can be dead-lettered again"),
	}, nil
}

// Run takes events until ctx ends, and then gives back what it has not taken. It retries failures
// forever.
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
	note(&c.failure, err, time.Time{})
	c.outage.Tried(err)
	c.cfg.Observer.EventsPendingUnknown()
	c.idle.askedAt = time.Time{} // so that an idle stream is asked at once when it works again
}

// Failure is why events have not been taken for some seconds. It is nil while they are taken. Events
// that failed alone count too if none was taken: the store may refuse them all.
func (c *Consumer) Failure() error {
	if f := c.failure.Load(); f != nil && time.Since(f.since) >= failingAfter {
		return f.err
	}
	// One that failed long ago was taken elsewhere since, or has left the stream.
	if f := c.struck.Load(); f != nil && time.Since(f.since) >= failingAfter && f.at.After(c.struckBefore()) {
		return f.err
	}
	return nil
}

// struckBefore is the time since which an event that failed alone, and is still to be taken, has
// come again.
func (c *Consumer) struckBefore() time.Time { return time.Now().Add(-c.delay(maxStrikes) - ackWait) }

// pass pulls once, and takes what arrives until the pull ends.
func (c *Consumer) pass(ctx context.Context) error {
	if err := c.prepare(ctx); err != nil {
		return err
	}
	began := time.Now()
	// The count alone bounds the memory of a pull. With a bound in bytes the server says that the
	// pull is done as soon as it has chosen the last message. A consumer with replicas sends that
	// message later, and nats.go would no longer wait for it.
	batch, wait := pullLimits(&c.consumer.CachedInfo().Config, c.cfg.Batch, pullWait)
	pull, err := c.consumer.Fetch(batch, jetstream.FetchMaxWait(wait))
	if err != nil {
		c.consumer = nil
		return fmt.Errorf("pull events: %w", err)
	}
	seen, known, failed := c.takePull(ctx, pull, began)
	c.returnAll()
	if err := pull.Error(); err != nil {
		// The stream or the consumer may be missing.
		c.consumer = nil
		return errors.Join(failed, fmt.Errorf("pull events: %w", err))
	}
	switch {
	case known:
		c.idle.reset(c.cfg.Logger)
	case failed != nil || ctx.Err() != nil:
		return failed
	default:
		asked, pending, taken, err := c.checkIdle(ctx)
		if err != nil || !asked {
			return err
		}
		seen = position{pending: pending}
		if pending == 0 && taken {
			seen.upTo = began
		}
	}
	c.hasBacklog = seen.pending > 0
	c.cfg.Observer.EventsPending(seen.pending)
	if failed == nil && ctx.Err() == nil {
		c.noteCaughtUp(seen.upTo)
	}
	return failed
}

// position is how far a pull came: how many messages have not been delivered to anybody, and the time
// up to which all have been, zero if unknown.
type position struct {
	pending uint64
	upTo    time.Time
}

// takePull takes what a pull brings, until it ends or something cannot be taken. The rest is queued
// to be given back. known says that a message told the position.
func (c *Consumer) takePull(ctx context.Context, pull jetstream.MessageBatch, began time.Time) (
	seen position, known bool, failed error,
) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(stopTimeout, cancel) })()
	c.hand = newHand(pull.Messages(), began, c.consumer.CachedInfo().Config.AckWait)
	defer func() { c.hand = hand{} }()
	for {
		messages := c.hand.next(c.cfg.Batch)
		if len(messages) == 0 {
			return seen, known, failed
		}
		if meta, err := messages[len(messages)-1].Metadata(); err == nil {
			seen, known = position{meta.NumPending, began}, true
			if meta.NumPending > 0 && meta.Timestamp.Before(began) { // by the server's clock
				seen.upTo = meta.Timestamp
			}
		}
		if failed != nil || ctx.Err() != nil {
			c.toReturn = append(c.toReturn, messages...)
			continue
		}
		failed = c.handle(work, messages)
	}
}

// noteCaughtUp notes that all events up to a time have been taken.
func (c *Consumer) noteCaughtUp(upTo time.Time) {
	at := c.caughtUp.Load()
	if at > time.Now().UnixMilli() {
		at = 0 // the clock was ahead
	}
	c.caughtUp.Store(max(at, upTo.UnixMilli()))
}

// CaughtUp is the time up to which all events have been taken, as far as this process knows: while
// it receives events itself, others may have some in hand. It is the Unix epoch until it has
// looked.
func (c *Consumer) CaughtUp() time.Time { return time.UnixMilli(c.caughtUp.Load()) }

// prepare makes sure of the connection, the store and the consumer before messages are pulled.
func (c *Consumer) prepare(ctx context.Context) error {
	if !connected(c.cfg.Conn) {
		c.consumer = nil
		return nats.ErrDisconnected
	}
	if c.storeDown {
		if err := c.take(ctx, nil); err != nil {
			return fmt.Errorf("check the store: %w", err)
		}
		c.storeDown, c.losses.checkedAt = false, time.Time{}
	}
	if c.consumer == nil {
		if err := c.stream.ensure(ctx, c.js, eventStream()); err != nil {
			return err
		}
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

// take calls Take with the events.
func (c *Consumer) take(ctx context.Context, all []delivered) error {
	c.hand.keep()
	ctx, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	events := make([]alerts.Event, len(all))
	for i := range all {
		events[i] = all[i].event
	}
	return c.cfg.Take(ctx, events)
}
