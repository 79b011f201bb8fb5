package bus

import (
	"context"
	"time"

	limits "github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/usage"

	"github.com/nats-io/nats.go/micro"
)

// UsageLog takes requests for the log, without blocking; *[usage.Recorder] is one.
type UsageLog interface {
	Log(r usage.Request)
	// Malformed counts a message that cannot be read.
	Malformed()
}

// UsageReader answers questions about usage; every [usage.Store] is one.
type UsageReader interface {
	TopUsage(ctx context.Context, q usage.TopQuery) ([]usage.Top, error)
	Traffic(ctx context.Context, q usage.LogQuery) ([]usage.Traffic, error)
	SlowestEndpoints(ctx context.Context, q usage.LogQuery) ([]usage.Endpoint, error)
	EndpointErrors(ctx context.Context, q usage.LogQuery) ([]usage.Failure, error)
}

// logRequest takes a line of the request log. Nobody waits for it, so nobody is told what is wrong with it.
func (s *Service) logRequest(m micro.Request) {
	r, err := decodeLogEntry(m.Data(), time.Now())
	if err != nil {
		s.cfg.UsageLog.Malformed()
		s.cfg.Logger.Debug("ignore a line for the request log", "error", err)
		return
	}
	s.cfg.UsageLog.Log(r)
}

const (
	// A line is from at most a day ago, and from no more than a minute ahead, as clocks differ.
	logAge   = 24 * time.Hour
	logAhead = time.Minute
)

func decodeLogEntry(data []byte, now time.Time) (usage.Request, error) {
	r := newReader()
	entry := usage.Request{At: now.UnixMilli(), Millis: -1}
	text := func(to *string, name string, min, max int) error {
		b, err := r.printable(name, min, max)
		*to = string(b)
		return err
	}
	err := r.document(data, func(name []byte) (err error) {
		switch string(name) {
		case "key":
			err = text(&entry.Key, "key", 1, limits.MaxKeyBytes)
		case "user":
			err = text(&entry.User, "user", 0, limits.MaxKeyBytes)
		case "endpoint":
			err = text(&entry.Endpoint, "endpoint", 1, limits.MaxKeyBytes)
		case "method":
			err = text(&entry.Method, "method", 1, limits.MaxMethodBytes)
		case "status":
			entry.Status, err = r.number("status", 100, 599)
		case "millis":
			entry.Millis, err = r.number("millis", 0, limits.MaxMillis)
		case "at":
			entry.At, err = r.number("at", now.Add(-logAge).UnixMilli(), now.Add(logAhead).UnixMilli())
		default:
			err = r.unknown(name, "key, user, endpoint, method, status, millis, at")
		}
		return err
	})
	if err != nil {
		return entry, err
	}
	for _, f := range []struct {
		name   string
		absent bool
	}{{"key", entry.Key == ""}, {"endpoint", entry.Endpoint == ""}, {"method", entry.Method == ""}, {"status", entry.Status == 0},
		{"millis", entry.Millis < 0}} {
		if f.absent {
			return entry, badInput(f.name, f.name, "%s is missing", f.name)
		}
	}
	return entry, nil
}

// defaultUsageRows is how many rows an answer has unless said.
const defaultUsageRows = 20

// The periods that are asked about unless said.
const (
	topPeriod = time.Hour
	logPeriod = 24 * time.Hour
)

// span is the period of a question: a length up to now, or two moments.
type span struct {
	period       time.Duration
	since, until int64
}

const spanFields = "period, since, until"

// member reads a member that says the period; known is false for any other.
func (p *span) member(r *reader, name []byte) (known bool, err error) {
	switch string(name) {
	case "period":
		p.period, err = r.period()
	case "since":
		p.since, err = r.number("since", 1, maxMoment)
	case "until":
		p.until, err = r.number("until", 1, maxMoment)
	default:
		return false, nil
	}
	return true, err
}

// maxMoment is far beyond any date that is meant.
const maxMoment = 1 << 46

func (r *reader) period() (time.Duration, error) {
	b, err := r.string("period")
	if err != nil {
		return 0, err
	}
	w, err := engine.ParseWindow(string(b))
	if err != nil || w.Period != 0 {
		return 0, r.bad("period", "period %s is no duration; want one such as 30m, 1h or 7d", quoteText(b))
	}
	return time.Duration(w.Millis) * time.Millisecond, nil
}

// resolve gives the two moments.
func (p *span) resolve(now time.Time, unless time.Duration) (since, until int64, err error) {
	switch {
	case p.period != 0 && p.since+p.until != 0:
		return 0, 0, &limits.Error{Status: 400, Code: "mixed_forms", Field: "period",
			Message: "period counts back from now, and since and until name moments; give one of them"}
	case p.since == 0 && p.until != 0:
		return 0, 0, badInput("since", "since", "since is missing; until needs it")
	}
	if p.until == 0 {
		p.until = now.UnixMilli() + 1
	}
	if p.since == 0 {
		if p.period == 0 {
			p.period = unless
		}
		p.since = now.Add(-p.period).UnixMilli()
	}
	if p.since >= p.until {
		return 0, 0, badInput("until", "until", "until %d is not after since %d", p.until, p.since)
	}
	return p.since, p.until, nil
}

// oneOf reads one of some words.
func (r *reader) oneOf(field string, words ...string) (string, error) {
	b, err := r.string(field)
	if err != nil {
		return "", err
	}
	for _, word := range words {
		if string(b) == word {
			return word, nil
		}
	}
	return "", r.bad(field, "unknown %s %s; want one of %q", field, quoteText(b), words)
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

// TopRows gives rows as they are on the wire.
func TopRows(rows []usage.Top) []limits.TopRow {
	all := make([]limits.TopRow, len(rows))
	for i, t := range rows {
		all[i] = limits.TopRow{Key: t.Key, Policy: t.Policy, User: t.User, Allowed: t.Allowed, Denied: t.Denied,
			Cost: t.Cost, Peak: t.Peak}
	}
	return all
}

func decodeTop(data []byte, now time.Time) (usage.TopQuery, error) {
	r := newReader()
	q := usage.TopQuery{By: usage.ByDenied, Max: defaultUsageRows}
	var p span
	text := func(to *string, name string, max int) error {
		b, err := r.printable(name, 0, max)
		*to = string(b)
		return err
	}
	err := r.document(data, func(name []byte) error {
		switch string(name) {
		case "by":
			by, err := r.oneOf("by", usage.ByDenied, usage.ByUsed, usage.ByAllowed)
			q.By = by
			return err
		case "policy":
			return text(&q.Policy, "policy", limits.MaxNameBytes)
		case "user":
			return text(&q.User, "user", limits.MaxKeyBytes)
		case "prefix":
			return text(&q.Prefix, "prefix", limits.MaxKeyBytes)
		case "max":
			n, err := r.number("max", 1, limits.MaxUsageRows)
			q.Max = int(n)
			return err
		}
		if known, err := p.member(r, name); known {
			return err
		}
		return r.unknown(name, "by, "+spanFields+", policy, prefix, user, max")
	})
	if err == nil {
		q.Since, q.Until, err = p.resolve(now, topPeriod)
	}
	return q, err
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
		for _, t := range rows {
			reply.Traffic = append(reply.Traffic, limits.KeyTraffic(t))
		}
		return reply, err
	case limits.ReportSlowest:
		rows, err := s.cfg.Usage.SlowestEndpoints(ctx, q)
		for _, e := range rows {
			reply.Slowest = append(reply.Slowest, limits.EndpointTimes(e))
		}
		return reply, err
	default:
		rows, err := s.cfg.Usage.EndpointErrors(ctx, q)
		for _, f := range rows {
			reply.Errors = append(reply.Errors, limits.EndpointError(f))
		}
		return reply, err
	}
}

func decodeUsage(data []byte, now time.Time) (report string, q usage.LogQuery, err error) {
	r := newReader()
	q.Max = defaultUsageRows
	var p span
	err = r.document(data, func(name []byte) (err error) {
		switch string(name) {
		case "report":
			report, err = r.oneOf("report", limits.ReportTraffic, limits.ReportSlowest, limits.ReportErrors)
			return err
		case "prefix":
			b, err := r.printable("prefix", 0, limits.MaxKeyBytes)
			q.Prefix = string(b)
			return err
		case "max":
			n, err := r.number("max", 1, limits.MaxUsageRows)
			q.Max = int(n)
			return err
		}
		if known, err := p.member(r, name); known {
			return err
		}
		return r.unknown(name, "report, "+spanFields+", prefix, max")
	})
	if err == nil && report == "" {
		err = badInput("report", "report", "report is missing; want traffic, slowest or errors")
	}
	if err == nil {
		q.Since, q.Until, err = p.resolve(now, logPeriod)
	}
	return report, q, err
}
