package bus

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
)

// PublishReport publishes a report, and returns when JetStream has acknowledged it. The id is made
// from the day, so that a repeated report of a day is recognized.
//
// log is for a stream that is gone and has to be made anew: by the time of a report it has been there.
func PublishReport(ctx context.Context, nc *nats.Conn, from Origin, r *limits.Report, now time.Time, log *slog.Logger) error {
	m, err := reportMsg(r, from, now)
	if err != nil {
		return fmt.Errorf("build report of %s: %w", r.Date, err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("publish report of %s: %w", r.Date, err)
	}
	// A stream of an earlier release does not take reports yet.
	stream := streamWatch{log: log}
	stream.seen.Store(true)
	if err := stream.ensure(ctx, js, eventStream()); err != nil {
		return fmt.Errorf("publish report of %s: %w", r.Date, err)
	}
	if _, err := js.PublishMsg(ctx, m, jetstream.WithExpectStream(limits.EventStream)); err != nil {
		return fmt.Errorf("publish report of %s: %w", r.Date, explainJetStream(err))
	}
	return nil
}

func reportMsg(r *limits.Report, from Origin, now time.Time) (*nats.Msg, error) {
	ce := from.event(limits.EventReport)
	ce.SetID("report-" + r.Date)
	ce.SetSubject(r.Date)
	ce.SetTime(now.UTC())
	if err := ce.SetData(event.ApplicationJSON, r); err != nil {
		return nil, err
	}
	return cloudEventMsg(&ce)
}
