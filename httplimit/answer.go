package httplimit

import (
	"fmt"
	"net/http"
	"time"

	"github.com/seed503877ad/limits"
)

// Answer is the limiter's answer to a request, from which its headers and the body of a refusal are written.
type Answer struct {
	// Status is the status of a refusal: 429 for a denial, 400 or 409 for a request that the limiter cannot process, 401
	// for a request without a valid API key, and FailStatus if the limiter did not answer or denied because it cannot reach
	// its store. It is 0 when the headers of a request that passes are written.
	Status int
	// Reply is the decision; nil if there is none.
	Reply *limits.Reply
	// Key is the verified API key of the request, or why the key is not valid. It is nil without [Config.APIKey] and for a
	// request without a key.
	Key *limits.VerifyReply
	// At is when the decision came.
	At time.Time

	// spec is the inline limit of the request, if it had exactly one. The reply to such a request leaves out the window.
	spec limits.LimitSpec
	// names are the names that [RateLimitFields] has given the limits; nil if it was not called.
	names []string
}

// Denied reports whether the answer is a denial that is to be enforced.
func (a *Answer) Denied() bool { return a.Reply != nil && !a.Reply.Allowed && !a.Reply.Shadow }

// exceeded reports whether the request is refused because a limit is exceeded, and for no other reason.
func (a *Answer) exceeded() bool { return a.Status == http.StatusTooManyRequests && a.Denied() }

// RetryAfter is how long until the same request fits, in seconds, rounded up. ok is false if it never fits, and if the
// answer is not a denial.
func (a *Answer) RetryAfter() (seconds int64, ok bool) {
	if !a.Denied() || a.Reply.RetryAfter <= 0 {
		return 0, false
	}
	return ceilSeconds(a.Reply.RetryAfter), true
}

// neverFits reports whether the answer is a denial of a cost that can never fit.
func (a *Answer) neverFits() bool { return a.Denied() && a.Reply.RetryAfter <= 0 }

// Wait is RetryAfter in words, such as "1 second", "42 seconds", "2 minutes" or "8 hours". It is empty if RetryAfter is
// not ok.
func (a *Answer) Wait() string {
	seconds, ok := a.RetryAfter()
	if !ok {
		return ""
	}
	return inWords(seconds)
}

// Current is how much of the limit is used, at most the limit: a reply does not state what was recorded beyond it. For a token
// bucket it leaves out what is used of the burst, which the reply does not state either.
func (a *Answer) Current() int64 {
	if a.Reply == nil {
		return 0
	}
	return max(a.Reply.Limit-a.Reply.Remaining, 0)
}

// Limits lists every limit that was decided. It is empty if nothing limits the request.
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

// enforced lists the limits that are not in shadow. Clients do not see the others.
func (a *Answer) enforced() (rows []limits.LimitReply) {
	for _, l := range a.Limits() {
		if !l.Shadow {
			rows = append(rows, l)
		}
	}
	return rows
}

// top is the limit that the top-level fields of the reply describe.
func (a *Answer) top() limits.LimitReply {
	for _, l := range a.enforced() {
		// Limits of two policies may have the same key and name, so compare the other fields, too.
		if l.Key == a.Reply.Key && l.Name == a.Reply.Name && l.Limit == a.Reply.Limit && l.Remaining == a.Reply.Remaining &&
			l.Reset == a.Reply.Reset && l.Allowed == a.Reply.Allowed {
			return l
		}
	}
	return limits.LimitReply{}
}

// resetISO is the reset in the format of JavaScript's Date.toISOString, or empty.
func (a *Answer) resetISO() string {
	if a.Reply == nil || a.Reply.Reset <= 0 {
		return ""
	}
	return a.Reply.ResetTime().UTC().Format("2006-01-02T15:04:05.000Z")
}

// inWords rounds up to the unit that it uses, so that nobody who waits that long is refused again.
func inWords(seconds int64) string {
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

// ceil returns n/by, rounded up. Unlike (n+by-1)/by it does not overflow.
func ceil(n, by int64) int64 {
	if n%by > 0 {
		return n/by + 1
	}
	return n / by
}
