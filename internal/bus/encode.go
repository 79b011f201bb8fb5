package bus

import (
	"strconv"
	"unicode/utf8"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/policy"
)

// appendReply appends the JSON of the [limits.Reply] for d, the decision on a request of cost. It
// is written by hand because it runs for every request. A test compares it with the type.
func appendReply(b []byte, verb engine.Verb, d *engine.Decision, cost int64) []byte {
	s := d.Speaker()
	b = append(b, `{"allowed":`...)
	b = strconv.AppendBool(b, d.Allowed)
	if s == nil {
		b = append(b, `,"limit":0,"remaining":0,"reset":0`...)
	} else {
		b = appendStringField(b, `,"key":`, s.Key)
		b = appendStringField(b, `,"name":`, s.Name)
		b = appendAmounts(b, s)
	}
	if !d.Allowed {
		b = appendDenial(b, verb, d, s, cost)
	}
	// If no policy matched, the list is there and empty, to tell that from an answer about one limit.
	if len(d.Results) != 1 || s.Policy != "" {
		b = appendLimits(b, d.Results)
	}
	if d.Degraded {
		b = append(b, `,"degraded":true`...)
	}
	if d.Shadow {
		b = append(b, `,"shadow":true`...)
	}
	return append(b, '}')
}

func appendDenial(b []byte, verb engine.Verb, d *engine.Decision, s *engine.Result, cost int64) []byte {
	if s != nil && !s.Allowed {
		if s.RetryAfter != 0 {
			b = appendIntField(b, `,"retryAfter":`, s.RetryAfter)
		}
		if !deniedWithoutStore(d, s) {
			b = appendStringField(b, `,"blockedBy":`, s.Name)
		}
	}
	if hasPolicyMessage(verb, s) && !deniedWithoutStore(d, s) {
		return appendString(append(b, `,"message":`...), string(policy.AppendMessage(nil, s, cost)))
	}
	b = append(b, `,"message":"`...)
	// The message needs no escapes: windows have none of the characters that do.
	return append(appendMessage(b, verb, d, s, cost), '"')
}

// deniedWithoutStore reports whether the setting on_error made the denial, and no limit. A denial by
// the stand-in limiter (on_error local) is one of a limit: either something is used, or less than
// the cost would fit.
func deniedWithoutStore(d *engine.Decision, s *engine.Result) bool {
	return d.Degraded && s != nil && s.Used == 0 && s.Remaining == 0
}

// hasPolicyMessage reports whether to use the message of the policy. It says when to try again, so
// there must be a time for that.
func hasPolicyMessage(verb engine.Verb, s *engine.Result) bool {
	return s != nil && s.Message != "" && s.RetryAfter != 0 && verb != engine.Record
}

func appendLimits(b []byte, results []engine.Result) []byte {
	b = append(b, `,"limits":[`...)
	for i := range results {
		if i > 0 {
			b = append(b, ',')
		}
		r := &results[i]
		b = append(b, '{')
		if r.Policy != "" {
			b = append(appendStringField(b, `"policy":`, r.Policy), ',')
		}
		b = appendStringField(b, `"name":`, r.Name)
		b = appendStringField(b, `,"key":`, r.Key)
		b = appendStringField(b, `,"algorithm":`, r.Algorithm.String())
		b = appendIntField(b, `,"limit":`, r.Limit)
		b = appendStringField(b, `,"window":`, r.Window)
		b = appendIntField(b, `,"remaining":`, r.Remaining)
		b = appendIntField(b, `,"reset":`, r.ResetAt)
		b = append(b, `,"allowed":`...)
		b = strconv.AppendBool(b, r.Allowed)
		if r.RetryAfter != 0 {
			b = appendIntField(b, `,"retryAfter":`, r.RetryAfter)
		}
		if r.Shadow {
			b = append(b, `,"shadow":true`...)
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

func appendAmounts(b []byte, r *engine.Result) []byte {
	b = appendIntField(b, `,"limit":`, r.Limit)
	b = appendIntField(b, `,"remaining":`, r.Remaining)
	return appendIntField(b, `,"reset":`, r.ResetAt)
}

func appendIntField(b []byte, name string, v int64) []byte {
	return strconv.AppendInt(append(b, name...), v, 10)
}

func appendStringField(b []byte, name, v string) []byte { return appendString(append(b, name...), v) }

// appendString appends a JSON string with the fewest escapes.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		n, escape := 1, ""
		switch {
		case c == '"' || c == '\\':
			escape = `\` + s[i:i+1]
		case c < ' ':
			escape = `\u00` + string("0123456789abcdef"[c>>4]) + string("0123456789abcdef"[c&15])
		default:
			var r rune
			if r, n = utf8.DecodeRuneInString(s[i:]); r == utf8.RuneError && n == 1 {
				escape = string(utf8.RuneError)
			}
		}
		if escape != "" {
			b = append(append(b, s[start:i]...), escape...)
			start = i + n
		}
		i += n
	}
	return append(append(b, s[start:]...), '"')
}

// appendMessage puts a denial into words: "100 of 100 used in 1m; try again in 23s".
func appendMessage(b []byte, verb engine.Verb, d *engine.Decision, s *engine.Result, cost int64) []byte {
	if deniedWithoutStore(d, s) {
		return appendDuration(append(b, "the store is unavailable; try again in "...), s.RetryAfter)
	}
	if s == nil {
		return append(b, "denied"...)
	}
	capacity := s.Limit
	if s.Algorithm == engine.TokenBucket {
		capacity += s.Burst
	}
	if cost > capacity && verb != engine.Record {
		return appendNeverFits(b, s, cost, capacity)
	}
	b = strconv.AppendInt(b, s.Used, 10)
	b = append(b, " of "...)
	b = strconv.AppendInt(b, capacity, 10)
	b = appendUsedIn(b, s)
	switch {
	case verb == engine.Record:
		return append(b, "; recorded past the limit"...)
	case s.Remaining > 0:
		b = append(b, ", not enough left for cost "...)
		b = strconv.AppendInt(b, cost, 10)
	}
	if s.RetryAfter == 0 {
		return append(b, "; try again later"...)
	}
	b = append(b, "; try again in "...)
	return appendDuration(b, s.RetryAfter)
}

func appendNeverFits(b []byte, s *engine.Result, cost, capacity int64) []byte {
	b = append(b, "cost "...)
	b = strconv.AppendInt(b, cost, 10)
	b = append(b, " is more than the "...)
	b = strconv.AppendInt(b, capacity, 10)
	switch {
	case s.Algorithm == engine.TokenBucket:
		b = append(b, " tokens the bucket holds"...)
	case isCalendar(s.Window):
		b = appendPeriod(append(b, " allowed in "...), s.Window)
	default:
		b = append(append(b, " allowed in "...), s.Window...)
	}
	return append(b, "; it can never fit"...)
}

// appendPeriod appends a calendar period with its article: a day, an hour.
func appendPeriod(b []byte, period string) []byte {
	if period == "hour" {
		return append(b, "an hour"...)
	}
	return append(append(b, "a "...), period...)
}

// appendUsedIn says in which window: "used in 1m", "used this minute", "used today". With anchor
// first_use it is "used in a day", as that is no day of the calendar.
func appendUsedIn(b []byte, s *engine.Result) []byte {
	switch {
	case s.Algorithm == engine.TokenBucket:
		return append(b, " tokens used"...)
	case s.FirstUse && isCalendar(s.Window):
		return appendPeriod(append(b, " used in "...), s.Window)
	case s.Window == "day":
		return append(b, " used today"...)
	case isCalendar(s.Window):
		return append(append(b, " used this "...), s.Window...)
	default:
		return append(append(b, " used in "...), s.Window...)
	}
}

// isCalendar reports whether the window is a calendar period. A duration begins with a digit.
func isCalendar(window string) bool { return window == "" || window[0] < '0' || window[0] > '9' }

// appendDuration appends milliseconds in at most two units. It rounds up, so that whoever waits
// that long does not come too early.
func appendDuration(b []byte, ms int64) []byte {
	const second, minute, hour, day = 1000, 60_000, 3_600_000, 86_400_000
	switch {
	case ms < second:
		return append(strconv.AppendInt(b, ms, 10), "ms"...)
	case ceil(ms, second) < 60:
		return append(strconv.AppendInt(b, ceil(ms, second), 10), 's')
	case ceil(ms, second) < 3600:
		return appendUnits(b, ceil(ms, second), 60, 'm', 's')
	case ceil(ms, minute) < day/minute:
		return appendUnits(b, ceil(ms, minute), 60, 'h', 'm')
	default:
		return appendUnits(b, ceil(ms, hour), 24, 'd', 'h')
	}
}

func appendUnits(b []byte, n, per int64, large, small byte) []byte {
	b = append(strconv.AppendInt(b, n/per, 10), large)
	if n%per != 0 {
		b = append(b, ' ')
		b = append(strconv.AppendInt(b, n%per, 10), small)
	}
	return b
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }
