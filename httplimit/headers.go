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

// Draft is the document that [RateLimitFields] and [Problem] implement: RateLimit header fields for HTTP.
const Draft = "draft-ietf-httpapi-ratelimit-headers-11"

// Headers sets the headers of one style. Those of this package leave out limits in shadow.
type Headers func(h http.Header, a *Answer)

// XRateLimitUnix sets X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, in Unix seconds, rounded up.
func XRateLimitUnix(h http.Header, a *Answer) {
	setXRateLimit(h, a, func() string { return strconv.FormatInt(ceilSeconds(a.Reply.Reset), 10) })
}

// XRateLimitISO is [XRateLimitUnix] with the reset as an ISO 8601 date, such as 2026-01-02T15:04:05.000Z.
func XRateLimitISO(h http.Header, a *Answer) { setXRateLimit(h, a, a.resetISO) }

func setXRateLimit(h http.Header, a *Answer, reset func() string) {
	if len(a.enforced()) == 0 {
		return
	}
	// A middleware around this one has set them already. They speak for one limit: for that which has less left, or denies.
	if left, err := strconv.ParseInt(h.Get("X-RateLimit-Remaining"), 10, 64); err == nil && a.Reply.Allowed && left < a.Reply.Remaining {
		return
	}
	h.Set("X-RateLimit-Limit", strconv.FormatInt(a.Reply.Limit, 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(max(a.Reply.Remaining, 0), 10))
	h.Set("X-RateLimit-Reset", reset())
}

// RateLimitFields sets RateLimit-Policy and RateLimit of [Draft], which are lists of RFC 9651 with an item for each
// limit that is enforced:
//
//	RateLimit-Policy: "burst";q=100;w=60, "daily";q=1000;w=86400
//	RateLimit: "burst";r=50;t=30, "daily";r=999;t=3600
//
// Where a middleware around this one has set them already, the items are added to its.
//
// t, the draft's effective window, is when the limit is whole again, and for one that refuses, when the request fits. w is
// left out of windows that are not whole seconds or differ in length (months). No partition key is sent: it would tell the
// limit's key.
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
		state[i] = fmt.Sprintf("%s;r=%d;t=%d", name, sfInteger(l.Remaining), sfInteger(untilReset(l, a.At)))
	}
	addItems(h, "RateLimit-Policy", policy)
	addItems(h, "RateLimit", state)
}

func addItems(h http.Header, field string, items []string) {
	there := slices.DeleteFunc(slices.Clone(h.Values(field)), func(line string) bool { return line == "" })
	h.Set(field, strings.Join(append(there, items...), ", "))
}

// policyNames names each limit by policy and limit, and counts names that are equal as they are written, also to those that are there
// already: no two items may have one.
func policyNames(rows []limits.LimitReply, there []string) []string {
	names, written := make([]string, len(rows)), map[string]bool{}
	for item := range strings.SplitSeq(strings.Join(there, ", "), ", ") {
		name, _, _ := strings.Cut(item, ";q=")
		written[name] = true
	}
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

// untilReset counts from this machine's clock, as all of the fields' users do, since a client need not have one.
func untilReset(l limits.LimitReply, now time.Time) int64 {
	if !l.Allowed && l.RetryAfter > 0 {
		return ceilSeconds(l.RetryAfter)
	}
	return ceilSeconds(l.Reset - now.UnixMilli())
}

// maxInteger is the largest Integer of RFC 9651, which has 15 digits. Parsers refuse the whole field for one that has more, and a
// token bucket may be in debt for so long.
const maxInteger = 999_999_999_999_999

// sfInteger bounds n to what the parameters may be: a non-negative Integer of RFC 9651.
func sfInteger(n int64) int64 { return min(max(n, 0), maxInteger) }

// sfString writes a String of RFC 9651: ASCII in quotes. Other bytes are percent-encoded, control characters too, so
// that no name can add a header.
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

// windowSeconds reads a window as the service writes it. ok is false when it is not a number of whole seconds.
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

// setRetryAfter uses the form of a delay: it needs no clock of the client's.
func setRetryAfter(h http.Header, a *Answer) {
	if seconds, ok := a.RetryAfter(); ok {
		h.Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
}
