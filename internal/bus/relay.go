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
	// Relay gives publish up to max events, oldest first. It removes those whose ids publish
	// returns, even if publish also returns an error. It leaves out events that another worker is
	// publishing. It returns how many were removed; the error is publish's or the store's.
	Relay(ctx context.Context, max int, publish func(ctx context.Context, events []engine.Event) (acked []string, err error)) (int, error)
	// RefuseEvents marks events that wait because of what they are, so that others do not wait with
	// them.
	RefuseEvents(ctx context.Context, ids []string) error
}

// RelayConfig configures a [Relay].
type RelayConfig struct {
	// Conn, Outbox and Logger are required.
	Conn   *nats.Conn
	Outbox Outbox
	Logger *slog.Logger
	// Origin is where the events come from; required.
	Origin
	// batch and poll are the constants, unless a test sets them.
	batch int
	poll  time.Duration
}

const (
	// relayBatch is how many events are published at a time.
	relayBatch = 256
	// relayPoll is how long the relay waits for a Wake before it looks by itself: that is how it
	// finds the events of a worker that died.
	relayPoll = time.Second
	// batchDelay is how long the relay lets events gather after it has published some, so that many
	// small commits do not cost a transaction each. An event that comes alone does not wait.
	batchDelay = 50 * time.Millisecond
	// ackTimeout bounds the wait for the acknowledgements of a batch.
	ackTimeout = 5 * time.Second
	// refusedRetry is when an event is tried again that the stream refused because of what it is.
	// maxRefused bounds how many such events are passed over at a time.
	refusedRetry = time.Minute
	maxRefused   = 4096
	// drainTimeout is how long the relay goes on with what is in the outbox after Run's context has
	// ended.
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
	c.batch, c.poll = cmp.Or(c.batch, relayBatch), cmp.Or(c.poll, relayPoll)
	return nil
}

// Relay publishes events from the outbox to JetStream. An event leaves the outbox only after
// JetStream has acknowledged it. So an event may be published twice, with the same id, but none is
// lost.
type Relay struct {
	cfg       RelayConfig
	js        jetstream.JetStream
	templates eventTemplates
	wake      chan struct{}
	stream    streamWatch
	// domain is the JetStream domain that has acknowledged events since the last failure; nil before
	// one has.
	domain *string
	outage *outage.Log
	// setAsideUntil has the events that are refused because of what they are, and when each is
	// tried again.
	setAsideUntil map[string]time.Time
	refusal       *outage.Log
	// unsaved are those among them that the outbox has not marked yet.
	unsaved      []string
	saveFailures logThrottle
}

// NewRelay makes a relay; Run runs it.
func NewRelay(cfg RelayConfig) (*Relay, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	templates, err := newEventTemplates(cfg.Origin)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	js, err := jetstream.New(cfg.Conn,
		jetstream.WithDefaultTimeout(ackTimeout),
		jetstream.WithPublishAsyncTimeout(ackTimeout),
		jetstream.WithPublishAsyncMaxPending(2*cfg.batch),
	)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	return &Relay{
		cfg: cfg, js: js, templates: templates, wake: make(chan struct{}, 1), stream: streamWatch{log: cfg.Logger},
		outage:        outage.New(cfg.Logger, slog.LevelError, "events cannot be published and wait in the outbox", "event publishing resumed"),
		setAsideUntil: map[string]time.Time{},
		refusal: outage.New(cfg.Logger, slog.LevelError, "an event cannot be published and stays in the outbox; others are still published",
			"no unpublishable event is left in the outbox"),
	}, nil
}

// Wake says that events were written. It does not block.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run relays until ctx ends, and then what is left, for at most drainTimeout. It retries failures
// forever.
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

// drain relays what is left in the outbox.
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

// waitForWork waits until there may be something to do.
func (r *Relay) waitForWork(ctx context.Context) {
	t := time.NewTimer(r.cfg.poll)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-r.wake:
	case <-t.C:
	}
}

// pass relays one batch. It returns how many events left the outbox, and whether more may wait. If
// it returns no error and more is true, it has published some events or set some aside.
func (r *Relay) pass(ctx context.Context) (n int, more bool, err error) {
	// Without this the outbox would be locked while acknowledgements are waited for.
	if !connected(r.cfg.Conn) {
		return 0, false, nats.ErrDisconnected
	}
	if err := r.stream.open(ctx, r.js, eventStream()); err != nil {
		return 0, false, err
	}
	asked := r.cfg.batch + len(r.setAsideUntil)
	n, err = r.cfg.Outbox.Relay(ctx, asked, func(ctx context.Context, events []engine.Event) ([]string, error) {
		more = len(events) == asked
		return r.publish(ctx, events)
	})
	if err != nil {
		r.stream.ready.Store(false) // it may be missing
		r.domain = nil
		return n, more, fmt.Errorf("relay events: %w", err)
	}
	r.saveRefused(ctx)
	return n, more, nil
}

// saveRefused has the outbox mark the events that were set aside lately. If that fails, relaying
// goes on and the next pass tries again.
func (r *Relay) saveRefused(ctx context.Context) {
	if len(r.unsaved) == 0 {
		return
	}
	if err := r.cfg.Outbox.RefuseEvents(ctx, r.unsaved); err != nil {
		if r.saveFailures.due() > 0 {
			r.cfg.Logger.Warn("cannot mark unpublishable events; alerts are not resolved meanwhile", "events", len(r.unsaved), "error", err)
		}
		return
	}
	r.unsaved = nil
}

// publish sends the events and waits for their acknowledgements. An event that is refused because
// of what it is stays in the outbox, for an operator to look at, and does not delay others: the
// next pass asks for that many more.
func (r *Relay) publish(ctx context.Context, events []engine.Event) (acked []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, ackTimeout)
	defer cancel()
	futures := make([]jetstream.PubAckFuture, 0, len(events))
	ids := make([]string, 0, len(events))
	var errs []error
	// fail keeps an error, unless the event alone is to blame, which is then set aside.
	fail := func(act, id string, err error, remedy string) {
		if err = fmt.Errorf("%s event %s: %w", act, id, err); remedy == "" || !r.setAside(id, err, remedy) {
			errs = append(errs, err)
		}
	}
	now := time.Now()
	for i := 0; i < len(events) && len(futures) < r.cfg.batch; i++ {
		e := &events[i]
		if until, known := r.setAsideUntil[e.ID]; known && now.Before(until) {
			continue
		}
		m, err := r.templates.message(e)
		if err != nil {
			fail("build", e.ID, err, "run a limiter of the release that wrote it")
			continue
		}
		f, err := r.js.PublishMsgAsync(m, jetstream.WithExpectStream(limits.EventStream))
		if err != nil {
			fail("publish", e.ID, err, sizeRemedy(err))
			if sizeRemedy(err) != "" {
				continue
			}
			break
		}
		futures, ids = append(futures, f), append(ids, e.ID)
	}
	for i, f := range futures {
		ack, err := awaitAck(ctx, f)
		if err == nil {
			err = r.checkDomain(ack.Domain)
		}
		if err != nil {
			fail("publish", ids[i], explainJetStream(err), sizeRemedy(err))
			continue
		}
		acked = append(acked, ids[i])
		delete(r.setAsideUntil, ids[i])
	}
	r.dropStale(now)
	return acked, firstError(errs)
}

// sizeRemedy says what to raise if an event is too large, which says nothing about other events. It
// is empty for any other error.
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

// setAside notes that an event is refused because of what it is, and reports whether there was room
// to.
func (r *Relay) setAside(id string, err error, remedy string) bool {
	if _, known := r.setAsideUntil[id]; !known {
		if len(r.setAsideUntil) == maxRefused {
			return false
		}
		if len(r.unsaved) < maxRefused {
			r.unsaved = append(r.unsaved, id)
		}
	}
	r.refusal.Tried(err, "mend", remedy)
	r.setAsideUntil[id] = time.Now().Add(refusedRetry)
	return true
}

// dropStale forgets events that were set aside and did not come again when they were due: an
// operator has removed them.
func (r *Relay) dropStale(now time.Time) {
	for id, until := range r.setAsideUntil {
		if now.Sub(until) > refusedRetry {
			delete(r.setAsideUntil, id)
		}
	}
	if len(r.setAsideUntil) == 0 {
		r.refusal.Tried(nil)
	}
}

// awaitAck waits for an acknowledgement. One that has arrived counts even if ctx has ended.
func awaitAck(ctx context.Context, f jetstream.PubAckFuture) (*jetstream.PubAck, error) {
	select {
	case ack := <-f.Ok():
		return ack, nil
	default:
	}
	select {
	case ack := <-f.Ok():
		return ack, nil
	case err := <-f.Err():
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// checkDomain returns an error if another domain acknowledges than before: then there are two streams
// of the name, and alerters may read the other one. The event is published again, and each stream
// knows its id.
func (r *Relay) checkDomain(domain string) error {
	if r.domain == nil {
		r.domain = &domain
	}
	if *r.domain != domain {
		return fmt.Errorf("JetStream domain %q has acknowledged it, and %q others before: each has a stream %s; let workers and alerters use one domain "+
			"(docs/operations.md, One JetStream)", domain, *r.domain, limits.EventStream)
	}
	return nil
}

// firstError keeps one of many similar errors.
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
