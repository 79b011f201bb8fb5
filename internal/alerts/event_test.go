package alerts

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
)

func TestNewEventRejectsInvalidEvents(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1704307200123)
	good := limits.Exceeded{Key: "api:user:7", Name: "1m", Policy: "api", Limit: 100, Window: "1m", Reset: 1704307260000, Denied: 41, User: "7"}
	for want, change := range map[string]func(*limits.Event, *limits.Exceeded){
		"id of the event has 0 bytes; want 1 to 63":                   func(e *limits.Event, _ *limits.Exceeded) { e.ID = "" },
		"id of the event has 64 bytes":                                func(e *limits.Event, _ *limits.Exceeded) { e.ID = strings.Repeat("x", 64) },
		`id "a\nb" of the event is not printable UTF-8`:               func(e *limits.Event, _ *limits.Exceeded) { e.ID = "a\nb" },
		`id "a:denials" of the event must not contain ":"`:            func(e *limits.Event, _ *limits.Exceeded) { e.ID = "a:denials" },
		"key of the event has 0 bytes; want 1 to 256":                 func(_ *limits.Event, d *limits.Exceeded) { d.Key = "" },
		"key of the event has 257 bytes":                              func(_ *limits.Event, d *limits.Exceeded) { d.Key = strings.Repeat("x", 257) },
		`key "\xff" of the event is not printable UTF-8`:              func(_ *limits.Event, d *limits.Exceeded) { d.Key = "\xff" },
		"name of the event has 0 bytes; want 1 to 64":                 func(_ *limits.Event, d *limits.Exceeded) { d.Name = "" },
		"policy of the event has 65 bytes; want 0 to 64":              func(_ *limits.Event, d *limits.Exceeded) { d.Policy = strings.Repeat("x", 65) },
		"window of the event has 33 bytes; want 1 to 32":              func(_ *limits.Event, d *limits.Exceeded) { d.Window = strings.Repeat("x", 33) },
		"user of the event has 257 bytes; want 0 to 256":              func(_ *limits.Event, d *limits.Exceeded) { d.User = strings.Repeat("x", 257) },
		`user "a\u200bb" of the event is not printable UTF-8`:         func(_ *limits.Event, d *limits.Exceeded) { d.User = "a\u200bb" },
		"limit -1 of the event is out of range; want 0 to 1000000000": func(_ *limits.Event, d *limits.Exceeded) { d.Limit = -1 },
		"denied 0 of the event is out of range; want 1 to 2147483648": func(_ *limits.Event, d *limits.Exceeded) { d.Denied = 0 },
		"denied 2147483649 of the event":                              func(_ *limits.Event, d *limits.Exceeded) { d.Denied = 1<<31 + 1 },
		"reset -1 of the event":                                       func(_ *limits.Event, d *limits.Exceeded) { d.Reset = -1 },
		"time 1577836799999 of the event":                             func(e *limits.Event, _ *limits.Exceeded) { e.Time = time.UnixMilli(1577836799999) },
		"time -62135596800000 of the event":                           func(e *limits.Event, _ *limits.Exceeded) { e.Time = time.Time{} },
		`event type "limits.other" is neither`:                        func(e *limits.Event, _ *limits.Exceeded) { e.Type, e.Data = "limits.other", json.RawMessage("{}") },
		`event type "alerts.raised" is neither`:                       func(e *limits.Event, _ *limits.Exceeded) { e.Type, e.Data = "alerts.raised", &limits.AlertRaised{} },
	} {
		d := good
		e := limits.Event{ID: "id", Type: limits.EventExceeded, Time: at, Data: &d}
		change(&e, &d)
		if got, err := NewEvent(e); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v %+v", want, err, got)
		}
	}
	if e, err := NewEvent(limits.Event{ID: "id", Type: limits.EventExceeded, Time: at, Data: &good}); err != nil || e.Denied != 41 {
		t.Error(e, err)
	}
	w := limits.Warning{Key: "k", Name: "1m", Limit: 100, Window: "1m", Remaining: 150, Threshold: 10}
	if e, err := NewEvent(limits.Event{ID: "id", Type: limits.EventWarning, Time: at, Data: &w}); err != nil || e.Denied != 1 || e.Remaining != 150 {
		t.Error(e, err)
	}
	for _, change := range []func(*limits.Warning){
		func(w *limits.Warning) { w.Remaining = -1 }, func(w *limits.Warning) { w.Remaining = 2*limits.MaxAmount + 1 },
		func(w *limits.Warning) { w.Threshold = -1 }, func(w *limits.Warning) { w.Threshold = 2*limits.MaxAmount + 1 },
	} {
		wrong := w
		change(&wrong)
		if e, err := NewEvent(limits.Event{ID: "id", Type: limits.EventWarning, Time: at, Data: &wrong}); err == nil {
			t.Errorf("%+v is accepted", e)
		}
	}
}

// TestNewEventAcceptsTheLargest that the limiter may send.
func TestNewEventAcceptsTheLargest(t *testing.T) {
	t.Parallel()
	long := func(n int) string { return strings.Repeat("x", n) }
	for _, e := range []limits.Event{
		{Type: limits.EventExceeded, Data: &limits.Exceeded{Key: long(256), Name: long(64), Policy: long(64), Window: long(32), User: long(256),
			Limit: limits.MaxAmount, Denied: 1 << 31, Reset: maxEventTime}},
		{Type: limits.EventWarning, Data: &limits.Warning{Key: long(256), Name: long(64), Policy: long(64), Window: long(32), User: long(256),
			Limit: limits.MaxAmount, Remaining: 2 * limits.MaxAmount, Threshold: 2 * limits.MaxAmount, Reset: maxEventTime}},
	} {
		for _, at := range []int64{minEventTime, maxEventTime} {
			e.ID, e.Time = long(63), time.UnixMilli(at)
			if _, err := NewEvent(e); err != nil {
				t.Error(err)
			}
		}
	}
}
