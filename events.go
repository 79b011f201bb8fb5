package limits

// The types of the events, which are their NATS subjects too, and the stream that keeps them.
const (
	EventWarning  = "limits.warning"
	EventExceeded = "limits.exceeded"
	EventReport   = "limits.report"
	EventStream   = "LIMITS"
)

// Warning is the data of a [EventWarning] event: a charge left the counter's remaining at or below the
// threshold. At most one per counter and window.
type Warning struct {
	Key       string `json:"key"`
	Name      string `json:"name"`
	Policy    string `json:"policy,omitempty"`
	Limit     int64  `json:"limit"`
	Window    string `json:"window"`
	Remaining int64  `json:"remaining"`
	Threshold int64  `json:"threshold"`
	Reset     int64  `json:"reset"`
	User      string `json:"user,omitempty"`
}

// Exceeded is the data of a [EventExceeded] event: the counter denied. The first denial is told at once; while
// denials go on there is at most one event per counter every 10 seconds, and Denied is how many it stands for.
type Exceeded struct {
	Key    string `json:"key"`
	Name   string `json:"name"`
	Policy string `json:"policy,omitempty"`
	Limit  int64  `json:"limit"`
	Window string `json:"window"`
	Reset  int64  `json:"reset"`
	// RetryAfter is the milliseconds until the cost fits that was denied, at least 1; left out when it never does.
	RetryAfter int64  `json:"retryAfter,omitzero"`
	Denied     int64  `json:"denied"`
	User       string `json:"user,omitempty"`
}

// MaxReportRows bounds each list of a [Report].
const MaxReportRows = 20

// Report is the data of a [EventReport] event: who used, and who was denied, most on one day in UTC. A day without
// decisions has none, and a second report of a day has the id of the first.
type Report struct {
	// Date is the day, such as 2026-05-17; Since and Until are its beginning and its end, in Unix milliseconds.
	Date  string `json:"date"`
	Since int64  `json:"since"`
	Until int64  `json:"until"`
	// Used is ordered by the cost that was charged, Denied by the requests that were denied, the most first; up to
	// [MaxReportRows] rows each.
	Used   []TopRow `json:"used"`
	Denied []TopRow `json:"denied"`
}
