package httplimit

import (
	"fmt"
	"net/http"
	"time"

	"github.com/seed503877ad/limits"
)

// Answer is what is known of a request when its headers and its body are written.
type Answer struct {
	// Status is 429 for a denial; 400 or 409 for a request that the limiter cannot take; 401 for one without a valid API key; FailStatus
	// when the limiter did not answer, or denied for want of its store; 0 while a request that passes gets its headers.
	Status int
	// Reply is the decision; nil when there is none.
	Reply *limits.Reply
	// Key is what the API key of the request stands for, or why it is not valid; nil without [Config.APIKey], and for a request
	// without a key.
	Key *limits.VerifyReply
	// At is when the decision came.
	At time.Time

	// spec is the inline limit that was sent, if it was one alone: its reply leaves out the window.
	spec limits.LimitSpec
	// names are those that [RateLimitFields] has written; nil where it has not.
	names []string
}

// Denied tells whether the answer is a denial that is to be enforced.
func (a *Answer) Denied() bool { return a.Reply != nil && !a.Reply.Allowed && !a.Reply.Shadow }

// exceeded tells a limit that is used up from every other refusal.
func (a *Answer) exceeded() bool { return a.Status == http.StatusTooManyRequests && a.Denied() }

// RetryAfter is the seconds until the same request fits, rounded up; ok is false when it never does, and when there
// is no denial.
func (a *Answer) RetryAfter() (seconds int64, ok bool) {
	if !a.Denied() || a.Reply.RetryAfter <= 0 {
		return 0, false
	}
	return ceilSeconds(a.Reply.RetryAfter), true
}

// Wait is RetryAfter in words, such as "1 second", "42 seconds", "2 minutes", "8 hours"; empty when it has none.
func (a *Answer) Wait() string {
	seconds, ok := a.RetryAfter()
	if !ok {
		return ""
	}
	return waitWords(seconds)
}

// Current is how much of the limit is used. Of a token bucket the reply leaves out the burst, so what is used of that is not in it.
func (a *Answer) Current() int64 {
	if a.Reply == nil {
		return 0
	}
	return max(a.Reply.Limit-a.Reply.Remaining, 0)
}

// Limits lists every limit that was decided; none when nothing limits the request.
func (a *Answer) Limits() []limits.LimitReply {
	switch r := a.Reply; {
	case r == nil:
		return nil
	case len(r.Limits) > 0:
		return r.Limits
	case r.Limit > 0:
		return []limits.LimitReply{{
			Name: r.Name, Key: r.Key, Algorithm: a.spec.Algorithm, Limit: r.Limit, Window: a.spec.Window,
			Remaining: r.Remaining, Reset: r.Reset, Allowed: r.Allowed, RetryAfter: r.RetryAfter,
		}}
	}
	return nil
}

// enforced lists the limits that may refuse. Those in shadow are not for clients to see.
func (a *Answer) enforced() (rows []limits.LimitReply) {
	for _, l := range a.Limits() {
		if !l.Shadow {
			rows = append(rows, l)
		}
	}
	return rows
}

// top is the limit that the reply's own fields speak for.
func (a *Answer) top() limits.LimitReply {
	for _, l := range a.enforced() {
		// Limits of two policies may have one key and one name: then what stands beside them tells.
		if l.Key == a.Reply.Key && l.Name == a.Reply.Name && l.Limit == a.Reply.Limit && l.Remaining == a.Reply.Remaining &&
			l.Reset == a.Reply.Reset && l.Allowed == a.Reply.Allowed {
			return l
		}
	}
	return limits.LimitReply{}
}

// resetISO is the reset as JavaScript writes a date, or empty.
func (a *Answer) resetISO() string {
	if a.Reply == nil || a.Reply.Reset <= 0 {
		return ""
	}
	return a.Reply.ResetTime().UTC().Format("2006-01-02T15:04:05.000Z")
}

// waitWords rounds up at every step: whoever waits as long as it says is not refused once more.
func waitWords(seconds int64) string {
	minutes, hours := ceil(seconds, 60), ceil(seconds, 3600)
	switch {
	case seconds < 60:
		return plural(seconds, "second")
	case minutes != 60 && minutes < 120:
		return plural(minutes, "minute")
	case hours != 24 && hours < 48:
		return plural(hours, "hour")
	default:
		return plural(ceil(seconds, 86400), "day")
	}
}

func plural(n int64, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return fmt.Sprintf("%d %ss", n, unit)
}

func ceilSeconds(milliseconds int64) int64 { return ceil(milliseconds, 1000) }

// ceil divides, rounding up, without adding first: a huge n does not overflow.
func ceil(n, by int64) int64 {
	if n%by > 0 {
		return n/by + 1
	}
	return n / by
}
