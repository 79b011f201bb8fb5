package alerts

import (
	"encoding/json"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/glob"
)

// Severity is the severity of an alert.
type Severity string

// The severities.
const (
	Info     Severity = "info"
	Warning  Severity = "warning"
	Critical Severity = "critical"
)

// severities returns all severities, the least first.
func severities() []Severity { return []Severity{Info, Warning, Critical} }

// Event is an event of the limiter: a counter came close to its limit, or passed it. Times are Unix milliseconds.
type Event struct {
	ID string
	// Type is [limits.EventWarning] or [limits.EventExceeded].
	Type string
	Time int64
	// Key, Name, Policy (empty for an inline limit), Window, Limit and User are of the limit that was crossed.
	Key, Name, Policy, Window, User string
	Limit                           int64
	// Denied is how many denials it stands for. A warning has 1, with which it counts for a threshold.
	Denied int64
	// Remaining is set in a warning only.
	Remaining int64
	Reset     int64
}

// GroupID identifies a group, which has at most one open alert. Key is made of the fields of the rule's GroupBy: the user,
// the policy (or the key of an inline limit) and the window, unless the rule says otherwise.
type GroupID struct{ Rule, Key string }

// Notice is the state of the notification that an alert was raised.
type Notice string

// The notices. An alert starts as Pending, and the notify step decides on one of the others.
const (
	Pending  Notice = "pending"
	Sent     Notice = "sent"     // its deliveries are in the outbox, and have states of their own
	Held     Notice = "held"     // by the throttle or by quiet hours, for a digest
	Silenced Notice = "silenced" // by a silence; an event that updates the alert makes it Pending again
)

// Throttle is how many alerts may be sent to one user in any Window (sliding).
type Throttle struct {
	// Name is the rule's name, and the name of the counter. It is empty for the throttle of all rules.
	Name   string `json:"name,omitempty"`
	Limit  int64  `json:"limit"`
	Window string `json:"window"`
}

// Alert is a series of events of one group. Times are Unix milliseconds, 0 for not yet. FirstAt and LastAt are times of
// events; all others are of the store's clock.
type Alert struct {
	ID string `json:"id"`
	GroupID
	Severity Severity `json:"severity"`
	// Type is the type of its events, [limits.EventWarning] or [limits.EventExceeded].
	Type string `json:"type"`
	// Subject is made of the user, the policy or key, and the window, whatever the rule groups by. No alert is raised for
	// warnings while an alert of type [limits.EventExceeded] with the same subject is open.
	Subject string `json:"subject"`
	// User and Policy are those of the event that raised it. Key, Name, Window and Limit are those of the last event with
	// the same User and Policy.
	Key    string `json:"key"`
	Name   string `json:"name"`
	Policy string `json:"policy,omitempty"`
	Window string `json:"window"`
	User   string `json:"user,omitempty"`
	Limit  int64  `json:"limit"`
	// Denied and Events include the events that reached the threshold.
	Denied  int64 `json:"denied"`
	Events  int64 `json:"events"`
	FirstAt int64 `json:"firstAt"`
	LastAt  int64 `json:"lastAt"`
	// EventID is the idempotency key under which the throttle is charged: the id of the event that raised it, with the
	// rule's name appended if an earlier rule matched the event too.
	EventID string `json:"eventId"`
	// Throttles are charged together before the alert is sent. They are those in force when it was raised.
	Throttles []Throttle `json:"throttles"`
	// Channels are the names of the channels to which it is sent.
	Channels []string `json:"channels"`
	Title    string   `json:"title"`
	Text     string   `json:"text"`

	RaisedAt   int64 `json:"raisedAt"`
	ResolvedAt int64 `json:"resolvedAt,omitzero"`
	// ResolveAt is when it is resolved unless another event comes before.
	ResolveAt int64 `json:"resolveAt"`

	Notice Notice `json:"notice"`
	// Reason says why it was held or silenced.
	Reason string `json:"reason,omitempty"`
	// NoticeAt is when Notice last changed.
	NoticeAt int64 `json:"noticeAt,omitzero"`
	// HeldUntil is the earliest time at which a digest may include it.
	HeldUntil int64 `json:"heldUntil,omitzero"`
	// Digest is the name of the digest that included it.
	Digest string `json:"digest,omitempty"`
}

// Kind is the kind of a message, and the type of its CloudEvent.
type Kind string

// The kinds.
const (
	KindRaised   Kind = limits.EventAlertRaised
	KindResolved Kind = limits.EventAlertResolved
	KindDigest   Kind = limits.EventAlertDigest
	KindTest     Kind = limits.EventAlertTest
)

// Message is what a channel sends. Its ID is the same on every channel and every attempt, so that a receiver can tell a
// repeat.
type Message struct {
	ID       string   `json:"id"`
	Kind     Kind     `json:"kind"`
	Time     int64    `json:"time"`
	Severity Severity `json:"severity"`
	// User is the user whom it is about; empty for none.
	User  string `json:"user,omitempty"`
	Title string `json:"title"`
	Text  string `json:"text"`
	// Data is the JSON of [limits.AlertRaised], [limits.AlertResolved], [limits.AlertDigest] or [limits.AlertTest].
	Data json.RawMessage `json:"data"`
}

// DeliveryState is the state of a delivery.
type DeliveryState string

// The states of deliveries.
const (
	DeliveryWaiting DeliveryState = "waiting"
	DeliverySent    DeliveryState = "sent"
	DeliveryDead    DeliveryState = "dead"
)

// Delivery is a message on its way to one channel. Times are Unix milliseconds.
type Delivery struct {
	// ID is the message's id, a slash, and the channel. It is unique in the outbox: adding it again has no effect.
	ID      string
	Channel string
	Message Message
	State   DeliveryState
	// Attempts counts the attempts that ended; DueAt is when the next one is due.
	Attempts         int
	CreatedAt, DueAt int64
	// EndedAt is when it was sent or became a dead letter.
	EndedAt int64
	// Error is why the last attempt failed.
	Error string
}

// NewDelivery returns the delivery of a message to a channel.
func NewDelivery(m Message, channel string) Delivery {
	return Delivery{ID: m.ID + "/" + channel, Channel: channel, Message: m, State: DeliveryWaiting}
}

// Silence keeps matching alerts from being sent. An empty pattern matches everything; the others are exact texts, or
// globs with *.
type Silence limits.Silence

func (s *Silence) matches(a *Alert) bool {
	return matchesOrEmpty(s.Rule, a.Rule) && matchesOrEmpty(s.Policy, a.Policy) && matchesOrEmpty(s.Key, a.Key) && matchesOrEmpty(s.User, a.User)
}

func matchesOrEmpty(pattern, value string) bool { return pattern == "" || glob.Match(pattern, value) }

// Poison is a message of the stream that is no valid event, and why.
type Poison struct {
	// Sequence is its sequence number in the stream.
	Sequence uint64
	Subject  string
	Reason   string
	// Data is its beginning, up to [MaxPoisonBytes].
	Data []byte
	At   int64
}

// Bounds of what the store keeps of poison. Without them a client that may publish to the stream could fill the store.
const (
	// MaxPoisonBytes is how much is kept of each message.
	MaxPoisonBytes = 4096
	// MaxPoison is about how many messages are kept, the last ones.
	MaxPoison = 1000
	// PoisonTrim is after how many new messages the store removes those beyond MaxPoison.
	PoisonTrim = 64
)
