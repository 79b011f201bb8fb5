package limits

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
)

// logWait is how long a request may be delayed for lines of the request log. A process that is short of processor needs a
// tenth of it.
const logWait = 100 * time.Millisecond

// LogRequest adds lines to the request log, several in one message, or in as many as [MaxRequestBytes] makes of them. It waits for no
// answer, and nothing tells whether the lines were taken. When it returns, the connection has them: Flush that before the program ends,
// or Drain it and wait for nats.ClosedHandler. Where the connection hangs, it waits for 100 ms, and leaves the lines to it; a second
// later, and for as long as that lasts, lines are dropped at once, with an error that wraps nats.ErrDisconnected.
//
// A line that the service would drop, such as one without a Key or with a Status of 0, is an [*Error] with Status 400 and the Field,
// as "[2].status" of several lines. The other lines are sent all the same, since what one client sends, such as a method of 20 bytes,
// must not take the lines of others out of the log. What NATS does not take in one message is an [*Error] with Status 413.
func (c *Client) LogRequest(entries ...LogEntry) error {
	var wrong error
	lines := make([][]byte, 0, len(entries))
	for i := range entries {
		line, err := entries[i].line()
		if err == nil {
			lines = append(lines, line)
			continue
		}
		if e, ok := errors.AsType[*Error](err); ok && len(entries) > 1 {
			e.Field = fmt.Sprintf("[%d].%s", i, e.Field)
		}
		wrong = cmp.Or(wrong, err)
	}
	if len(lines) == 0 {
		return wrong
	}
	if err := c.refuse(SubjectUsage, false); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), logWait)
	defer cancel()
	var err error
	if c.alone.aside(ctx, func() { err = c.publish(lines) }) && err != nil {
		return err
	}
	return wrong // also where they are still on their way
}

// publish sends lines in as few messages as the service and the NATS server take.
func (c *Client) publish(lines [][]byte) error {
	most := MaxRequestBytes
	if n := c.nc.MaxPayload(); n > 0 {
		most = min(most, int(n))
	}
	for len(lines) > 0 {
		n, size := 1, len(lines[0])+len("[]")
		for n < len(lines) && size+len(",")+len(lines[n]) <= most {
			size += len(",") + len(lines[n])
			n++
		}
		body := lines[0]
		if n > 1 {
			body = append(append([]byte("["), bytes.Join(lines[:n], []byte(","))...), ']')
		}
		switch err := c.nc.Publish(SubjectUsage, body); {
		case errors.Is(err, nats.ErrMaxPayload):
			return tooLarge(SubjectUsage, body)
		case err != nil:
			return fmt.Errorf("%s: %w", SubjectUsage, err)
		}
		lines = lines[n:]
	}
	return nil
}

// line gives the JSON of a line that the service takes.
func (e *LogEntry) line() ([]byte, error) {
	now := time.Now()
	earliest, latest := now.Add(-MaxLogAge).UnixMilli(), now.Add(MaxLogAhead).UnixMilli()
	for _, f := range []struct {
		name, text string
		min, max   int
	}{{"key", e.Key, 1, MaxKeyBytes}, {"user", e.User, 0, MaxKeyBytes}, {"endpoint", e.Endpoint, 1, MaxKeyBytes}, {"method", e.Method, 1, MaxMethodBytes}} {
		switch {
		case len(f.text) < f.min || len(f.text) > f.max:
			return nil, badLine(f.name, "has %d bytes; want %d to %d", len(f.text), f.min, f.max)
		case !utf8.ValidString(f.text) || strings.ContainsFunc(f.text, func(r rune) bool { return !unicode.IsPrint(r) }):
			return nil, badLine(f.name, "%q is not printable UTF-8", f.text)
		}
	}
	switch {
	case e.Status < 100 || e.Status > 599:
		return nil, badLine("status", "%d is out of range; want 100 to 599", e.Status)
	case e.Millis < 0 || e.Millis > MaxMillis:
		return nil, badLine("millis", "%d is out of range; want 0 to %d", e.Millis, MaxMillis)
	case e.At != 0 && (e.At < earliest || e.At > latest):
		return nil, badLine("at", "%d is out of range; want Unix milliseconds, %d to %d, or 0 for now", e.At, earliest, latest)
	}
	return json.Marshal(e)
}

func badLine(field, format string, args ...any) *Error {
	return &Error{Status: 400, Code: "invalid_" + field, Field: field,
		Message: SubjectUsage + ": " + field + " " + fmt.Sprintf(format, args...)}
}
