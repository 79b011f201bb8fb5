package httplimit

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed503877ad/limits"
)

// Draft is the Internet-Draft that [RateLimitFields] and [Problem] implement: RateLimit header fields for HTTP.
const Draft = "draft-ietf-httpapi-ratelimit-headers-11"

// Headers sets the headers of one style. The styles of this package leave out limits in shadow.
type Headers func(h http.Header, a *Answer)

// XRateLimitUnix sets X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset. The reset is in Unix seconds, rounded
// up. A denial that never ends has no reset, as in [RateLimitFields].
func XRateLimitUnix(h http.Header, a *Answer) {
	setXRateLimit(h, a, func() string { return strconv.FormatInt(ceilSeconds(a.Reply.Reset), 10) })
}

// XRateLimitISO is [XRateLimitUnix] with the reset as an ISO 8601 timestamp, such as 2026-01-02T15:04:05.000Z.
func XRateLimitISO(h http.Header, a *Answer) { setXRateLimit(h, a, a.resetISO) }

func setXRateLimit(h http.Header, a *Answer, reset func() string) {
	if len(a.enforced()) == 0 {
		return
	}
	// A middleware around this one may have set the headers. They describe a single limit: the one with less remaining, or
	// the one that denies.
	if outer, err := strconv.ParseInt(h.Get("X-RateLimit-Remaining"), 10, 64); err == nil && a.Reply.Allowed && outer < a.Reply.Remaining {
		return
	}
	h.Set("X-RateLimit-Limit", strconv.FormatInt(a.Reply.Limit, 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(max(a.Reply.Remaining, 0), 10))
	if h.Del("X-RateLimit-Reset"); !a.neverFits() {
		h.Set("X-RateLimit-Reset", reset())
	}
}

// RateLimitFields sets RateLimit-Policy and RateLimit of [Draft]. They are lists (RFC 9651) with an item for each limit that
// is enforced:
//
//	RateLimit-Policy: "burst";q=100;w=60, "daily";q=1000;w=86400
//	RateLimit: "burst";r=50;t=30, "daily";r=999;t=3600
//
// If a middleware around this one has set the fields already, the items are added to them.
//
// t, the effective window of the draft, is when the whole limit is free again or, for a limit that denies, when the request
// fits. If the cost can never fit, t is left out of all items, and taken out of those of middlewares around this one: clients
// take the latest that they find for the time to come back, even that of a limit that does not deny. w is left out for
// windows that are not whole seconds or vary in length (months). No partition key is sent, because it would reveal the key of
// the limit.
func RateLimitFields(h http.Header, a *Answer) {
	rows := a.enforced()
	if len(rows) == 0 {
		return
	}
	names := policyNames(rows, h.Values("RateLimit-Policy"))
	a.names = names
	policy, state := make([]string, len(rows)), make([]string, len(rows))
	for i, l := range rows {
		name := sfString(names[i])
		policy[i] = fmt.Sprintf("%s;q=%d%s", name, sfInteger(l.Limit), windowParameter(l.Window))
		state[i] = fmt.Sprintf("%s;r=%d", name, sfInteger(l.Remaining))
		if !a.neverFits() {
			state[i] += fmt.Sprintf(";t=%d", sfInteger(untilReset(l, a.At)))
		}
	}
	appendItems(h, "RateLimit-Policy", policy)
	appendItems(h, "RateLimit", state)
	if a.neverFits() { // a middleware around this one has said when its own limits are free again
		h.Set("RateLimit", withoutResets(h.Get("RateLimit")))
	}
}

func appendItems(h http.Header, field string, items []string) {
	existing := slices.DeleteFunc(slices.Clone(h.Values(field)), func(line string) bool { return line == "" })
	h.Set(field, strings.Join(append(existing, items...), ", "))
}

// policyNames names each limit by its policy and its own name. Items must have distinct names, so a name that is already
// used, also by an item in existing, gets a number.
func policyNames(rows []limits.LimitReply, existing []string) []string {
	names, written := make([]string, len(rows)), itemNames(existing)
	for i, l := range rows {
		name := l.Name
		if l.Policy != "" {
			name = l.Policy + "/" + l.Name
		}
		names[i] = name
		for n := 2; written[sfString(names[i])]; n++ {
			names[i] = fmt.Sprintf("%s#%d", name, n)
		}
		written[sfString(names[i])] = true
	}
	return names
}

// untilReset is t: the seconds from now, by the clock of this machine, so that clients need none.
func untilReset(l limits.LimitReply, now time.Time) int64 {
	if !l.Allowed && l.RetryAfter > 0 {
		return ceilSeconds(l.RetryAfter)
	}
	return ceilSeconds(l.Reset - now.UnixMilli())
}

// maxInteger is the largest Integer of RFC 9651, which has 15 digits. Parsers reject the whole field if a number has more,
// and a token bucket may be in debt for that long.
const maxInteger = 999_999_999_999_999

// sfInteger bounds n to a non-negative Integer of RFC 9651.
func sfInteger(n int64) int64 { return min(max(n, 0), maxInteger) }

// sfString writes a String of RFC 9651: printable ASCII in quotes. Other bytes, such as control characters, are
// percent-encoded, so that a name cannot inject a header.
func sfString(text string) string {
	b := []byte{'"'}
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = fmt.Appendf(b, "%%%02X", c)
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}

func windowParameter(window string) string {
	if seconds, ok := windowSeconds(window); ok {
		return ";w=" + strconv.FormatInt(sfInteger(seconds), 10)
	}
	return ""
}

// windowSeconds parses a window as the service writes it. ok is false if its length is not a fixed number of seconds.
func windowSeconds(window string) (seconds int64, ok bool) {
	switch window {
	case "minute", "hour", "day", "week":
		window = "1" + window[:1]
	}
	digits := strings.TrimRight(window, "abcdefghijklmnopqrstuvwxyz")
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || n <= 0 {
		return 0, false
	}
	switch window[len(digits):] {
	case "ms":
		return n / 1000, n%1000 == 0
	case "s":
		return n, true
	case "m":
		return n * 60, true
	case "h":
		return n * 3600, true
	case "d":
		return n * 86400, true
	case "w":
		return n * 7 * 86400, true
	}
	return 0, false
}

// setRetryAfter writes a delay and not a date, so that the client needs no clock.
func setRetryAfter(h http.Header, a *Answer) {
	if seconds, ok := a.RetryAfter(); ok {
		h.Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
}
