package bus

import (
	"fmt"
	"math"
	"time"

	limits "github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
)

// ContentTypeCloudEvent is the content type of a CloudEvent in structured mode (CloudEvents JSON format 1.0).
const ContentTypeCloudEvent = event.ApplicationCloudEventsJSON

// eventMsg builds the message of an event: a CloudEvent whose type is the subject and whose id deduplicates.
func eventMsg(e *engine.Event, source, schemaBase string) (*nats.Msg, error) {
	ce := event.New()
	ce.SetID(e.ID)
	ce.SetType(string(e.Type))
	ce.SetSource(source)
	ce.SetSubject(e.Key)
	ce.SetTime(time.UnixMilli(e.Time).UTC())
	data, schema, err := eventData(e)
	if err != nil {
		return nil, err
	}
	ce.SetDataSchema(schemaBase + "/" + schema)
	if e.Type == engine.EventExceeded {
		// The sampledrate extension: one event stands for so many. Its type is a 32-bit integer.
		ce.SetExtension("sampledrate", int32(min(max(e.Denied, 1), math.MaxInt32)))
	}
	if err := ce.SetData(event.ApplicationJSON, data); err != nil {
		return nil, err
	}
	return cloudEventMsg(&ce)
}

// eventData gives the data of an event and the path of its schema.
func eventData(e *engine.Event) (data any, schema string, err error) {
	switch e.Type {
	case engine.EventWarning:
		return limits.Warning{
			Key: e.Key, Name: e.Name, Policy: e.Policy, Limit: e.Limit, Window: e.Window,
			Remaining: e.Remaining, Threshold: e.Threshold, Reset: e.ResetAt, User: e.User,
		}, SchemaWarning, nil
	case engine.EventExceeded:
		return limits.Exceeded{
			Key: e.Key, Name: e.Name, Policy: e.Policy, Limit: e.Limit, Window: e.Window,
			Reset: e.ResetAt, RetryAfter: e.RetryAfter, Denied: e.Denied, User: e.User,
		}, SchemaExceeded, nil
	default:
		return nil, "", fmt.Errorf("unknown event type %q", e.Type)
	}
}
