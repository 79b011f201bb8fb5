package bus

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
)

// Origin is what an event says of where it comes from.
type Origin struct {
	// Source is the CloudEvents source, a URI that names this service.
	Source string
	// SchemaBase is the URL of the folder of the schemas.
	SchemaBase string
}

// PublishReport publishes a report and returns when JetStream has acknowledged it. The id is made of the day, so that a
// day reported twice is known for it.
func PublishReport(ctx context.Context, nc *nats.Conn, from Origin, r *limits.Report, now time.Time) error {
	m, err := reportMsg(r, from, now)
	if err != nil {
		return fmt.Errorf("build report of %s: %w", r.Date, err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("publish report of %s: %w", r.Date, err)
	}
	// A stream of an earlier release does not take reports yet.
	if err := ensureStream(ctx, js, eventStream()); err != nil {
		return fmt.Errorf("publish report of %s: %w", r.Date, err)
	}
	if _, err := js.PublishMsg(ctx, m, jetstream.WithExpectStream(limits.EventStream)); err != nil {
		return fmt.Errorf("publish report of %s: %w", r.Date, wayOut(err))
	}
	return nil
}

func reportMsg(r *limits.Report, from Origin, now time.Time) (*nats.Msg, error) {
	ce := event.New()
	ce.SetID("report-" + r.Date)
	ce.SetType(limits.EventReport)
	ce.SetSource(from.Source)
	ce.SetSubject(r.Date)
	ce.SetTime(now.UTC())
	ce.SetDataSchema(from.SchemaBase + "/" + eventSchema(limits.EventReport))
	if err := ce.SetData(event.ApplicationJSON, r); err != nil {
		return nil, err
	}
	return cloudEventMsg(&ce)
}

// cloudEventMsg gives the message of an event, whose type is the subject and whose id deduplicates.
func cloudEventMsg(ce *event.Event) (*nats.Msg, error) {
	if err := ce.Validate(); err != nil {
		return nil, err
	}
	written := bytes.NewBuffer(make([]byte, 0, len(ce.DataEncoded)+512)) // which an event's context fits in
	if err := event.WriteJson(ce, written); err != nil {
		return nil, err
	}
	return &nats.Msg{Subject: ce.Type(), Data: written.Bytes(),
		Header: nats.Header{"Content-Type": {event.ApplicationCloudEventsJSON}, nats.MsgIdHdr: {ce.ID()}}}, nil
}
