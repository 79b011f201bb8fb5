package bus

import (
	"math"
	"slices"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestSourcesAreURIs: of RFC 3986, and of http or https only those that schemas can be below.
func TestSourcesAreURIs(t *testing.T) {
	t.Parallel()
	good := []string{"urn:limits", "urn:limits?=a#b", "limits", "/limits", "http://127.0.0.1:8080", "https://limits.example.com/a!b/~c/%20"}
	bad := []string{"", "%", "http:", "https:///a", "http://h?a", "https://h?a", "http://h?", "http://h#a", "https://h#a", "urn:ä", "urn:a b"}
	for _, c := range "\"<>\\^`{|}" {
		bad = append(bad, "urn:"+string(c))
	}
	for i, source := range slices.Concat(good, bad) {
		if err := CheckSource(source); (err == nil) != (i < len(good)) {
			t.Errorf("%q: %v", source, err)
		}
	}
}

// The subject of an event is its key, with leading and trailing spaces: without them it might be
// another key. There is no subject for a key of spaces alone, which CloudEvents do not allow.
func TestEventSubjectIsTheKey(t *testing.T) {
	t.Parallel()
	forms, err := newEventTemplates(Origin{"urn:limits", "urn:limits:schemas"})
	if err != nil {
		t.Fatal(err)
	}
	for key, subject := range map[string]string{"a": "a", " a ": " a ", " ": ""} {
		m, err := forms.message(&engine.Event{ID: "1", Type: engine.EventWarning, Key: key})
		if err != nil {
			t.Fatal(err)
		}
		var ce event.Event
		if err := ce.UnmarshalJSON(m.Data); err != nil || ce.Validate() != nil || ce.Subject() != subject {
			t.Errorf("key %q: subject %q, %v, %v", key, ce.Subject(), err, ce.Validate())
		}
	}
}

// TestSampleRateIsTheDenialsOfAnEvent, at least the one that it tells of, as the integer that CloudEvents have.
func TestSampleRateIsTheDenialsOfAnEvent(t *testing.T) {
	t.Parallel()
	forms, err := newEventTemplates(Origin{"urn:limits", "urn:limits:schemas"})
	if err != nil {
		t.Fatal(err)
	}
	for denied, want := range map[int64]int32{0: 1, 1: 1, 7: 7, math.MaxInt32: math.MaxInt32, math.MaxInt32 + 1: math.MaxInt32} {
		m, err := forms.message(&engine.Event{ID: "1", Type: engine.EventExceeded, Key: "a", Denied: denied})
		if err != nil {
			t.Fatal(err)
		}
		var ce event.Event
		if err := ce.UnmarshalJSON(m.Data); err != nil || ce.Extensions()["sampledrate"] != want {
			t.Errorf("%d denials: %v, %v", denied, ce.Extensions(), err)
		}
	}
}
