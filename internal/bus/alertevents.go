package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

// AlertEvents is the channel of kind nats. It publishes messages as CloudEvents to the stream
// [limits.AlertStream]. The message's id is the event's, so a message that is sent again within an
// hour is stored once.
type AlertEvents struct {
	conn   *nats.Conn
	js     jetstream.JetStream
	from   Origin
	stream streamWatch
}

// NewAlertEvents makes the channel.
func NewAlertEvents(conn *nats.Conn, from Origin, log *slog.Logger) (*AlertEvents, error) {
	if err := from.check(); err != nil {
		return nil, fmt.Errorf("alert events: %w", err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("alert events: %w", err)
	}
	return &AlertEvents{conn: conn, js: js, from: from, stream: streamWatch{log: log}}, nil
}

// Open creates the stream if it is missing. Send does so too, but whoever wants to read the stream
// from the first alert on must find it before that.
func (a *AlertEvents) Open(ctx context.Context) error { return a.stream.open(ctx, a.js, alertStream()) }

// Send publishes a message, and returns when the stream has stored it. ctx should have a deadline.
func (a *AlertEvents) Send(ctx context.Context, m *alerts.Message) error {
	msg, err := alertMsg(m, a.from)
	if err != nil {
		return &alerts.Refusal{Final: true, Err: fmt.Errorf("build event %s: %w", m.ID, err)}
	}
	// While the connection is down a message would wait in its buffer for longer than the caller.
	if !connected(a.conn) {
		return fmt.Errorf("publish event %s: %w", m.ID, nats.ErrDisconnected)
	}
	if err := a.Open(ctx); err != nil {
		return err
	}
	_, err = a.js.PublishMsg(ctx, msg, jetstream.WithExpectStream(limits.AlertStream))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrMaxPayload):
		return &alerts.Refusal{Final: true, Err: fmt.Errorf("publish event %s of %d bytes: %w", m.ID, len(msg.Data), err)}
	default:
		a.stream.ready.Store(false) // the stream may be missing
		return fmt.Errorf("publish event %s to %s: %w", m.ID, msg.Subject, explainJetStream(err))
	}
}

// alertMsg builds the CloudEvent of a message. Its subject is the user, if there is one.
func alertMsg(m *alerts.Message, from Origin) (*nats.Msg, error) {
	switch m.Kind {
	case alerts.KindRaised, alerts.KindResolved, alerts.KindDigest, alerts.KindTest:
	default:
		return nil, fmt.Errorf("unknown kind of message %q", m.Kind)
	}
	// The SDK would not check it.
	if !json.Valid(m.Data) {
		return nil, errors.New("its data is not valid JSON")
	}
	ce := from.event(string(m.Kind))
	ce.SetID(m.ID)
	if m.User != "" {
		ce.SetSubject(m.User)
	}
	ce.SetTime(time.UnixMilli(m.Time).UTC())
	if err := ce.SetData(event.ApplicationJSON, m.Data); err != nil {
		return nil, err
	}
	return cloudEventMsg(&ce)
}
