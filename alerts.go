package limits

// The types of the events about alerts, which are also their NATS subjects, and the JetStream stream that keeps them.
const (
	EventAlertRaised   = "alerts.raised"
	EventAlertResolved = "alerts.resolved"
	EventAlertDigest   = "alerts.digest"
	EventAlertTest     = "alerts.test"
	AlertStream        = "ALERTS"
)

// AlertRaised is the data of an [EventAlertRaised] event: the condition of a rule was met. Times are Unix milliseconds.
type AlertRaised struct {
	// Alert is the alert's id. The event that resolves the alert has the same.
	Alert    string `json:"alert"`
	Rule     string `json:"rule"`
	Severity string `json:"severity"`
	// Event is the type of the events that caused the alert: [EventExceeded] or [EventWarning].
	Event  string `json:"event"`
	User   string `json:"user,omitempty"`
	Policy string `json:"policy,omitempty"`
	// Name, Key, Window and Limit are those of the last of its events.
	Name   string `json:"name"`
	Key    string `json:"key"`
	Window string `json:"window"`
	Limit  int64  `json:"limit"`
	// Denied and Events count the denials and events until the alert was raised; in an AlertResolved, until it ended. A
	// request that two limits deny is two denials; a warning is none.
	Denied int64 `json:"denied"`
	Events int64 `json:"events"`
	// FirstAt and LastAt are the times of the first and last of its events.
	FirstAt  int64  `json:"firstAt"`
	LastAt   int64  `json:"lastAt"`
	RaisedAt int64  `json:"raisedAt"`
	Title    string `json:"title"`
	Text     string `json:"text"`
}

// AlertResolved is the data of an [EventAlertResolved] event: the denials have stopped. Its counts cover the whole alert.
type AlertResolved struct {
	AlertRaised
	ResolvedAt int64 `json:"resolvedAt"`
}

// AlertDigest is the data of an [EventAlertDigest] event. It sums up the alerts about one user that the throttle or quiet
// hours held back from the channels that the digest is sent to.
type AlertDigest struct {
	// Digest is the id of the digest. The copies for other channels have the same.
	Digest string `json:"digest"`
	User   string `json:"user"`
	// Severity is the highest severity of its alerts. Digests of earlier versions of the service lack it.
	Severity string `json:"severity,omitempty"`
	// Alerts is how many alerts were held back, and Denied how many denials they stand for: one that two rules count is in
	// both.
	Alerts int64 `json:"alerts"`
	Denied int64 `json:"denied"`
	// Policies are the 100 policies with the most alerts; inline limits have an empty policy. Keys are the 10 keys with
	// the most denials; all denials of an alert count for the key that it names.
	Policies []DigestCount `json:"policies"`
	Keys     []DigestCount `json:"keys"`
	// FirstAt and LastAt are the times of the first and last of their events, in Unix milliseconds.
	FirstAt int64 `json:"firstAt"`
	LastAt  int64 `json:"lastAt"`
}

// DigestCount is one policy or key in a digest.
type DigestCount struct {
	Name   string `json:"name"`
	Alerts int64  `json:"alerts"`
	Denied int64  `json:"denied"`
}

// AlertTest is the data of an [EventAlertTest] event, which tests that alerts arrive.
type AlertTest struct {
	Channel string `json:"channel"`
	Note    string `json:"note,omitempty"`
	SentAt  int64  `json:"sentAt"`
}
