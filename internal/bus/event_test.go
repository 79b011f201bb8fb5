package bus

import (
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/seed503877ad/limits/internal/engine"
)

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
