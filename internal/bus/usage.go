package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/usage"
)

// UsageLog takes entries of the request log without blocking. *[usage.Recorder] is one.
type UsageLog interface {
	Log(r usage.Request)
	// Malformed counts a line that cannot be read.
	Malformed()
}

// UsageReader answers questions about usage. Every [usage.Store] is one.
type UsageReader interface {
	TopUsage(ctx context.Context, q usage.TopQuery) ([]usage.Top, error)
	Traffic(ctx context.Context, q usage.LogQuery) ([]usage.Traffic, error)
	SlowestEndpoints(ctx context.Context, q usage.LogQuery) ([]usage.Endpoint, error)
	EndpointErrors(ctx context.Context, q usage.LogQuery) ([]usage.Failure, error)
}

// logUsage takes lines of the request log, each by itself. Callers get no answer, so only the log
// says what is wrong.
func (s *Service) logUsage(m micro.Request) {
	for _, line := range logLines(m.Data()) {
		r, err := decodeLogEntry(line, time.Now())
		if err == nil {
			s.cfg.UsageLog.Log(r)
			continue
		}
		s.cfg.UsageLog.Malformed()
		s.invalidLines.add(err)
	}
}

func (s *Service) warnOfLines(err error, n int64) {
	s.cfg.Logger.Warn("ignored invalid lines for the request log", "error", keys.Mask(err.Error()), "lines", n)
}

// maxLogLines is more than a message has room for, as the shortest line has 63 bytes. Without it an
// array of empty values would delay decisions.
const maxLogLines = 300

// logLines returns the lines of a message: the message itself, or the items if it is an array. A
// malformed, empty or too large array counts as one line, so that [decodeLogEntry] says what is
// wrong with it.
func logLines(data []byte) []json.RawMessage {
	whole := []json.RawMessage{data}
	if len(data) > limits.MaxRequestBytes || !bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("[")) {
		return whole
	}
	array := json.NewDecoder(bytes.NewReader(data))
	_, _ = array.Token() // the bracket
	var lines []json.RawMessage
	for array.More() {
		var line json.RawMessage
		if err := array.Decode(&line); err != nil || len(lines) == maxLogLines {
			return whole
		}
		lines = append(lines, line)
	}
	if _, err := array.Token(); err != nil || len(lines) == 0 {
		return whole
	}
	if _, err := array.Token(); err != io.EOF { // something follows the array
		return whole
	}
	return lines
}

func decodeLogEntry(data []byte, now time.Time) (usage.Request, error) {
	entry := usage.Request{Millis: -1}
	earliest, latest := now.Add(-limits.MaxLogAge).UnixMilli(), now.Add(limits.MaxLogAhead).UnixMilli()
	err := readFields(data,
		text("key", &entry.Key, 1, limits.MaxKeyBytes),
		text("user", &entry.User, 0, limits.MaxKeyBytes),
		text("endpoint", &entry.Endpoint, 1, limits.MaxKeyBytes),
		text("method", &entry.Method, 1, limits.MaxMethodBytes),
		number("status", &entry.Status, 100, 599),
		number("millis", &entry.Millis, 0, limits.MaxMillis),
		number("at", &entry.At, 0, latest))
	switch {
	case err != nil:
		return entry, err
	case entry.At == 0: // a client that writes zero values means now, too
		entry.At = now.UnixMilli()
	case entry.At < earliest:
		return entry, invalid("at", "at %d is out of range; want %d to %d", entry.At, earliest, latest)
	}
	for _, f := range []struct {
		name   string
		absent bool
	}{{"key", entry.Key == ""}, {"endpoint", entry.Endpoint == ""}, {"method", entry.Method == ""}, {"status", entry.Status == 0},
		{"millis", entry.Millis < 0}} {
		if f.absent {
			return entry, invalid(f.name, "%s is missing", f.name)
		}
	}
	return entry, nil
}

// defaultUsageRows is how many rows an answer has by default.
const defaultUsageRows = 20

// The default periods.
const (
	topPeriod = time.Hour
	logPeriod = 24 * time.Hour
)

// span is the period of a question: a length up to now, or two times.
type span struct {
	period       time.Duration
	since, until int64
}

// resolve returns the two times. defaultPeriod is the length if neither is given.
func (p *span) resolve(now time.Time, defaultPeriod time.Duration) (since, until int64, err error) {
	switch {
	case p.period != 0 && p.since+p.until != 0:
		return 0, 0, mixedForms("period", "period counts back from now, but since and until are fixed times; give one or the other")
	case p.since == 0 && p.until != 0:
		return 0, 0, invalid("since", "since is missing; until needs it")
	}
	if p.until == 0 {
		p.until = now.UnixMilli() + 1
	}
	if p.since == 0 {
		if p.period == 0 {
			p.period = defaultPeriod
		}
		p.since = now.Add(-p.period).UnixMilli()
	}
	if p.since >= p.until {
		return 0, 0, invalid("until", "until %d is not after since %d", p.until, p.since)
	}
	return p.since, p.until, nil
}

func (s *Service) top(ctx context.Context, data []byte) (any, error) {
	q, err := decodeTop(data, time.Now())
	if err != nil {
		return nil, err
	}
	rows, err := s.cfg.Usage.TopUsage(ctx, q)
	if err != nil {
		return nil, err
	}
	return limits.Top{Since: q.Since, Until: q.Until, Rows: TopRows(rows)}, nil
}

// TopRows returns rows as they are on the wire.
func TopRows(rows []usage.Top) []limits.TopRow {
	return wireAll(rows, func(t *usage.Top) limits.TopRow {
		return limits.TopRow{Key: t.Key, Policy: t.Policy, User: t.User, Allowed: t.Allowed, Denied: t.Denied,
			Cost: t.Cost, Peak: t.Peak}
	})
}

func decodeTop(data []byte, now time.Time) (usage.TopQuery, error) {
	q := usage.TopQuery{By: usage.ByDenied, Max: defaultUsageRows}
	var p span
	err := readFields(data,
		oneOf("by", &q.By, usage.ByDenied, usage.ByUsed, usage.ByAllowed),
		period("period", &p.period),
		number("since", &p.since, 1, maxTime),
		number("until", &p.until, 1, maxTime),
		text("policy", &q.Policy, 0, limits.MaxNameBytes),
		text("prefix", &q.Prefix, 0, limits.MaxKeyBytes),
		text("user", &q.User, 0, limits.MaxKeyBytes),
		number("max", &q.Max, 1, limits.MaxUsageRows))
	if err == nil {
		q.Since, q.Until, err = p.resolve(now, topPeriod)
	}
	wholeMinutes(&q, now)
	return q, err
}

// wholeMinutes widens the period to the minutes in which it begins and ends, because usage is kept by the minute: from
// second 5, the last 30 seconds are mostly in the minute before. The current minute ends now, unless a later time was asked
// for.
func wholeMinutes(q *usage.TopQuery, now time.Time) {
	const minute = int64(time.Minute / time.Millisecond)
	q.Since -= q.Since % minute
	q.Until = max(q.Until, min((q.Until+minute-1)/minute*minute, now.UnixMilli()+1))
}

func (s *Service) usage(ctx context.Context, data []byte) (any, error) {
	report, q, err := decodeUsage(data, time.Now())
	if err != nil {
		return nil, err
	}
	reply := limits.Usage{Since: q.Since, Until: q.Until}
	switch report {
	case limits.ReportTraffic:
		rows, err := s.cfg.Usage.Traffic(ctx, q)
		reply.Traffic = wireAll(rows, func(t *usage.Traffic) limits.KeyTraffic { return limits.KeyTraffic(*t) })
		return reply, err
	case limits.ReportSlowest:
		rows, err := s.cfg.Usage.SlowestEndpoints(ctx, q)
		reply.Slowest = wireAll(rows, func(e *usage.Endpoint) limits.EndpointTimes { return limits.EndpointTimes(*e) })
		return reply, err
	default:
		rows, err := s.cfg.Usage.EndpointErrors(ctx, q)
		reply.Errors = wireAll(rows, func(f *usage.Failure) limits.EndpointError { return limits.EndpointError(*f) })
		return reply, err
	}
}

func decodeUsage(data []byte, now time.Time) (report string, q usage.LogQuery, err error) {
	q.Max = defaultUsageRows
	var p span
	err = readFields(data,
		oneOf("report", &report, limits.ReportTraffic, limits.ReportSlowest, limits.ReportErrors),
		period("period", &p.period),
		number("since", &p.since, 1, maxTime),
		number("until", &p.until, 1, maxTime),
		text("prefix", &q.Prefix, 0, limits.MaxKeyBytes),
		number("max", &q.Max, 1, limits.MaxUsageRows))
	if err == nil && report == "" {
		err = invalid("report", "report is missing; want traffic, slowest or errors")
	}
	if err == nil {
		q.Since, q.Until, err = p.resolve(now, logPeriod)
	}
	return report, q, err
}
