package limits

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// watchMessages bounds what waits for a slow reader of [Client.Watch].
const watchMessages = 4096

var errWatchClosed = fmt.Errorf("watch: %w", nats.ErrConnectionClosed)

// Event is a CloudEvent of the service.
type Event struct {
	ID   string
	Type string
	// Source is the URI of the service that raised the event.
	Source string
	// Subject is the key that the event is about, of an event about alerts the user, of a report the day.
	Subject string
	Time    time.Time
	// Data is a [*Warning], an [*Exceeded], a [*Report], an [*AlertRaised], an [*AlertResolved], an [*AlertDigest] or an
	// [*AlertTest]; of another type of event it is the json.RawMessage.
	Data any
	// Raw is the event's JSON as it came.
	Raw []byte
}

// ParseEvent reads a CloudEvents 1.0 event in structured JSON, as the service publishes it. The event keeps raw.
func ParseEvent(raw []byte) (Event, error) {
	var e struct {
		SpecVersion, ID, Type, Source, Subject string
		Time                                   time.Time
		Data                                   json.RawMessage
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return Event{}, fmt.Errorf("read event: %w", err)
	}
	if e.SpecVersion != "1.0" || e.ID == "" || e.Type == "" {
		return Event{}, fmt.Errorf("read event: specversion %q, id %q, type %q: not a CloudEvents 1.0 event",
			e.SpecVersion, e.ID, e.Type)
	}
	data, err := parseEventData(e.Type, e.Data)
	if err != nil {
		return Event{}, fmt.Errorf("read event %s: data of %s: %w", e.ID, e.Type, err)
	}
	return Event{ID: e.ID, Type: e.Type, Source: e.Source, Subject: e.Subject, Time: e.Time, Data: data, Raw: raw}, nil
}

func parseEventData(eventType string, data json.RawMessage) (any, error) {
	var d any
	switch eventType {
	case EventWarning:
		d = new(Warning)
	case EventExceeded:
		d = new(Exceeded)
	case EventReport:
		d = new(Report)
	case EventAlertRaised:
		d = new(AlertRaised)
	case EventAlertResolved:
		d = new(AlertResolved)
	case EventAlertDigest:
		d = new(AlertDigest)
	case EventAlertTest:
		d = new(AlertTest)
	default:
		return data, nil
	}
	return d, json.Unmarshal(data, d)
}

// Watch gives the events of the given types as they are published, of [EventWarning] and [EventExceeded] when
// none is given; "alerts.*" stands for all about alerts. A type that is given twice, or that another one covers, gives its
// events once. It is subscribed when Watch returns; the sequence, which is to be read once, ends with ctx.
// A type that the NATS server refuses is an error that wraps nats.ErrPermissionViolation.
//
// This is a live view and not a record: what was published before is not shown, an event may come twice (its ID
// tells), and a reader that falls 4096 events behind loses some, which gives an error that wraps
// nats.ErrSlowConsumer, as an event that cannot be read gives one; the sequence goes on after both. Read the
// JetStream stream [EventStream] to miss nothing, as the example of [ParseEvent] does.
func (c *Client) Watch(ctx context.Context, types ...string) (iter.Seq2[Event, error], error) {
	if len(types) == 0 {
		types = []string{EventWarning, EventExceeded}
	}
	if err := c.refuse("watch", false); err != nil {
		return nil, err
	}
	w := &watch{nc: c.nc, messages: make(chan *nats.Msg, watchMessages)}
	begun := make(chan struct{})
	bounded, cancel := c.bound(ctx)
	defer cancel()
	var err error
	if !c.alone.aside(bounded, func() { err = w.begin(bounded, types); close(begun) }) {
		go func() { <-begun; w.stop() }()
		return nil, fmt.Errorf("watch: no answer from %s: %w", servers(c.nc), bounded.Err())
	}
	if err != nil {
		return nil, err
	}
	unhook := context.AfterFunc(ctx, w.stop) // for a sequence that nobody reads
	return func(yield func(Event, error) bool) {
		defer unhook() // or the context would keep the watch for as long as it lasts
		defer c.alone.aside(over, w.stop)
		w.run(ctx, yield)
	}, nil
}

// watch gathers the messages of several subscriptions in one bounded channel.
type watch struct {
	nc            *nats.Conn
	closed        chan nats.Status // tells that the connection is
	subscriptions []*nats.Subscription
	messages      chan *nats.Msg
	dropped       int
}

// begin returns when the server knows the subscriptions.
func (w *watch) begin(ctx context.Context, types []string) error {
	types = apart(types)
	before := w.nc.LastError()
	w.closed = w.nc.StatusChanged(nats.CLOSED)
	for _, t := range types {
		s, err := w.nc.ChanSubscribe(t, w.messages)
		if err != nil {
			w.stop()
			return fmt.Errorf("watch %s: %w", t, err)
		}
		w.subscriptions = append(w.subscriptions, s)
	}
	err := w.nc.FlushWithContext(ctx)
	for errors.Is(err, nats.ErrConnectionClosed) && !w.nc.IsClosed() { // it broke, and is made anew with the subscriptions
		err = w.nc.FlushWithContext(ctx)
	}
	if err != nil {
		w.stop()
		return fmt.Errorf("watch: no answer%s: %w", from(w.nc), err)
	}
	// What the server refuses it tells the connection alone, ahead of its answer to the flush.
	if err := w.nc.LastError(); err != before {
		for _, t := range types {
			if refuses(err, `Subscription to "`+t+`"`) {
				w.stop()
				return fmt.Errorf("watch %s: %w", t, err)
			}
		}
	}
	return nil
}

// apart leaves out the types that others cover: each subscription is given what it matches.
func apart(types []string) (kept []string) {
	for i, t := range types {
		covered := false
		for j, other := range types {
			covered = covered || covers(other, t) && (j < i || j > i && !covers(t, other))
		}
		if !covered {
			kept = append(kept, t)
		}
	}
	return kept
}

// covers tells whether a subject, with wildcards, matches all that another one does.
func covers(wide, narrow string) bool {
	n := strings.Split(narrow, ".")
	for i, token := range strings.Split(wide, ".") {
		switch {
		case i == len(n):
			return false
		case token == ">":
			return true
		case token != n[i] && (token != "*" || n[i] == ">"):
			return false
		}
	}
	return strings.Count(wide, ".") == len(n)-1
}

func (w *watch) stop() {
	for _, s := range w.subscriptions {
		_ = s.Unsubscribe() // fails only when it is gone already
	}
	w.nc.RemoveStatusListener(w.closed)
}

func (w *watch) run(ctx context.Context, yield func(Event, error) bool) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.closed:
			if ctx.Err() == nil { // which stops the watch, and that ends the listener
				yield(Event{}, errWatchClosed)
			}
			return
		case m := <-w.messages:
			if n := w.newlyDropped(); n > 0 &&
				!yield(Event{}, fmt.Errorf("watch: %d events lost: %w", n, nats.ErrSlowConsumer)) {
				return
			}
			if e, err := ParseEvent(m.Data); !yield(e, err) {
				return
			}
		}
	}
}

// newlyDropped counts what the subscriptions dropped since it was last asked.
func (w *watch) newlyDropped() int {
	total := 0
	for _, s := range w.subscriptions {
		n, _ := s.Dropped()
		total += n
	}
	n := total - w.dropped
	w.dropped = total
	return n
}
