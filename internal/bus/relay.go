package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/outage"
)

// Outbox holds events until they are published.
type Outbox interface {
	// Relay gives up to max events to publish, oldest first, and removes those whose ids it returns, also when it
	// returns an error beside them. Events that another worker has in hand are left out. It says how many were
	// removed; the error is publish's or the store's.
	Relay(ctx context.Context, max int, publish func(ctx context.Context, events []engine.Event) (acked []string, err error)) (int, error)
	// RefuseEvents notes of events that they wait because of what they are: others do not wait with them.
	RefuseEvents(ctx context.Context, ids []string) error
}

// RelayConfig configures a [Relay].
type RelayConfig struct {
	// Conn, Outbox and Logger are required.
	Conn   *nats.Conn
	Outbox Outbox
	Logger *slog.Logger
	// Origin is that of the events; required.
	Origin
	// Batch is how many events are published at a time. 256 unless set.
	Batch int
	// Poll is how long the relay waits for a Wake before it looks by itself: events of a worker that died are
	// found so. 1 s unless set.
	Poll time.Duration
}

const (
	// gather is how long the relay lets events come together after it has published some, so that many small commits do
	// not cost a transaction each. An event that comes alone does not wait.
	batchDelay = 50 * time.Millisecond
	// ackTimeout is how long a batch may wait for its acknowledgements.
	ackTimeout = 5 * time.Second
	// refusedFor is after what time an event is tried again that the stream does not take as it is; refusedMost bounds how many
	// are passed over at a time.
	refusedRetry = time.Minute
	maxRefused   = 4096
	// drainTimeout is how long, after Run's context has ended, the relay goes on with what is in the outbox.
	drainTimeout = 5 * time.Second
)

func (c *RelayConfig) defaults() error {
	switch {
	case c.Conn == nil:
		return errors.New("relay: Conn is missing")
	case c.Outbox == nil:
		return errors.New("relay: Outbox is missing")
	case c.Logger == nil:
		return errors.New("relay: Logger is missing")
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	c.Batch = cmp.Or(c.Batch, 256)
	c.Poll = cmp.Or(c.Poll, time.Second)
	return nil
}

// Relay publishes events from the outbox to JetStream. An event leaves the outbox only after JetStream has
// acknowledged it, so one may be published twice, with the same id, but none is lost.
type Relay struct {
	cfg       RelayConfig
	js        jetstream.JetStream
	templates eventTemplates
	wake      chan struct{}
	// ready says that the stream was seen since the last failure.
	ready  bool
	outage *outage.Log
	// refused are events that are not published as they are, by when they are tried again.
	setAsideUntil map[string]time.Time
	refusal       *outage.Log
	// unnoted are those among them that the outbox does not know of yet.
	unsaved      []string
	saveFailures logThrottle
}

// NewRelay makes a relay; Run runs it.
func NewRelay(cfg RelayConfig) (*Relay, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	forms, err := newEventTemplates(cfg.Origin)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	js, err := jetstream.New(cfg.Conn,
		jetstream.WithDefaultTimeout(ackTimeout),
		jetstream.WithPublishAsyncTimeout(ackTimeout),
		jetstream.WithPublishAsyncMaxPending(2*cfg.Batch),
	)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	return &Relay{
		cfg: cfg, js: js, templates: forms, wake: make(chan struct{}, 1),
		outage:        outage.New(cfg.Logger, slog.LevelError, "events wait in the outbox", "events are published again"),
		setAsideUntil: map[string]time.Time{},
		refusal: outage.New(cfg.Logger, slog.LevelError, "an event waits in the outbox, because of what it is; others go on",
			"no event waits for what it is any more"),
	}, nil
}

// Wake tells that events were written. It does not block.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run relays until ctx ends, and then for the drain timeout what is left. Failures are retried for ever.
func (r *Relay) Run(ctx context.Context) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 2*time.Second
	for ctx.Err() == nil {
		n, more, err := r.pass(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			r.outage.Tried(err)
			_ = sleep(ctx, wait.NextBackOff())
		default:
			r.outage.Tried(nil)
			wait.Reset()
			if more {
				continue
			}
			if n > 0 {
				_ = sleep(ctx, batchDelay)
			}
			r.waitForWork(ctx)
		}
	}
	r.drain(context.WithoutCancel(ctx))
}

// drain relays what is left in the outbox, in the time there is.
func (r *Relay) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	for {
		n, more, err := r.pass(ctx)
		if err != nil {
			r.cfg.Logger.Warn("events stay in the outbox until a worker runs again", "error", err)
			return
		}
		if n == 0 && !more {
			return
		}
	}
}

// idle waits until there may be something to do.
func (r *Relay) waitForWork(ctx context.Context) {
	t := time.NewTimer(r.cfg.Poll)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-r.wake:
	case <-t.C:
	}
}

// pass relays one batch. It gives how many left the outbox, and whether more may wait than it was given; without an error each such
// pass publishes some, or learns of some that are refused.
func (r *Relay) pass(ctx context.Context) (n int, more bool, err error) {
	// Else the outbox would be held for as long as acknowledgements are waited for.
	if !connected(r.cfg.Conn) {
		return 0, false, nats.ErrDisconnected
	}
	if !r.ready {
		if err := ensureStream(ctx, r.js, eventStream()); err != nil {
			return 0, false, err
		}
		r.ready = true
	}
	asked := r.cfg.Batch + len(r.setAsideUntil)
	n, err = r.cfg.Outbox.Relay(ctx, asked, func(ctx context.Context, events []engine.Event) ([]string, error) {
		more = len(events) == asked
		return r.publish(ctx, events)
	})
	if err != nil {
		// The stream may be what is missing.
		r.ready = false
		return n, more, fmt.Errorf("relay events: %w", err)
	}
	r.saveRefused(ctx)
	return n, more, nil
}

// noteRefused tells the outbox of what is refused since it was told last. Where that fails others go on, and it is told with the next.
func (r *Relay) saveRefused(ctx context.Context) {
	if len(r.unsaved) == 0 {
		return
	}
	if err := r.cfg.Outbox.RefuseEvents(ctx, r.unsaved); err != nil {
		if r.saveFailures.due() > 0 {
			r.cfg.Logger.Warn("note events that are refused; alerts are not resolved meanwhile", "events", len(r.unsaved), "error", err)
		}
		return
	}
	r.unsaved = nil
}

// publish sends the events and waits for their acknowledgements. One that is refused for itself holds nothing else up: it stays
// in the outbox, for somebody to look at, and the next time others are asked for beside it.
func (r *Relay) publish(ctx context.Context, events []engine.Event) (acked []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, ackTimeout)
	defer cancel()
	futures := make([]jetstream.PubAckFuture, 0, len(events))
	ids := make([]string, 0, len(events))
	var errs []error
	failed := func(act, id string, err error, mend string) {
		if err = fmt.Errorf("%s event %s: %w", act, id, err); mend == "" || !r.setAside(id, err, mend) {
			errs = append(errs, err)
		}
	}
	now := time.Now()
	for i := 0; i < len(events) && len(futures) < r.cfg.Batch; i++ {
		e := &events[i]
		if again, is := r.setAsideUntil[e.ID]; is && now.Before(again) {
			continue
		}
		m, err := r.templates.message(e)
		if err != nil {
			failed("build", e.ID, err, "run a limiter of the release that wrote it")
			continue
		}
		f, err := r.js.PublishMsgAsync(m, jetstream.WithExpectStream(limits.EventStream))
		if err != nil {
			failed("publish", e.ID, err, sizeRemedy(err))
			if sizeRemedy(err) != "" {
				continue
			}
			break
		}
		futures, ids = append(futures, f), append(ids, e.ID)
	}
	for i, f := range futures {
		if err := awaitAck(ctx, f); err != nil {
			failed("publish", ids[i], explainJetStream(err), sizeRemedy(err))
			continue
		}
		acked = append(acked, ids[i])
		delete(r.setAsideUntil, ids[i])
	}
	r.dropStale(now)
	return acked, firstError(errs)
}

// room says what to raise when an event is too large, which says nothing of others; nothing for any other error.
func sizeRemedy(err error) string {
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return "raise max_payload of the NATS server"
	case errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum):
		return "nats stream edit " + limits.EventStream + " --max-msg-size SIZE"
	default:
		return ""
	}
}

// refuse notes that an event is refused, if there is room.
func (r *Relay) setAside(id string, err error, mend string) bool {
	if _, is := r.setAsideUntil[id]; !is && len(r.setAsideUntil) == maxRefused {
		return false
	} else if !is && len(r.unsaved) < maxRefused {
		r.unsaved = append(r.unsaved, id)
	}
	r.refusal.Tried(err, "mend", mend)
	r.setAsideUntil[id] = time.Now().Add(refusedRetry)
	return true
}

// forgive forgets the refused that were not met any more, when they were to be tried again: somebody has removed them.
func (r *Relay) dropStale(now time.Time) {
	for id, again := range r.setAsideUntil {
		if now.Sub(again) > refusedRetry {
			delete(r.setAsideUntil, id)
		}
	}
	if len(r.setAsideUntil) == 0 {
		r.refusal.Tried(nil)
	}
}

// await waits for an acknowledgement. One that is there counts even when ctx has ended.
func awaitAck(ctx context.Context, f jetstream.PubAckFuture) error {
	select {
	case <-f.Ok():
		return nil
	default:
	}
	select {
	case <-f.Ok():
		return nil
	case err := <-f.Err():
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// firstOf keeps one error of many that are alike.
func firstError(errs []error) error {
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	default:
		return fmt.Errorf("%w (and %d more)", errs[0], len(errs)-1)
	}
}
