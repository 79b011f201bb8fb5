package httplimit

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/seed503877ad/limits"
)

// Body writes the body of a refusal: a denial, a request that the limiter cannot process, a request without a valid API
// key or, with FailClosed, a failure of the limiter. The bodies of this package do not reveal the cause of a failure, which
// is passed to OnError.
type Body func(a *Answer) (contentType string, body []byte)

// JSON makes a body of what value returns, written by encoding/json. It panics if value is nil.
func JSON(value func(a *Answer) any) Body {
	if value == nil {
		panic("httplimit: JSON: value is nil")
	}
	return func(a *Answer) (string, []byte) { return "application/json", mustMarshal(value(a)) }
}

// mustMarshal panics if a value, of this package or of a [JSON] body, cannot be written: a refusal must not be sent
// without its body.
func mustMarshal(value any) []byte {
	b, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Errorf("httplimit: write body: %w", err))
	}
	return append(b, '\n')
}

// The problem types of [Draft].
const problemTypes = "https://iana.org/assignments/http-problem-types"

// Problem writes problem details (RFC 9457). A denial has the problem type of [Draft]:
//
//	{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",
//	 "title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,
//	 "detail":"100 of 100 used in 1m; try again in 23s","violated-policies":["1m"],
//	 "limit":100,"remaining":0,"reset":1704307200,"retryAfter":23}
//
// reset is in Unix seconds and retryAfter in seconds, both rounded up.
func Problem(a *Answer) (contentType string, body []byte) {
	return "application/problem+json", mustMarshal(problem(a))
}

type problemBody struct {
	Type       string   `json:"type"`
	Title      string   `json:"title"`
	Status     int      `json:"status"`
	Detail     string   `json:"detail,omitempty"`
	Violated   []string `json:"violated-policies,omitempty"`
	Limit      *int64   `json:"limit,omitempty"`
	Remaining  *int64   `json:"remaining,omitempty"`
	Reset      *int64   `json:"reset,omitempty"`
	RetryAfter int64    `json:"retryAfter,omitzero"`
}

func problem(a *Answer) problemBody {
	if !a.exceeded() {
		return problemBody{Type: "about:blank", Title: http.StatusText(a.Status), Status: a.Status, Detail: failure(a)}
	}
	p := problemBody{
		Type:   problemTypes + "#quota-exceeded",
		Title:  "Request cannot be satisfied as assigned quota has been exceeded",
		Status: a.Status, Detail: a.Reply.Message, Violated: violated(a),
	}
	reset := ceilSeconds(a.Reply.Reset)
	p.Limit, p.Remaining, p.Reset = &a.Reply.Limit, &a.Reply.Remaining, &reset
	p.RetryAfter, _ = a.RetryAfter()
	return p
}

// violated returns the names of the limits that deny, as [RateLimitFields] writes them.
func violated(a *Answer) []string {
	rows, written := a.enforced(), a.names
	if written == nil {
		written = policyNames(rows, nil)
	}
	var names []string
	for i, name := range written {
		if !rows[i].Allowed {
			names = append(names, name)
		}
	}
	return names
}

// failure says why a request without a decision was refused.
func failure(a *Answer) string {
	switch a.Status {
	case http.StatusBadRequest:
		return "A value that the request is rate limited by is missing or invalid"
	case http.StatusConflict:
		return "The idempotency key was used with another request"
	case http.StatusUnauthorized:
		return keyProblem(a)
	}
	return "Rate limit check failed"
}

// keyProblem says what is wrong with the API key, in words that can be quoted in a header.
func keyProblem(a *Answer) string {
	if a.Key == nil {
		return "The request has no API key"
	}
	switch a.Key.Code {
	case limits.KeyInactive:
		return "The API key was revoked"
	case limits.KeyExpired:
		return "The API key has expired"
	}
	return "The API key is unknown"
}

// advice says what the client can do: a sentence of what, the time to wait, and end.
func advice(a *Answer, what, end string) string {
	if wait := a.Wait(); wait != "" {
		return what + " " + wait + end
	}
	return "This request can never fit the limit."
}

// JSONError writes {"ok":false,"error":"Rate limit exceeded","retry_after":60}, in seconds. If the check itself failed, it
// writes {"ok":false,"error":"Rate limit check failed"}, which is usually combined with FailStatus 500.
func JSONError(a *Answer) (contentType string, body []byte) {
	type reply struct {
		OK         bool   `json:"ok"`
		Error      string `json:"error"`
		RetryAfter int64  `json:"retry_after,omitzero"`
	}
	r := reply{Error: failure(a)}
	if a.exceeded() {
		r.Error = "Rate limit exceeded"
		r.RetryAfter, _ = a.RetryAfter()
	}
	return "application/json", mustMarshal(r)
}

// JSONQuota writes the numbers of the limit, with reset in Unix seconds and retryAfter in seconds:
//
//	{"error":"rate_limit_exceeded","message":"...","limit":100,"remaining":0,"reset":1704307200,"retryAfter":23}
//
// A failure has only "error":"rate_limit_check_failed" and a message. A request without a valid API key has
// "error":"unauthorized".
func JSONQuota(a *Answer) (contentType string, body []byte) {
	type failed struct {
		Error   string `json:"error"`
		Message string `json:"message"`
	}
	if !a.exceeded() {
		why := "rate_limit_check_failed"
		if a.Status == http.StatusUnauthorized {
			why = "unauthorized"
		}
		return "application/json", mustMarshal(failed{why, failure(a)})
	}
	retry, _ := a.RetryAfter()
	return "application/json", mustMarshal(struct {
		failed
		Limit      int64 `json:"limit"`
		Remaining  int64 `json:"remaining"`
		Reset      int64 `json:"reset"`
		RetryAfter int64 `json:"retryAfter,omitzero"`
	}{failed{"rate_limit_exceeded", a.Reply.Message}, a.Reply.Limit, a.Reply.Remaining, ceilSeconds(a.Reply.Reset), retry})
}

// JSONCode writes an error with a code:
//
//	{"error":{"code":"RATE_LIMIT_EXCEEDED","message":"Please wait 42 seconds before trying again.","retryAfter":42}}
//
// A failure has the code RATE_LIMIT_CHECK_FAILED, and a request without a valid API key UNAUTHORIZED.
func JSONCode(a *Answer) (contentType string, body []byte) {
	type reply struct {
		Code       string `json:"code"`
		Message    string `json:"message"`
		RetryAfter int64  `json:"retryAfter,omitzero"`
	}
	r := reply{Code: "RATE_LIMIT_CHECK_FAILED", Message: failure(a)}
	switch {
	case a.Status == http.StatusUnauthorized:
		r.Code = "UNAUTHORIZED"
	case a.exceeded():
		r.Code, r.Message = "RATE_LIMIT_EXCEEDED", advice(a, "Please wait", " before trying again.")
		r.RetryAfter, _ = a.RetryAfter()
	}
	return "application/json", mustMarshal(map[string]reply{"error": r})
}

// JSONUsage says which limit is exceeded and how much of it is used. what names the things that are counted, here
// "generations":
//
//	{"error":"Rate limit exceeded","message":"You've used 5/5 generations this minute. Try again in 37 seconds.",
//	 "rateLimit":{"type":"minute","limit":5,"current":5,"remaining":0,"resetAt":"2026-01-02T15:05:00.000Z"}}
//
// type is the name of the limit. A reply does not say where a window begins, so a window of a day is always "today", even if
// it slides or begins with its first use. Nor does it say how much is used beyond the limit, as [CheckThenRecord] may record,
// so current is at most the limit. For the limiter's own words, which say it, use {message} in a [JSONTemplate].
func JSONUsage(what string) Body {
	type rateLimit struct {
		Type      string `json:"type"`
		Limit     int64  `json:"limit"`
		Current   int64  `json:"current"`
		Remaining int64  `json:"remaining"`
		ResetAt   string `json:"resetAt"`
	}
	type reply struct {
		Error     string     `json:"error"`
		Message   string     `json:"message,omitempty"`
		RateLimit *rateLimit `json:"rateLimit,omitempty"`
	}
	return JSON(func(a *Answer) any {
		if !a.exceeded() {
			return reply{Error: failure(a)}
		}
		message := fmt.Sprintf("You've used %d/%d %s %s. %s", a.Current(), a.Reply.Limit, what,
			period(a.top().Window), advice(a, "Try again in", "."))
		return reply{"Rate limit exceeded", message,
			&rateLimit{a.Reply.Name, a.Reply.Limit, a.Current(), a.Reply.Remaining, a.resetISO()}}
	})
}

// period describes a window as people do.
func period(window string) string {
	switch window {
	case "minute", "1m":
		return "this minute"
	case "hour", "1h":
		return "this hour"
	case "day", "1d":
		return "today"
	case "week", "1w":
		return "this week"
	case "month":
		return "this month"
	case "":
		return "so far"
	}
	return "in " + window
}
