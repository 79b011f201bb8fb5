package alerts

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// Bounds of an event, in addition to those of a request.
const (
	maxWindowBytes = 32
	// maxEventID leaves room for ruleSeparator and a rule's name after the id: see [Alert].EventID.
	maxEventID = limits.MaxIDBytes - 1 - limits.MaxNameBytes
	// ruleSeparator separates an event's id from a rule's name. It is not allowed in the id of an event.
	ruleSeparator = ":"
	// maxDenied is the maximum of an event's sampledrate.
	maxDenied = 1 << 31
	// minEventTime is the beginning of 2020, before this service existed. maxEventTime is the end of the year 9999, the
	// last that RFC 3339 can write.
	minEventTime, maxEventTime = 1_577_836_800_000, 253_402_300_799_999
)

// NewEvent reads an event of the stream. A client that may publish there can write anything, so every field is checked:
// the result can be stored, shown and counted.
func NewEvent(e limits.Event) (Event, error) {
	out := Event{ID: e.ID, Type: e.Type, Time: e.Time.UnixMilli()}
	threshold := int64(0)
	switch d := e.Data.(type) {
	case *limits.Warning:
		out.Key, out.Name, out.Policy, out.Window, out.User, out.Limit = d.Key, d.Name, d.Policy, d.Window, d.User, d.Limit
		out.Denied, out.Remaining, out.Reset, threshold = 1, d.Remaining, d.Reset, d.Threshold
	case *limits.Exceeded:
		out.Key, out.Name, out.Policy, out.Window, out.User, out.Limit = d.Key, d.Name, d.Policy, d.Window, d.User, d.Limit
		out.Denied, out.Reset = d.Denied, d.Reset
	default:
		return Event{}, fmt.Errorf("event type %s is neither %s nor %s", yamlfile.Quote(e.Type), limits.EventWarning, limits.EventExceeded)
	}
	if err := checkTexts(&out); err != nil {
		return Event{}, err
	}
	return out, checkNumbers(&out, threshold)
}

func checkTexts(e *Event) error {
	for _, f := range []struct {
		name, value string
		min, max    int
	}{
		{"id", e.ID, 1, maxEventID},
		{"key", e.Key, 1, limits.MaxKeyBytes},
		{"name", e.Name, 1, limits.MaxNameBytes},
		{"policy", e.Policy, 0, limits.MaxNameBytes},
		{"window", e.Window, 1, maxWindowBytes},
		{"user", e.User, 0, limits.MaxAttributeBytes},
	} {
		if len(f.value) < f.min || len(f.value) > f.max {
			return fmt.Errorf("%s of the event has %d bytes; want %d to %d", f.name, len(f.value), f.min, f.max)
		}
		if !printable(f.value) {
			return fmt.Errorf("%s %s of the event is not printable UTF-8", f.name, yamlfile.Quote(f.value))
		}
	}
	if strings.Contains(e.ID, ruleSeparator) {
		// It could equal the EventID of another alert, and this alert would be sent without a charge of its own.
		return fmt.Errorf("id %s of the event must not contain %q", yamlfile.Quote(e.ID), ruleSeparator)
	}
	return nil
}

func checkNumbers(e *Event, threshold int64) error {
	for _, f := range []struct {
		name            string
		value, min, max int64
	}{
		{"limit", e.Limit, 0, limits.MaxAmount},
		// A token bucket has its burst on top of the limit.
		{"remaining", e.Remaining, 0, 2 * limits.MaxAmount},
		{"threshold", threshold, 0, 2 * limits.MaxAmount},
		{"denied", e.Denied, 1, maxDenied},
		{"reset", e.Reset, 0, maxEventTime},
		{"time", e.Time, minEventTime, maxEventTime},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("%s %d of the event is out of range; want %d to %d", f.name, f.value, f.min, f.max)
		}
	}
	return nil
}

// printable reports whether a text is valid UTF-8 and has only printable runes; a space is one.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
