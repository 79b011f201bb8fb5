package limits

// The types of the events about alerts, which are their NATS subjects too, and the stream that keeps them.
const (
	EventAlertRaised   = "alerts.raised"
	EventAlertResolved = "alerts.resolved"
	EventAlertDigest   = "alerts.digest"
	EventAlertTest     = "alerts.test"
	AlertStream        = "ALERTS"
)

// AlertRaised is the data of an [EventAlertRaised] event: what a rule asks for has happened. Times are Unix milliseconds.
type AlertRaised struct {
	// Alert is the alert's id; the event that says it is resolved has the same.
	Alert    string `json:"alert"`
	Rule     string `json:"rule"`
	Severity string `json:"severity"`
	// Event is the type of the events behind it: [EventExceeded] or [EventWarning].
	Event  string `json:"event"`
	User   string `json:"user,omitempty"`
	Policy string `json:"policy,omitempty"`
	// Name, Key, Window and Limit are those of the last of its events.
	Name   string `json:"name"`
	Key    string `json:"key"`
	Window string `json:"window"`
	Limit  int64  `json:"limit"`
	// Denied and Events count what came until it was raised; of an AlertResolved, until it was over.
	Denied int64 `json:"denied"`
	Events int64 `json:"events"`
	// FirstAt and LastAt are when the first and the last of its events were.
	FirstAt  int64  `json:"firstAt"`
	LastAt   int64  `json:"lastAt"`
	RaisedAt int64  `json:"raisedAt"`
	Title    string `json:"title"`
	Text     string `json:"text"`
}

// AlertResolved is the data of an [EventAlertResolved] event: the denials have stopped. Its counts are those of the whole
// alert.
type AlertResolved struct {
	AlertRaised
	ResolvedAt int64 `json:"resolvedAt"`
}

// AlertDigest is the data of an [EventAlertDigest] event: what was held back, by the throttle or by quiet hours, of what
// one user was to be told on the channels that it is sent to.
type AlertDigest struct {
	// Digest is its id, which those to other channels have too.
	Digest string `json:"digest"`
	User   string `json:"user"`
	// Severity is the greatest of its alerts. Digests that were made before it was told lack it.
	Severity string `json:"severity,omitempty"`
	// Alerts were held back, which stand for so many denials.
	Alerts int64 `json:"alerts"`
	Denied int64 `json:"denied"`
	// Policies are the 100 policies with the most alerts; the policy of inline limits is empty. Keys are the 10 keys with the
	// most denials.
	Policies []DigestCount `json:"policies"`
	Keys     []DigestCount `json:"keys"`
	// FirstAt and LastAt are when the first and the last of their events were, in Unix milliseconds.
	FirstAt int64 `json:"firstAt"`
	LastAt  int64 `json:"lastAt"`
}

// DigestCount is a line of a digest.
type DigestCount struct {
	Name   string `json:"name"`
	Alerts int64  `json:"alerts"`
	Denied int64  `json:"denied"`
}

// AlertTest is the data of an [EventAlertTest] event, which somebody sent to see whether it arrives.
type AlertTest struct {
	Channel string `json:"channel"`
	Note    string `json:"note,omitempty"`
	SentAt  int64  `json:"sentAt"`
}
