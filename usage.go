package limits

import (
	"context"
	"time"
)

// The subjects of usage. [SubjectUsage] is the only one that is never answered.
const (
	SubjectUsage       = "limits.usage"
	SubjectTop         = "limits.admin.top"
	SubjectUsageReport = "limits.admin.usage"
)

// Bounds of usage.
const (
	MaxMethodBytes = 16         // method of a LogEntry
	MaxMillis      = 86_400_000 // millis of a LogEntry: a day
	MaxUsageRows   = 1000       // rows of a Top or a Usage
	// A LogEntry is from at most a day ago, and from no more than a minute ahead, as clocks differ.
	MaxLogAge   = 24 * time.Hour
	MaxLogAhead = time.Minute
)

// LogEntry is one line of the request log: the body of usage, which may also be an array of them.
type LogEntry struct {
	// Key is who asked, such as the name of an API key; never the secret itself.
	Key  string `json:"key"`
	User string `json:"user,omitempty"`
	// Endpoint is what was asked, best as a route pattern: the reports have a row for each.
	Endpoint string `json:"endpoint"`
	Method   string `json:"method"`
	// Status is the HTTP status, 100 to 599.
	Status int `json:"status"`
	// Millis is how long the answer took.
	Millis int64 `json:"millis"`
	// At is when, in Unix milliseconds: now unless said, at most a day ago.
	At int64 `json:"at,omitzero"`
}

// The orders of a [TopRequest].
const (
	ByDenied  = "denied"
	ByUsed    = "used"
	ByAllowed = "allowed"
)

// TopRequest is the body of admin.top: who was denied, or used, most in a period.
type TopRequest struct {
	// By is [ByDenied] unless said, [ByUsed] (the cost that was charged), or [ByAllowed].
	By string `json:"by,omitempty"`
	// Period is how far back, such as "1h" (which it is unless said) or "7d"; instead of it Since and Until, in Unix
	// milliseconds, may stand.
	Period string `json:"period,omitempty"`
	Since  int64  `json:"since,omitzero"`
	Until  int64  `json:"until,omitzero"`
	// Policy and User select exactly, Prefix by what the key begins with.
	Policy string `json:"policy,omitempty"`
	Prefix string `json:"prefix,omitempty"`
	User   string `json:"user,omitempty"`
	// Max is how many rows: 20 unless said, up to [MaxUsageRows].
	Max int `json:"max,omitzero"`
}

// Top is who was denied, or used, most from Since up to Until. It is some seconds behind.
type Top struct {
	Since int64    `json:"since"`
	Until int64    `json:"until"`
	Rows  []TopRow `json:"rows"`
}

// TopRow is the usage of a key under a policy. An empty key stands for keys that there was no room to count apart.
type TopRow struct {
	Key    string `json:"key"`
	Policy string `json:"policy,omitempty"`
	User   string `json:"user,omitempty"`
	// Allowed and Denied count requests, and Cost is what was charged, also by a record that was denied.
	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`
	Cost    int64 `json:"cost"`
	// Peak is the most requests of one minute.
	Peak int64 `json:"peak"`
}

// The reports of a [UsageRequest].
const (
	ReportTraffic = "traffic"
	ReportSlowest = "slowest"
	ReportErrors  = "errors"
)

// UsageRequest is the body of admin.usage: a question to the request log.
type UsageRequest struct {
	// Report is [ReportTraffic] (by key and user), [ReportSlowest] (endpoints), or [ReportErrors] (status 500 and
	// above, by endpoint).
	Report string `json:"report"`
	// Period is how far back, "24h" unless said; instead of it Since and Until may stand.
	Period string `json:"period,omitempty"`
	Since  int64  `json:"since,omitzero"`
	Until  int64  `json:"until,omitzero"`
	// Prefix is what the keys begin with.
	Prefix string `json:"prefix,omitempty"`
	// Max is how many rows: 20 unless said, up to [MaxUsageRows].
	Max int `json:"max,omitzero"`
}

// Usage answers the report that was asked for, the most first; the other two are left out.
type Usage struct {
	Since   int64           `json:"since"`
	Until   int64           `json:"until"`
	Traffic []KeyTraffic    `json:"traffic,omitzero"`
	Slowest []EndpointTimes `json:"slowest,omitzero"`
	Errors  []EndpointError `json:"errors,omitzero"`
}

// KeyTraffic is how many requests a key made, and how many had a status of 500 or above.
type KeyTraffic struct {
	Key      string `json:"key"`
	User     string `json:"user,omitempty"`
	Requests int64  `json:"requests"`
	Errors   int64  `json:"errors"`
}

// EndpointTimes is how long an endpoint took, in milliseconds. P95 is what 95 of 100 requests did not exceed.
type EndpointTimes struct {
	Endpoint string  `json:"endpoint"`
	Method   string  `json:"method"`
	Requests int64   `json:"requests"`
	Mean     float64 `json:"mean"`
	P95      int64   `json:"p95"`
	Max      int64   `json:"max"`
}

// EndpointError is how often an endpoint answered with a status.
type EndpointError struct {
	Endpoint string `json:"endpoint"`
	Method   string `json:"method"`
	Status   int64  `json:"status"`
	Requests int64  `json:"requests"`
}

// Top tells who was denied, or used, most.
func (c *Client) Top(ctx context.Context, r TopRequest) (*Top, error) {
	return call[Top](ctx, c, SubjectTop, r)
}

// Usage asks the request log.
func (c *Client) Usage(ctx context.Context, r UsageRequest) (*Usage, error) {
	return call[Usage](ctx, c, SubjectUsageReport, r)
}
