package alerts

import (
	"encoding/json"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/glob"
)

// Severity says how bad an alert is.
type Severity string

// The severities.
const (
	Info     Severity = "info"
	Warning  Severity = "warning"
	Critical Severity = "critical"
)

// severities are all there are, the least first.
func severities() []Severity { return []Severity{Info, Warning, Critical} }

// Event is a crossing that the limiter told of, flat. Times are Unix milliseconds.
type Event struct {
	ID string
	// Type is [limits.EventWarning] or [limits.EventExceeded].
	Type string
	Time int64
	// Key, Name, Policy (empty for an inline limit), Window, Limit and User are of the limit that was crossed.
	Key, Name, Policy, Window, User string
	Limit                           int64
	// Denied is how many denials it stands for; a warning stands for 1.
	Denied int64
	// Remaining is what a warning tells.
	Remaining int64
	Reset     int64
}

// GroupID says what alerts are the same: those of one rule with one Key, which is made of the user, the policy (or the
// key of an inline limit) and the window, unless the rule says otherwise.
type GroupID struct{ Rule, Key string }

// Notice says whether somebody was told that an alert was raised.
type Notice string

// The notices. Pending becomes one of the others; Held and Silenced are where it may stay.
const (
	Pending  Notice = "pending"
	Sent     Notice = "sent"     // its deliveries are in the outbox, which says what becomes of each
	Held     Notice = "held"     // by the throttle or by quiet hours: it goes into a digest
	Silenced Notice = "silenced" // by a silence; pending again when the alert is updated after the silence has ended
)

// Throttle is how many alerts one user may be sent in any Window, sliding.
type Throttle struct {
	// Name is the rule's, which is the counter's too; empty for the one of all rules.
	Name   string `json:"name,omitempty"`
	Limit  int64  `json:"limit"`
	Window string `json:"window"`
}

// Alert is a run of events of one group. Times are Unix milliseconds: FirstAt and LastAt those of the events, the others of
// the store's clock; 0 for not yet.
type Alert struct {
	ID string `json:"id"`
	GroupID
	Severity Severity `json:"severity"`
	// Type is that of its events.
	Type string `json:"type"`
	// Subject is the user, the policy or key, and the window, whatever the rule groups by: a warning is held back while an
	// alert of [limits.EventExceeded] with its subject is open.
	Subject string `json:"subject"`
	// User and Policy are those of the event that raised it, Key, Name, Window and Limit those of the last event of both.
	Key    string `json:"key"`
	Name   string `json:"name"`
	Policy string `json:"policy,omitempty"`
	Window string `json:"window"`
	User   string `json:"user,omitempty"`
	Limit  int64  `json:"limit"`
	// Denied and Events count since it began, those that reached the threshold too.
	Denied  int64 `json:"denied"`
	Events  int64 `json:"events"`
	FirstAt int64 `json:"firstAt"`
	LastAt  int64 `json:"lastAt"`
	// EventID is the event that raised it, and with it the id under which the throttle is charged.
	EventID string `json:"eventId"`
	// Throttles are charged together before somebody is told; they are those of the moment it was raised.
	Throttles []Throttle `json:"throttles"`
	// Channels are who is told.
	Channels []string `json:"channels"`
	Title    string   `json:"title"`
	Text     string   `json:"text"`

	RaisedAt   int64 `json:"raisedAt"`
	ResolvedAt int64 `json:"resolvedAt,omitzero"`
	// ResolveAt is when it is resolved if no event comes before.
	ResolveAt int64 `json:"resolveAt"`

	Notice Notice `json:"notice"`
	// Reason says why it was held or silenced.
	Reason string `json:"reason,omitempty"`
	// NoticeAt is when Notice became what it is.
	NoticeAt int64 `json:"noticeAt,omitzero"`
	// HeldUntil is before when no digest takes it.
	HeldUntil int64 `json:"heldUntil,omitzero"`
	// Digest is the one that told of it.
	Digest string `json:"digest,omitempty"`
}

// Kind is what a message tells; it is the type of a CloudEvent too.
type Kind string

// The kinds.
const (
	KindRaised   Kind = "alerts.raised"
	KindResolved Kind = "alerts.resolved"
	KindDigest   Kind = "alerts.digest"
	KindTest     Kind = "alerts.test"
)

// Message is what a channel sends. Its ID is the same on every channel and every try, so that who gets it twice can tell.
type Message struct {
	ID       string   `json:"id"`
	Kind     Kind     `json:"kind"`
	Time     int64    `json:"time"`
	Severity Severity `json:"severity"`
	// User is whom it is about.
	User  string `json:"user,omitempty"`
	Title string `json:"title"`
	Text  string `json:"text"`
	// Data is the JSON of [limits.AlertRaised], [limits.AlertResolved], [limits.AlertDigest] or [limits.AlertTest].
	Data json.RawMessage `json:"data"`
}

// DeliveryState says how far a delivery is.
type DeliveryState string

// The states of deliveries.
const (
	DeliveryWaiting DeliveryState = "waiting"
	DeliverySent    DeliveryState = "sent"
	DeliveryDead    DeliveryState = "dead"
)

// Delivery is a message on its way to one channel. Times are Unix milliseconds.
type Delivery struct {
	// ID is the message's id, a slash, and the channel; a second one of the same id is none.
	ID      string
	Channel string
	Message Message
	State   DeliveryState
	// Attempts counts the tries that ended, DueAt is when the next one is.
	Attempts         int
	CreatedAt, DueAt int64
	// EndedAt is when it was sent or given up.
	EndedAt int64
	// Error is why the last try failed.
	Error string
}

// Silence keeps alerts from being told. Empty matchers fit all; the others are exact or globs with *.
type Silence limits.Silence

// fits tells whether the silence holds for an alert.
func (s *Silence) fits(a *Alert) bool {
	return fitsOr(s.Rule, a.Rule) && fitsOr(s.Policy, a.Policy) && fitsOr(s.Key, a.Key) && fitsOr(s.User, a.User)
}

// fitsOr lets an empty pattern fit everything.
func fitsOr(pattern, value string) bool { return pattern == "" || glob.Match(pattern, value) }

// Poison is a message of the stream that could not be taken, and why.
type Poison struct {
	// Sequence is its place in the stream.
	Sequence uint64
	Subject  string
	Reason   string
	// Data is its beginning, up to [MaxPoisonBytes].
	Data []byte
	At   int64
}

// MaxPoisonBytes bounds what is kept of a message that could not be taken, and MaxPoison, about, how many of them are: the
// last ones. Who may publish to the stream could fill the store otherwise.
const (
	MaxPoisonBytes = 4096
	MaxPoison      = 1000
	// PoisonTrim is after how many of them it is looked whether there are more.
	PoisonTrim = 64
)
