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

// watchBuffer is how many messages wait for a slow reader of [Client.Watch].
const watchBuffer = 4096

var errWatchClosed = fmt.Errorf("watch: %w", nats.ErrConnectionClosed)

// Event is a CloudEvent of the service.
type Event struct {
	ID   string
	Type string
	// Source is the URI of the service that raised the event.
	Source string
	// Subject is what the event is about: a key, or the user of an alert, or the day of a report.
	Subject string
	Time    time.Time
	// Data is a [*Warning], [*Exceeded], [*Report], [*AlertRaised], [*AlertResolved], [*AlertDigest] or [*AlertTest]. For
	// other types of event it is a json.RawMessage.
	Data any
	// Raw is the JSON of the whole event, as it came.
	Raw []byte
}

// ParseEvent parses a CloudEvents 1.0 event in structured JSON, as the service publishes it. The event retains raw.
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

var eventTypes = []string{EventWarning, EventExceeded, EventReport, EventAlertRaised, EventAlertResolved, EventAlertDigest, EventAlertTest}

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

// Watch returns the events of the given types as they are published. Without types it watches [EventWarning] and
// [EventExceeded]. A type may have the wildcards of a NATS subject: "alerts.*" selects all events about alerts. A type
// that is given twice, or that another one covers, does not repeat events. One that matches
// subjects of requests, too, as "limits.*" and ">" do, selects only the service's events that it matches: whoever listens
// to requests seems to be a limiter. If it matches no event, Watch returns an [*Error] with Status 400.
//
// The subscription is active when Watch returns. The sequence can be iterated once, and ends with ctx. If the NATS
// server refuses a type, Watch returns an error that wraps nats.ErrPermissionViolation. If the server refuses it later,
// because permissions change or after a reconnect to another server, the sequence yields such an error within some
// seconds, and ends. It also ends with an error that wraps nats.ErrConnectionClosed, if the connection is closed.
//
// Watch is a live view, not a record. It does not show earlier events. An event may come twice, with the same ID. A
// reader that falls 4096 events behind loses events; the sequence then yields an error that wraps
// nats.ErrSlowConsumer. It also yields an error for an event that cannot be parsed, and goes on after both. To miss no
// event, read the JetStream stream [EventStream], as the example of [ParseEvent] does.
func (c *Client) Watch(ctx context.Context, types ...string) (iter.Seq2[Event, error], error) {
	if len(types) == 0 {
		types = []string{EventWarning, EventExceeded}
	}
	types, err := withoutRequests(types)
	if err != nil {
		return nil, err
	}
	if err := c.checkConnection("watch", false); err != nil {
		return nil, err
	}
	w := &watch{nc: c.nc, types: withoutCovered(types), messages: make(chan *nats.Msg, watchBuffer), refused: make(chan error, 1)}
	subscribed := make(chan struct{})
	subscribeCtx, cancel := c.withTimeout(ctx)
	defer cancel()
	if !c.blocking.run(subscribeCtx, func() { err = w.subscribe(subscribeCtx); close(subscribed) }) {
		go func() { <-subscribed; w.stop() }()
		return nil, fmt.Errorf("watch: no answer from %s: %w", serverNames(c.nc), subscribeCtx.Err())
	}
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(ctx)
	go w.lookForRefusal(ctx)
	unhook := context.AfterFunc(ctx, w.stop) // in case nobody iterates over the sequence
	return func(yield func(Event, error) bool) {
		defer end()
		defer unhook() // otherwise a long-lived ctx would retain the watch
		defer c.blocking.run(endedContext, w.stop)
		w.run(ctx, yield)
	}, nil
}

// watch gathers the messages of several subscriptions in one bounded channel.
type watch struct {
	nc            *nats.Conn
	types         []string
	closed        chan nats.Status // gets CLOSED from the connection
	subscriptions []*nats.Subscription
	messages      chan *nats.Msg
	dropped       int        // messages that the subscriptions had dropped at the last look
	lastError     error      // of the connection, before the server was last asked whether it refuses a type
	refused       chan error // gets the refusal of a type that the server had confirmed
}

// subscribe returns when the server has confirmed the subscriptions.
func (w *watch) subscribe(ctx context.Context) error {
	w.closed = w.nc.StatusChanged(nats.CLOSED)
	err := w.askServer(ctx, func(t string) error {
		s, err := w.nc.ChanSubscribe(t, w.messages)
		if err == nil {
			w.subscriptions = append(w.subscriptions, s)
		}
		return err
	})
	if err != nil {
		w.stop()
	}
	return err
}

// askServer makes a subscription to each type, and returns the server's refusal if it refuses one.
func (w *watch) askServer(ctx context.Context, subscribe func(eventType string) error) error {
	before := w.nc.LastError()
	for _, t := range w.types {
		if err := subscribe(t); err != nil {
			return fmt.Errorf("watch %s: %w", t, err)
		}
	}
	err := w.nc.FlushWithContext(ctx)
	for errors.Is(err, nats.ErrConnectionClosed) && !w.nc.IsClosed() { // the connection broke; nats.go restores it with the subscriptions
		err = w.nc.FlushWithContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("watch: no answer%s: %w", fromServers(w.nc), err)
	}
	w.lastError = before
	// The server reports a refused subscription as an error of the connection, before it answers the flush.
	if err := w.nc.LastError(); err != before {
		for _, t := range w.types {
			if isRefusal(err, `Subscription to "`+t+`"`) {
				return fmt.Errorf("watch %s: %w", t, err)
			}
		}
	}
	return nil
}

// refusalLookout is how often a watch looks whether the server has refused something.
const refusalLookout = time.Second

// lookForRefusal notices that the server takes a subscription away: when permissions change, or after a reconnect to
// another server. nats.go reports that to the error handler, which belongs to the application, and keeps only the last error
// of the connection, which may be about something else by now. So after each new error the server is asked again.
func (w *watch) lookForRefusal(ctx context.Context) {
	tick := time.NewTicker(refusalLookout)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		last := w.nc.LastError()
		if last == nil || last == w.lastError || !w.nc.IsConnected() {
			continue
		}
		if err := w.askAgain(ctx); errors.Is(err, nats.ErrPermissionViolation) {
			w.refused <- err
			return
		}
	}
}

// askAgain makes further subscriptions for a moment, which discard what they get.
func (w *watch) askAgain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	var again []*nats.Subscription
	defer func() {
		for _, s := range again {
			_ = s.Unsubscribe() // fails only if the subscription has already ended
		}
	}()
	return w.askServer(ctx, func(t string) error {
		s, err := w.nc.Subscribe(t, func(*nats.Msg) {})
		if err == nil {
			again = append(again, s)
		}
		return err
	})
}

// withoutRequests replaces types that match subjects of requests, too, by the types of events that they match. A
// subscription to a request would get it beside the limiters, and nobody would learn that no limiter is listening.
func withoutRequests(types []string) (events []string, err error) {
	for _, t := range types {
		if !matchesRequests(t) {
			events = append(events, t)
			continue
		}
		before := len(events)
		for _, event := range eventTypes {
			if covers(t, event) {
				events = append(events, event)
			}
		}
		if len(events) == before {
			return nil, &Error{Status: 400, Code: "invalid_type", Field: "type", Message: fmt.Sprintf(
				"watch %s: it has requests and no events; want types of events: %s", t, strings.Join(eventTypes, ", "))}
		}
	}
	return events, nil
}

func matchesRequests(eventType string) bool {
	for subject := range answerFields {
		if covers(eventType, subject) {
			return true
		}
	}
	return covers(eventType, SubjectUsage)
}

// withoutCovered removes types that other types cover. With overlapping subscriptions each of them would get the event.
func withoutCovered(types []string) (kept []string) {
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

// covers reports whether the subject wide matches everything that narrow matches. Both may have wildcards.
func covers(wide, narrow string) bool {
	n := strings.Split(narrow, ".")
	for i, token := range strings.Split(wide, ".") {
		switch {
		case i == len(n):
			return false
		case token == ">":
			return i == strings.Count(wide, ".") // elsewhere it is no wildcard
		case token != n[i] && (token != "*" || n[i] == ">"):
			return false
		}
	}
	return strings.Count(wide, ".") == len(n)-1
}

func (w *watch) stop() {
	for _, s := range w.subscriptions {
		_ = s.Unsubscribe() // fails only if the subscription has already ended
	}
	w.nc.RemoveStatusListener(w.closed)
}

func (w *watch) run(ctx context.Context, yield func(Event, error) bool) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.closed:
			if ctx.Err() == nil { // when ctx ends, stop closes the channel
				yield(Event{}, errWatchClosed)
			}
			return
		case err := <-w.refused:
			yield(Event{}, err)
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

// newlyDropped counts the messages that the subscriptions have dropped since its last call.
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
