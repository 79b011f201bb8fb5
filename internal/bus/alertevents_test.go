package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/testenv"
)

var _ alerts.Channel = (*AlertEvents)(nil)

func alertEvents(t *testing.T, nc *nats.Conn) *AlertEvents {
	t.Helper()
	a, err := NewAlertEvents(nc, Origin{"urn:test", "http://h/schemas/"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// withDeadline returns a context with a deadline, as deliveries have one, that even a busy machine
// keeps.
func withDeadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestAlertsAreCloudEvents(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	a := alertEvents(t, nc)
	data, err := json.Marshal(limits.AlertTest{Channel: "nats", Note: "n", SentAt: 5})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second is known by its id
		m := alerts.Message{ID: "a.raised", Kind: alerts.KindRaised, Time: 1704307200123, User: "7", Data: json.RawMessage(`{"alert":"a"}`)}
		if err := a.Send(withDeadline(t), &m); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Send(withDeadline(t), &alerts.Message{ID: "b", Kind: alerts.KindTest, Time: 1704307200123, Data: data}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		`{"specversion":"1.0","id":"a.raised","source":"urn:test","type":"alerts.raised","subject":"7",` +
			`"datacontenttype":"application/json","dataschema":"http://h/schemas/events/alerts.raised.v1.json",` +
			`"time":"2024-01-03T18:40:00.123Z","data":{"alert":"a"}}`,
		`{"specversion":"1.0","id":"b","source":"urn:test","type":"alerts.test",` +
			`"datacontenttype":"application/json","dataschema":"http://h/schemas/events/alerts.test.v1.json",` +
			`"time":"2024-01-03T18:40:00.123Z","data":{"channel":"nats","note":"n","sentAt":5}}`,
	} {
		js, _ := jetstream.New(nc)
		s, err := js.Stream(t.Context(), limits.AlertStream)
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.GetMsg(t.Context(), uint64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		if string(m.Data) != want {
			t.Errorf("\n got %s\nwant %s", m.Data, want)
		}
		var ce event.Event
		if err := ce.UnmarshalJSON(m.Data); err != nil || ce.Validate() != nil || m.Subject != ce.Type() ||
			m.Header.Get("Content-Type") != "application/cloudevents+json" || m.Header.Get("Nats-Msg-Id") != ce.ID() {
			t.Errorf("%v %s %v", err, m.Subject, m.Header)
		}
		e, err := limits.ParseEvent(m.Data)
		if _, raw := e.Data.(json.RawMessage); err != nil || raw {
			t.Errorf("%v %T", err, e.Data)
		}
	}
}

func TestAlertPublishFailures(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	nc := dial(t, server.ClientURL())
	a := alertEvents(t, nc)
	for want, m := range map[string]alerts.Message{
		"unknown kind of message":    {ID: "a", Kind: "limits.consume", Time: 1, Data: json.RawMessage(`{}`)},
		"its data is not valid JSON": {ID: "a", Kind: alerts.KindTest, Time: 1, Data: json.RawMessage(`{`)},
		"maximum payload":            {ID: "a", Kind: alerts.KindTest, Time: 1, Data: json.RawMessage(`"` + strings.Repeat("x", 2<<20) + `"`)},
		"id: MUST be a non-empty":    {Kind: alerts.KindTest, Time: 1, Data: json.RawMessage(`{}`)},
	} {
		err := a.Send(withDeadline(t), &m)
		if r, ok := errors.AsType[*alerts.Refusal](err); !ok || !r.Final || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	good := alerts.Message{ID: "a", Kind: alerts.KindTest, Time: 1, Data: json.RawMessage(`{}`)}
	if err := a.Send(withDeadline(t), &good); err != nil {
		t.Fatal(err)
	}
	// A stream that was deleted is made again with the try that follows.
	js, _ := jetstream.New(nc)
	if err := js.DeleteStream(t.Context(), limits.AlertStream); err != nil {
		t.Fatal(err)
	}
	err := a.Send(withDeadline(t), &good)
	if _, refused := errors.AsType[*alerts.Refusal](err); err == nil || refused {
		t.Errorf("without a stream: %v", err)
	}
	made(t, func() error { return a.Send(withDeadline(t), &good) })
	nc.Close()
	if err := a.Send(context.Background(), &good); !errors.Is(err, nats.ErrDisconnected) {
		t.Error(err)
	}
}

// TestAlertsStoredByAnotherStreamFail: if another stream has the subjects, the error says how to
// find it.
func TestAlertsStoredByAnotherStreamFail(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := testenv.JetStream(t, nc)
	other, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{limits.EventAlertTest}})
	if err != nil {
		t.Fatal(err)
	}
	a := alertEvents(t, nc)
	for _, ready := range []bool{false, true} { // as before and after the stream of alerts was replaced
		a.stream.ready.Store(ready)
		err := a.Send(withDeadline(t), &alerts.Message{ID: "a", Kind: alerts.KindTest, Time: 1, Data: json.RawMessage(`{}`)})
		if err == nil || !strings.Contains(err.Error(), "nats stream ls --subject SUBJECT") {
			t.Errorf("%v", err)
		}
	}
	if info, err := other.Info(t.Context()); err != nil || info.State.Msgs > 0 {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestOriginOfAlertEventsIsChecked(t *testing.T) {
	t.Parallel()
	for want, from := range map[string]Origin{"source": {"", "http://h"}, "schema base": {"urn:x", "/schemas"}} {
		if _, err := NewAlertEvents(&nats.Conn{}, from, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestEventAndAlertStreamsAreSeparate: the stream of alerts takes no requests and no crossings.
func TestEventAndAlertStreamsAreSeparate(t *testing.T) {
	t.Parallel()
	for _, subject := range []string{limits.SubjectConsume, limits.SubjectAlertsList, limits.EventExceeded} {
		if missing := missingSubjects([]string{subject}, alertStream().Subjects); len(missing) != 1 {
			t.Error(fmt.Sprint(subject, " is taken"))
		}
	}
}
