package limits

// The types of the service's events, which are also their NATS subjects, and the JetStream stream that keeps them.
const (
	EventWarning  = "limits.warning"
	EventExceeded = "limits.exceeded"
	EventReport   = "limits.report"
	EventStream   = "LIMITS"
)

// Warning is the data of an [EventWarning] event: a charge left the counter's remaining at or below the threshold. There
// is at most one per counter and window length.
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

// Exceeded is the data of an [EventExceeded] event: the counter denied requests. The first denial makes an event at once.
// While denials go on, there is at most one event per counter every 10 seconds, and one more when a limiter stops that
// has counted denials since. Denied is how many denials the event stands for.
type Exceeded struct {
	Key    string `json:"key"`
	Name   string `json:"name"`
	Policy string `json:"policy,omitempty"`
	Limit  int64  `json:"limit"`
	Window string `json:"window"`
	Reset  int64  `json:"reset"`
	// RetryAfter is how long until the denied cost fits, in milliseconds, at least 1; left out if it can never fit.
	RetryAfter int64  `json:"retryAfter,omitzero"`
	Denied     int64  `json:"denied"`
	User       string `json:"user,omitempty"`
}

// MaxReportRows bounds each list of a [Report].
const MaxReportRows = 20

// Report is the data of an [EventReport] event: the keys that used most, and those that were denied most, on one day in
// UTC. A day without decisions has no report. If a day is reported again, the event has the id of the first.
type Report struct {
	// Date is the day, such as 2026-05-17. Since and Until are its beginning and its end, in Unix milliseconds.
	Date  string `json:"date"`
	Since int64  `json:"since"`
	Until int64  `json:"until"`
	// Used is ordered by the charged cost, Denied by the number of denied requests, both the highest first. Each has up to
	// [MaxReportRows] rows.
	Used   []TopRow `json:"used"`
	Denied []TopRow `json:"denied"`
}
