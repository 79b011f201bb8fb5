package limits

// The types of the events, which are their NATS subjects too, and the stream that keeps them.
const (
	EventWarning  = "limits.warning"
	EventExceeded = "limits.exceeded"
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
	// RetryAfter is the milliseconds until the denied cost fits; left out when it never does.
	RetryAfter int64  `json:"retryAfter,omitzero"`
	Denied     int64  `json:"denied"`
	User       string `json:"user,omitempty"`
}
