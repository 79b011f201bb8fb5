package alerts

import (
	"context"
	"encoding/json"
	"time"
)

// Taking is what one batch of events needs of the store.
type Taking struct {
	// Events are the ids of the events; some may have been taken before.
	Events []string
	// Groups are those of all the events, each once.
	Groups []GroupID
	// Subjects are those of the warnings among them.
	Subjects []string
}

// Taken is what the store knows, under lock.
type Taken struct {
	// Now is the store's clock, read after the locks, in Unix milliseconds.
	Now int64
	// Fresh are the events that were not taken before.
	Fresh map[string]bool
	// States are what was last kept of the groups; one that is not there has none.
	States map[GroupID]json.RawMessage
	// Open are the open alerts of the groups.
	Open map[GroupID]Alert
	// Exceeded are the subjects that have an open alert of [limits.EventExceeded], in any group.
	Exceeded map[string]bool
}

// Changes is what a batch changes.
type Changes struct {
	// States are the new states of groups.
	States map[GroupID]json.RawMessage
	// Raised are new alerts; Notice is Pending.
	Raised []Alert
	// Claim is for how long Raised are claimed from the start, as those that PendingAlerts gives; 0 for not at all.
	Claim time.Duration
	// Updated are open alerts that changed: what events tell of them, ResolveAt, and Notice, where a silenced one becomes
	// Pending again. ResolvedAt, Reason, NoticeAt, HeldUntil and Digest are not written.
	Updated []Alert
}

// DigestLead is for how long, in milliseconds, a digest is ahead of the store's clock. Digests run at the full hours of a
// worker's clock, and quiet hours and silences end there too: were that a little ahead, it would be told an hour later what they held.
const DigestLead = 30_000

// ResolveWithin is more than an alert stays open from its last event on: one that is to be resolved later than that was raised
// while the store's clock was ahead, and would be open until then.
const ResolveWithin = 32 * 24 * time.Hour

// HoldWithin is more than an alert is held for before it is looked at again, at the next full hour: one that is held for longer
// than that from now on was held while the store's clock was ahead.
const HoldWithin = 2 * time.Hour

// Told is what became of a pending alert.
type Told struct {
	// Alert is its id. Only one that is pending is changed.
	Alert     string
	Notice    Notice
	Reason    string
	HeldUntil int64
	// Deliveries are put into the outbox with it; Channel and Message are set.
	Deliveries []Delivery
}

// Digested is what becomes of held alerts.
type Digested struct {
	// Name is the digest's; empty where it tells of none.
	Name string
	// Deliveries are put into the outbox with it.
	Deliveries []Delivery
	// Later are the ids of those that it leaves out, each with its new HeldUntil: more than [DigestLead] from now, or they
	// would be given again at once.
	Later map[string]int64
}

// Tried is how a try to deliver ended.
type Tried struct {
	ID    string
	State DeliveryState
	// DueAt is when the next try is, for one that waits.
	DueAt int64
	Error string
	// Counts says that this try counts as an attempt; one that was put off (the channel's circuit is open) does not.
	Counts bool
}

// Overdue selects deliveries that have waited for too long.
type Overdue struct {
	// Age is for how long: since a delivery was made, or was replayed last.
	Age time.Duration
	// Lease is that of [Store.DueDeliveries]: what may be claimed, being due within it, is left to who has it.
	Lease time.Duration
	Max   int
}

// AlertFilter selects alerts; empty fields select all.
type AlertFilter struct {
	User, Rule, Policy string
	// OpenOnly leaves out resolved ones.
	OpenOnly bool
	// Before selects those raised before a moment and id, for the next page; 0 for the first.
	Before   int64
	BeforeID string
	Max      int
}

// DeadFilter selects dead letters; empty fields select all.
type DeadFilter struct {
	ID, Channel string
	// After selects those with a greater id, for the next page.
	After string
	Max   int
}

// Disabled says that a channel said that it is gone.
type Disabled struct {
	Channel string
	// Target is a fingerprint of where it led: with another one the channel is not disabled.
	Target string
	Reason string
	At     int64
}

// Store keeps alerts, deliveries and silences. Several processes may use one at the same time. One conformance suite
// (package storetest) holds every implementation to it. Times that go in and out are those of the store's clock.
type Store interface {
	// Take remembers the events, locks the groups (in order, so that two batches never deadlock), calls decide, and writes
	// what it returns, in one transaction. An error of decide rolls everything back. decide may be called again when the
	// transaction has to be.
	Take(ctx context.Context, t Taking, decide func(Taken) (Changes, error)) error
	// PendingAlerts claims up to max pending alerts, the oldest first, for a time, and gives them with the store's clock;
	// nobody else is given them before that is over, which is in an hour at most: what was claimed for longer than that from now on
	// was claimed while the clock was ahead.
	PendingAlerts(ctx context.Context, max int, lease time.Duration) (all []Alert, now int64, err error)
	// Tell writes what became of pending alerts, and their deliveries, in one transaction. It gives the ids of those that
	// were pending.
	Tell(ctx context.Context, all []Told) (told []string, err error)
	// ResolveAlerts resolves up to max open alerts whose ResolveAt has come and that are not pending, the earliest first,
	// and puts the deliveries that build gives for each into the outbox, in one transaction. What another process has
	// locked is left for later. Behind those come the ones whose ResolveAt is more than [ResolveWithin] from now.
	ResolveAlerts(ctx context.Context, max int, build func(Alert) ([]Delivery, error)) (int, error)
	// HeldUsers gives up to max users that have held alerts whose HeldUntil has come, or will in [DigestLead], or is more than
	// [HoldWithin] from now, and that are in no digest, in order, beginning behind one.
	HeldUsers(ctx context.Context, after string, max int) ([]string, error)
	// DigestAlerts locks up to max such alerts of a user, the oldest first, and, unless there are none, writes what build says
	// of them, and its deliveries into the outbox, in one transaction. It gives how many they were, with those for later.
	// build may be called again when the transaction has to be.
	DigestAlerts(ctx context.Context, user string, max int, build func(held []Alert, now int64) (Digested, error)) (int, error)

	// AddDelivery puts one into the outbox.
	AddDelivery(ctx context.Context, d Delivery) error
	// DueDeliveries claims up to max deliveries of a channel that are due, the earliest first, for a time; DueAt of what it
	// gives is when that is over. While an alert's "ID.raised" waits, its "ID.resolved" for the same channel is not due.
	DueDeliveries(ctx context.Context, channel string, max int, lease time.Duration) ([]Delivery, error)
	// OtherDeliveries gives up to max deliveries that wait for channels that are not among those given, and have been due for a
	// time: what is claimed or waits for its next try has somebody who knows its channel, and so has the "ID.resolved" behind it.
	OtherDeliveries(ctx context.Context, channels []string, due time.Duration, max int) ([]Delivery, error)
	// Deliver writes how tries ended. One that does not wait any more is left as it is.
	Deliver(ctx context.Context, all []Tried) error
	// RecallDeliveries brings up to max deliveries into the present that are due later than a time from now, as none is unless the
	// clock was ahead: they are due after the lease, within which a try that goes on has ended, and their age is counted from now.
	RecallDeliveries(ctx context.Context, later, lease time.Duration, max int) (int, error)
	// EndDeliveries makes dead letters, with a reason, of overdue deliveries, the oldest first, and gives them as they were
	// before. Each is given to one process. While an alert's "ID.raised" waits, its "ID.resolved" is not overdue.
	EndDeliveries(ctx context.Context, o Overdue, reason func(*Delivery) string) ([]Delivery, error)
	// WaitingDeliveries counts, by channel, those that wait.
	WaitingDeliveries(ctx context.Context) (map[string]int64, error)
	// DeliveriesOf gives the deliveries of a message id: those of an alert begin with its id and a dot.
	DeliveriesOf(ctx context.Context, alert string, max int) ([]Delivery, error)
	// DeadDeliveries gives dead letters in order of id.
	DeadDeliveries(ctx context.Context, f DeadFilter) ([]Delivery, error)
	// ReplayDeliveries lets dead letters wait again, due at once, with no attempts and age, and gives how many.
	ReplayDeliveries(ctx context.Context, f DeadFilter) (int, error)

	// DisableChannel remembers that a channel is gone; a second time replaces the first.
	DisableChannel(ctx context.Context, d Disabled) error
	EnableChannel(ctx context.Context, channel string) (found bool, err error)
	DisabledChannels(ctx context.Context) ([]Disabled, error)

	// Alerts gives alerts, the last raised first (then by id, descending).
	Alerts(ctx context.Context, f AlertFilter) ([]Alert, error)
	Alert(ctx context.Context, id string) (a Alert, found bool, err error)

	// AddSilence keeps one: CreatedAt is set to the store's clock, and ExpiresAt to lasts from it.
	AddSilence(ctx context.Context, s Silence, lasts time.Duration) (Silence, error)
	// EndSilence lets one end now; found is false when there is none that has not ended.
	EndSilence(ctx context.Context, id string) (s Silence, found bool, err error)
	// Silences gives up to max, those that have not ended, and with ended the others too; the last made first.
	Silences(ctx context.Context, ended bool, max int) ([]Silence, error)

	// KeepPoison keeps a message that could not be taken; one that is there already is left, and another of its sequence,
	// which is of a stream that is no more, makes place for it. With one of [PoisonTrim] that it is given, and the first, it
	// removes those before the last [MaxPoison].
	KeepPoison(ctx context.Context, p Poison) error
	// PoisonMessages gives those kept, the last first.
	PoisonMessages(ctx context.Context, max int) ([]Poison, error)

	// PruneAlerts removes up to max of each: alerts that were resolved before a moment (held ones only when a digest has
	// told of them), deliveries that ended, silences and poison. PruneTaken removes ids of events taken before a moment, and
	// groups that did not change since and have no open alert.
	PruneAlerts(ctx context.Context, before time.Time, max int) (int, error)
	PruneTaken(ctx context.Context, before time.Time, max int) (int, error)
}
