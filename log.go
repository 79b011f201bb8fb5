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

// logTimeout is how long LogRequest may delay its caller. A process under high CPU load needs a tenth of it.
const logTimeout = 100 * time.Millisecond

// LogRequest adds lines to the request log. It sends as few messages as [MaxRequestBytes] allows, and waits for no
// answer, so it does not learn whether the service accepted the lines.
//
// When LogRequest returns, the lines are in the buffer of the connection. Before the program ends, call Flush, or Drain
// and wait for nats.ClosedHandler. If the connection is blocked, LogRequest waits for 100 ms and leaves the lines to
// the connection. After the connection has been blocked for a second, lines are dropped at once, with an error that
// wraps nats.ErrDisconnected, until it is free again.
//
// The service gives a line without At the time when it arrives. While the connection is interrupted or blocked, lines
// get the time of this machine instead, because they are sent later. They are dropped if that is more than
// [MaxLogAhead] ahead of the service's clock when they arrive.
//
// For a line that the service would drop, such as one without a Key or with Status 0, LogRequest returns an [*Error]
// with Status 400 and the Field at fault, written as "[2].status" if there are several lines. The other lines are sent
// nevertheless: what one client sends, such as a method of 20 bytes, must not keep the requests of others out of the
// log. A line that NATS does not take in one message is an [*Error] with Status 413; the others are sent, too.
func (c *Client) LogRequest(entries ...LogEntry) error {
	made := time.Now()
	var invalid error // of the first invalid line
	valid := make([]LogEntry, 0, len(entries))
	for i := range entries {
		err := entries[i].validate(made)
		if err == nil {
			valid = append(valid, entries[i])
			continue
		}
		if e, ok := errors.AsType[*Error](err); ok && len(entries) > 1 {
			e.Field = fmt.Sprintf("[%d].%s", i, e.Field)
		}
		invalid = cmp.Or(invalid, err)
	}
	if len(valid) == 0 {
		return invalid
	}
	if err := c.checkConnection(SubjectUsage, false); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), logTimeout)
	defer cancel()
	var err error
	if c.blocking.run(ctx, func() { err = c.publish(valid, made) }) && err != nil {
		return err
	}
	return invalid // also if publish is still blocked: the lines are then sent later
}

// publish sends entries in as few messages as the size limits of the service and of the NATS server allow. They get the
// time when they were made only if they will arrive later, since this machine's clock may be wrong.
func (c *Client) publish(entries []LogEntry, made time.Time) error {
	late := !c.nc.IsConnected() || time.Since(made) > stalledAfter
	lines := make([][]byte, len(entries))
	for i, e := range entries {
		if late {
			e.At = cmp.Or(e.At, made.UnixMilli())
		}
		lines[i], _ = json.Marshal(e) // cannot fail
	}
	maxBytes := MaxRequestBytes
	if n := c.nc.MaxPayload(); n > 0 {
		maxBytes = min(maxBytes, int(n))
	}
	var large error // of the first line that is too large by itself
	for len(lines) > 0 {
		n, size := 1, len(lines[0])+len("[]")
		for n < len(lines) && size+len(",")+len(lines[n]) <= maxBytes {
			size += len(",") + len(lines[n])
			n++
		}
		body := lines[0]
		if n > 1 {
			body = append(append([]byte("["), bytes.Join(lines[:n], []byte(","))...), ']')
		}
		switch err := c.nc.Publish(SubjectUsage, body); {
		case errors.Is(err, nats.ErrMaxPayload):
			large = cmp.Or[error](large, tooLarge(SubjectUsage, body))
		case err != nil:
			return fmt.Errorf("%s: %w", SubjectUsage, err)
		}
		lines = lines[n:]
	}
	return large
}

// validate returns an error if the service would drop the line.
func (e *LogEntry) validate(now time.Time) error {
	earliest, latest := now.Add(-MaxLogAge).UnixMilli(), now.Add(MaxLogAhead).UnixMilli()
	for _, f := range []struct {
		name, text string
		min, max   int
	}{{"key", e.Key, 1, MaxKeyBytes}, {"user", e.User, 0, MaxKeyBytes}, {"endpoint", e.Endpoint, 1, MaxKeyBytes}, {"method", e.Method, 1, MaxMethodBytes}} {
		switch {
		case len(f.text) < f.min || len(f.text) > f.max:
			return badLine(f.name, "has %d bytes; want %d to %d", len(f.text), f.min, f.max)
		case !utf8.ValidString(f.text) || strings.ContainsFunc(f.text, func(r rune) bool { return !unicode.IsPrint(r) }):
			return badLine(f.name, "%q is not printable UTF-8", f.text)
		}
	}
	switch {
	case e.Status < 100 || e.Status > 599:
		return badLine("status", "%d is out of range; want 100 to 599", e.Status)
	case e.Millis < 0 || e.Millis > MaxMillis:
		return badLine("millis", "%d is out of range; want 0 to %d", e.Millis, MaxMillis)
	case e.At != 0 && (e.At < earliest || e.At > latest):
		return badLine("at", "%d is out of range; want Unix milliseconds, %d to %d, or 0 for now", e.At, earliest, latest)
	}
	return nil
}

func badLine(field, format string, args ...any) *Error {
	return &Error{Status: 400, Code: "invalid_" + field, Field: field,
		Message: SubjectUsage + ": " + field + " " + fmt.Sprintf(format, args...)}
}
