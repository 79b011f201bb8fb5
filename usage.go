package limits

import (
	"context"
	"time"
)

// The subjects of usage. [SubjectUsage] is the only subject of the service that is never answered.
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
	// A LogEntry may be at most a day old, and at most a minute ahead, since clocks differ.
	MaxLogAge   = 24 * time.Hour
	MaxLogAhead = time.Minute
)

// LogEntry is one line of the request log. The body of usage is a LogEntry or an array of them.
type LogEntry struct {
	// Key identifies the caller, such as by the name of an API key; never by the secret itself.
	Key  string `json:"key"`
	User string `json:"user,omitempty"`
	// Endpoint is what was requested, preferably as a route pattern, since reports have a row for each endpoint.
	Endpoint string `json:"endpoint"`
	Method   string `json:"method"`
	// Status is the HTTP status, 100 to 599.
	Status int `json:"status"`
	// Millis is how long the answer took, in whole milliseconds.
	Millis int64 `json:"millis"`
	// At is when the request was made, in Unix milliseconds: now by default or if 0, at most a day ago.
	At int64 `json:"at,omitzero"`
}

// The orders of a [TopRequest].
const (
	ByDenied  = "denied"
	ByUsed    = "used"
	ByAllowed = "allowed"
)

// TopRequest is the body of admin.top. It asks for the keys that were denied, or used, most in a period.
type TopRequest struct {
	// By is [ByDenied] (the default), [ByUsed] (by the cost that was charged) or [ByAllowed].
	By string `json:"by,omitempty"`
	// Period is how far to look back, such as "7d"; "1h" by default. Alternatively, Since and Until give the period in
	// Unix milliseconds. The minutes in which it begins and ends count whole.
	Period string `json:"period,omitempty"`
	Since  int64  `json:"since,omitzero"`
	Until  int64  `json:"until,omitzero"`
	// Policy and User select exact matches, Prefix the keys that begin with it.
	Policy string `json:"policy,omitempty"`
	Prefix string `json:"prefix,omitempty"`
	User   string `json:"user,omitempty"`
	// Max is how many rows to return: 20 by default, up to [MaxUsageRows].
	Max int `json:"max,omitzero"`
}

// Top lists the keys that were denied, or used, most from Since to Until, which are the requested times widened to whole
// minutes. It lags some seconds behind.
type Top struct {
	Since int64    `json:"since"`
	Until int64    `json:"until"`
	Rows  []TopRow `json:"rows"`
}

// TopRow is the usage of a key under a policy. The row with an empty key sums up the keys for which there was no room to
// count them separately.
type TopRow struct {
	Key    string `json:"key"`
	Policy string `json:"policy,omitempty"`
	User   string `json:"user,omitempty"`
	// Allowed and Denied count requests. Cost is what was charged, even by a record past the limit.
	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`
	Cost    int64 `json:"cost"`
	// Peak is the highest number of requests in one minute.
	Peak int64 `json:"peak"`
}

// The reports of a [UsageRequest].
const (
	ReportTraffic = "traffic"
	ReportSlowest = "slowest"
	ReportErrors  = "errors"
)

// UsageRequest is the body of admin.usage. It asks for a report on the request log.
type UsageRequest struct {
	// Report is [ReportTraffic] (by key and user), [ReportSlowest] (endpoints), or [ReportErrors] (status 500 and
	// above, by endpoint).
	Report string `json:"report"`
	// Period is how far to look back: "24h" by default. Alternatively, Since and Until give the period in Unix
	// milliseconds.
	Period string `json:"period,omitempty"`
	Since  int64  `json:"since,omitzero"`
	Until  int64  `json:"until,omitzero"`
	// Prefix selects the keys that begin with it.
	Prefix string `json:"prefix,omitempty"`
	// Max is how many rows to return: 20 by default, up to [MaxUsageRows].
	Max int `json:"max,omitzero"`
}

// Usage is the requested report, the highest rows first. The fields of the other two reports are left out.
type Usage struct {
	Since   int64           `json:"since"`
	Until   int64           `json:"until"`
	Traffic []KeyTraffic    `json:"traffic,omitzero"`
	Slowest []EndpointTimes `json:"slowest,omitzero"`
	Errors  []EndpointError `json:"errors,omitzero"`
}

// KeyTraffic is how many requests a key made, and how many of them had a status of 500 or above.
type KeyTraffic struct {
	Key      string `json:"key"`
	User     string `json:"user,omitempty"`
	Requests int64  `json:"requests"`
	Errors   int64  `json:"errors"`
}

// EndpointTimes is how long an endpoint took to answer, in milliseconds. P95 is the 95th percentile.
type EndpointTimes struct {
	Endpoint string  `json:"endpoint"`
	Method   string  `json:"method"`
	Requests int64   `json:"requests"`
	Mean     float64 `json:"mean"`
	P95      int64   `json:"p95"`
	Max      int64   `json:"max"`
}

// EndpointError is how often an endpoint answered with a status of 500 or above.
type EndpointError struct {
	Endpoint string `json:"endpoint"`
	Method   string `json:"method"`
	Status   int64  `json:"status"`
	Requests int64  `json:"requests"`
}

// Top returns the keys that were denied, or used, most in a period.
func (c *Client) Top(ctx context.Context, r TopRequest) (*Top, error) {
	return call[Top](ctx, c, SubjectTop, r)
}

// Usage returns a report on the request log.
func (c *Client) Usage(ctx context.Context, r UsageRequest) (*Usage, error) {
	return call[Usage](ctx, c, SubjectUsageReport, r)
}
