package httplimit

import (
	"context"
	"iter"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxDelay bounds what a server's headers can say: more is taken as this.
const maxDelay = 366 * 24 * time.Hour

// CanRetry tells whether the same request may pass later: the status is 429, or it is 503 with a Retry-After.
func CanRetry(resp *http.Response) bool {
	return resp.StatusCode == http.StatusTooManyRequests ||
		resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != ""
}

// RetryAt is the earliest time at which the server wants to see the request again, counted from now, so call it when
// the response comes. It reads Retry-After (seconds or a date), else the later of t of RateLimit ([Draft]) and X-RateLimit-Reset
// (an ISO date, Unix seconds or milliseconds, or seconds from now). Of a field that comes more than once, as through a proxy that
// has limits of its own, the latest counts. A date is measured against the server's own clock, if the response tells it in Date.
// ok is false when none of them can be read. A RateLimit with a mistake anywhere is passed over as a whole, as [Draft] and RFC 9651
// demand, and so is one of more than 8 KiB.
func RetryAt(resp *http.Response) (at time.Time, ok bool) {
	now := time.Now()
	server, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		server = now
	}
	delay, ok := latest(resp.Header.Values("Retry-After"), server, retryAfter)
	if !ok {
		delay, ok = rateLimitReset(resp.Header)
		if reset, told := latest(resp.Header.Values("X-RateLimit-Reset"), server, xRateLimitReset); told {
			delay, ok = max(delay, reset), true
		}
	}
	if !ok {
		return time.Time{}, false
	}
	return now.Add(min(max(delay, 0), maxDelay)), true
}

// latest gives the longest delay of the lines that can be read: which of those who wrote them refused is not said.
func latest(lines []string, now time.Time, read func(string, time.Time) (time.Duration, bool)) (longest time.Duration, ok bool) {
	for _, line := range lines {
		if delay, readable := read(line, now); readable {
			longest, ok = max(longest, delay), true
		}
	}
	return longest, ok
}

func retryAfter(value string, now time.Time) (time.Duration, bool) {
	if delay, ok := seconds(value); ok {
		return delay, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return at.Sub(now), true
}

// seconds reads digits alone; a number too large for a delay is as good as the largest.
func seconds(text string) (time.Duration, bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > int64(maxDelay/time.Second) {
		return maxDelay, true
	}
	return time.Duration(n) * time.Second, true
}

// rateLimitReset gives the longest t of the items that have nothing left, and of all items if every one has some:
// which of them refused is not said.
func rateLimitReset(h http.Header) (longest time.Duration, ok bool) {
	exhausted := false
	for _, item := range rateLimitItems(h.Values("RateLimit")) {
		if !item.told || exhausted && !item.none {
			continue
		}
		if item.none && !exhausted {
			longest, exhausted = 0, true
		}
		longest, ok = max(longest, item.t), true
	}
	return longest, ok
}

// xRateLimitReset tells the three kinds of number apart by size: Unix seconds have been over 1e9 since 2001, Unix
// milliseconds are over 1e12, and a delay of 30 years is none.
func xRateLimitReset(text string, now time.Time) (time.Duration, bool) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at.Sub(now), true
	}
	if _, digits := seconds(text); !digits {
		return 0, false
	}
	switch n, err := strconv.ParseInt(text, 10, 64); {
	case err != nil:
		return maxDelay, true
	case n >= 1e12:
		return time.UnixMilli(n).Sub(now), true
	case n >= 1e9:
		return time.Unix(n, 0).Sub(now), true
	default:
		return seconds(text)
	}
}

// Countdown gives what is left until a time, in whole seconds, rounded up: at once, then on each further second, and
// 0 at the end. It ends early with ctx. A user interface shows it beside a button that it enables at 0.
func Countdown(ctx context.Context, until time.Time) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		for {
			exact := min(max(time.Until(until), 0), math.MaxInt64-time.Second) // 292 years, and room to round up
			left := (exact + time.Second - 1).Truncate(time.Second)
			if !yield(left) || left == 0 {
				return
			}
			if pause(ctx, exact-(left-time.Second)) != nil {
				return
			}
		}
	}
}

// pause sleeps d, or as long as ctx lasts, and gives the cause of its end, as package http does.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
