package bus

import (
	"bytes"
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
)

// CheckSource returns an error unless source can be the source of CloudEvents: a URI, absolute or
// relative, that is not empty (RFC 3986; net/url accepts more). Schemas are below a source of http
// or https, so such a source has a host and no query or fragment.
func CheckSource(source string) error {
	u, err := url.Parse(source)
	switch {
	case err != nil || source == "" || strings.ContainsFunc(source, notInURI):
		return fmt.Errorf("source %q is not a URI; want one such as https://limits.example.com", source)
	case (u.Scheme == "http" || u.Scheme == "https") && (u.Host == "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != ""):
		return fmt.Errorf("source %q cannot be the base of schema URLs; want a host, and no query or fragment, as in https://limits.example.com", source)
	}
	return nil
}

func notInURI(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("\"<>\\^`{|}", r) }

// Origin is what events say about where they come from.
type Origin struct {
	// Source is the CloudEvents source, a URI that names this service.
	Source string
	// SchemaBase is the URL of the folder of the schemas.
	SchemaBase string
}

// check returns an error unless events can name the source and schemas. It trims the slashes at the
// end of SchemaBase.
func (o *Origin) check() error {
	if err := CheckSource(o.Source); err != nil {
		return err
	}
	if u, err := url.Parse(o.SchemaBase); err != nil || !u.IsAbs() {
		return fmt.Errorf("schema base %q is not an absolute URL", o.SchemaBase)
	}
	o.SchemaBase = strings.TrimRight(o.SchemaBase, "/")
	return nil
}

// event starts an event of a type.
func (o *Origin) event(kind string) event.Event {
	ce := event.New()
	ce.SetType(kind)
	ce.SetSource(o.Source)
	ce.SetDataSchema(o.SchemaBase + "/" + eventSchema(kind))
	return ce
}

// cloudEventMsg returns the message of an event. Its subject is the event's type. Its message id is
// the event's, by which JetStream drops duplicates.
func cloudEventMsg(ce *event.Event) (*nats.Msg, error) {
	if err := ce.Validate(); err != nil {
		return nil, err
	}
	buf := bytes.NewBuffer(make([]byte, 0, len(ce.DataEncoded)+512)) // the context of an event fits into 512 bytes
	if err := event.WriteJson(ce, buf); err != nil {
		return nil, err
	}
	return &nats.Msg{Subject: ce.Type(), Data: buf.Bytes(),
		Header: nats.Header{"Content-Type": {event.ApplicationCloudEventsJSON}, nats.MsgIdHdr: {ce.ID()}}}, nil
}

// eventTemplates has what all events of a type share. Building it parses URIs, which takes longer
// than the rest of an event.
type eventTemplates map[engine.EventType]event.EventContextV1

func newEventTemplates(from Origin) (eventTemplates, error) {
	templates := make(eventTemplates)
	for _, kind := range []engine.EventType{engine.EventWarning, engine.EventExceeded} {
		ce := from.event(string(kind))
		ce.SetDataContentType(event.ApplicationJSON)
		ce.SetID("of each event")
		if err := ce.Validate(); err != nil {
			return nil, err
		}
		templates[kind] = *ce.Context.AsV1()
	}
	return templates, nil
}

// message builds the message of an event.
func (t eventTemplates) message(e *engine.Event) (*nats.Msg, error) {
	context, known := t[e.Type]
	if !known {
		return nil, fmt.Errorf("unknown event type %q", e.Type)
	}
	ce := event.Event{Context: &context}
	ce.SetID(e.ID)
	// SetSubject would trim it. A subject of spaces alone is not valid, so it is left out.
	if strings.TrimSpace(e.Key) != "" {
		context.Subject = &e.Key
	}
	ce.SetTime(time.UnixMilli(e.Time).UTC())
	if e.Type == engine.EventExceeded {
		// The sampledrate extension: one event stands for that many denials. It is a 32-bit integer.
		ce.SetExtension("sampledrate", int32(min(max(e.Denied, 1), math.MaxInt32)))
	}
	var err error
	// SetData would encode by reflection and then parse the result.
	if ce.DataEncoded, err = eventData(e); err != nil {
		return nil, err
	}
	return cloudEventMsg(&ce)
}

// eventData encodes the data of an event. Texts are checked when they come in. If invalid UTF-8 is
// in the outbox all the same, it must not keep others from being published.
func eventData(e *engine.Event) ([]byte, error) {
	if e.Type == engine.EventWarning {
		return json.Marshal(&limits.Warning{
			Key: e.Key, Name: e.Name, Policy: e.Policy, Limit: e.Limit, Window: e.Window,
			Remaining: e.Remaining, Threshold: e.Threshold, Reset: e.ResetAt, User: e.User,
		}, jsontext.AllowInvalidUTF8(true))
	}
	return json.Marshal(&limits.Exceeded{
		Key: e.Key, Name: e.Name, Policy: e.Policy, Limit: e.Limit, Window: e.Window,
		Reset: e.ResetAt, RetryAfter: e.RetryAfter, Denied: e.Denied, User: e.User,
	}, jsontext.AllowInvalidUTF8(true))
}
