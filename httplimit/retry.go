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

// maxDelay is the longest delay that is read from the headers of a response. A longer one is reduced to it.
const maxDelay = 366 * 24 * time.Hour

// CanRetry reports whether the same request may succeed later: the status is 429, or 503 with a Retry-After. A nil response,
// which a failed request has, cannot be retried. If [RetryAt] finds no time in a 429, the request may be one that never fits.
func CanRetry(resp *http.Response) bool {
	return resp != nil && (resp.StatusCode == http.StatusTooManyRequests ||
		resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != "")
}

// RetryAt returns the earliest time at which the server accepts the request again. Delays are counted from now, so call it
// when the response arrives.
//
// It reads Retry-After (seconds or a date). Without that, it takes the later of t in RateLimit ([Draft]) and
// X-RateLimit-Reset (an ISO date, Unix seconds or milliseconds, or seconds from now). ok is false if none of them can be
// parsed. If a field occurs more than once, for example because a proxy has limits of its own, the latest time counts.
// Dates are compared with the server's clock if the response has a Date.
//
// A RateLimit field with any mistake in it is ignored as a whole, as [Draft] and RFC 9651 demand, and so is one of more than
// 8 KiB. A nil response has none.
func RetryAt(resp *http.Response) (at time.Time, ok bool) {
	if resp == nil {
		return time.Time{}, false
	}
	now := time.Now()
	server, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		server = now
	}
	delay, ok := latest(resp.Header.Values("Retry-After"), server, retryAfter)
	if !ok {
		delay, ok = rateLimitReset(resp.Header)
		if reset, found := latest(resp.Header.Values("X-RateLimit-Reset"), server, xRateLimitReset); found {
			delay, ok = max(delay, reset), true
		}
	}
	if !ok {
		return time.Time{}, false
	}
	return now.Add(min(delay, maxDelay)), true
}

// latest returns the longest delay among the lines that can be parsed, since they do not say whose limit denied.
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

// seconds parses a text of only digits. A number that is too large gives maxDelay.
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

// rateLimitReset returns the longest reset of the exhausted items or, if none is exhausted, of all items, since they do not
// say which limit denied.
func rateLimitReset(h http.Header) (longest time.Duration, ok bool) {
	anyExhausted := false
	for _, item := range rateLimitItems(h.Values("RateLimit")) {
		if !item.hasReset || anyExhausted && !item.exhausted {
			continue
		}
		if item.exhausted && !anyExhausted {
			longest, anyExhausted = 0, true
		}
		longest, ok = max(longest, item.reset), true
	}
	return longest, ok
}

// xRateLimitReset tells the three kinds of number apart by their size: Unix milliseconds are over 1e12, Unix seconds have
// been over 1e9 since 2001, and smaller numbers are delays in seconds, since nobody means a delay of 30 years.
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

// Countdown yields the time that remains until a moment, in whole seconds, rounded up: immediately, then every second, and
// finally 0. It ends early if ctx ends. A user interface can show it beside a button that is enabled at 0.
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

// pause sleeps for d. If ctx ends first, it returns the cause of that, as package http does.
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
