package alerts

import (
	"context"
	"encoding/json"
	"time"
)

// TakeQuery says what a batch of events has to read from the store.
type TakeQuery struct {
	// Events are the ids of the events; some may have been taken before.
	Events []string
	// Groups are the groups of all the events, each once.
	Groups []GroupID
	// Subjects are the subjects of the warnings among the events, each once.
	Subjects []string
}

// TakeState is what the store knows about a [TakeQuery], read under lock.
type TakeState struct {
	// Now is the store's clock, read after the locks, in Unix milliseconds.
	Now int64
	// Fresh are the events that were not taken before.
	Fresh map[string]bool
	// States are the stored states of the groups. A group without one is missing.
	States map[GroupID]json.RawMessage
	// Open are the open alerts of the groups.
	Open map[GroupID]Alert
	// Exceeded are the subjects that have an open alert of [limits.EventExceeded], in any group, with the last ResolveAt of
	// those alerts.
	Exceeded map[string]int64
}

// Changes is what a batch of events changes in the store.
type Changes struct {
	// States are the new states of groups.
	States map[GroupID]json.RawMessage
	// Resolved are open alerts that are resolved now, before Raised are added: one of these may be of the same group.
	// Deliveries tell of them, and are added to the outbox.
	Resolved   []Alert
	Deliveries []Delivery
	// Raised are new alerts; their Notice is Pending.
	Raised []Alert
	// Claim is for how long Raised are claimed at once by the caller, as if PendingAlerts had returned them; 0 for not.
	Claim time.Duration
	// Updated are open alerts that changed: the fields that come from events, ResolveAt, and Notice if a silenced alert
	// became Pending again. ResolvedAt, Reason, NoticeAt, HeldUntil and Digest are not written.
	Updated []Alert
}

// DigestLead is by how much a digest runs ahead of the store's clock. Digests run at the full hours of a
// worker's clock, when quiet hours and silences usually end too. If that clock were a little ahead of the store's, without
// the lead a digest would leave out what they held, for another hour. It is as much as the clock of a worker that runs jobs
// may be ahead.
const DigestLead = time.Minute

// MaxResolveDelay is longer than any alert stays open after its last event. If ResolveAt is farther away than this, the alert
// was raised while the store's clock was ahead, and is resolved now.
const MaxResolveDelay = 32 * 24 * time.Hour

// MaxHoldDelay is longer than any alert is held before it is checked again, at the next full hour. If HeldUntil is farther
// away than this, the alert was held while the store's clock was ahead, and may be sent now.
const MaxHoldDelay = 2 * time.Hour

// NoticeDecision is the decision about a pending alert.
type NoticeDecision struct {
	// Alert is its id. The store changes the alert only if it is still pending.
	Alert     string
	Notice    Notice
	Reason    string
	HeldUntil int64
	// Deliveries are added to the outbox in the same transaction, as [NewDelivery] makes them.
	Deliveries []Delivery
}

// DigestDecision is the decision about a user's held alerts.
type DigestDecision struct {
	// Name is the name of the digest; empty if it includes no alert.
	Name string
	// Deliveries are added to the outbox in the same transaction.
	Deliveries []Delivery
	// Postponed are the ids of alerts that the digest leaves out, each with its new HeldUntil. That must be more than
	// [DigestLead] from now, or they would be returned again at once.
	Postponed map[string]int64
}

// DeliveryResult is the result of an attempt to deliver.
type DeliveryResult struct {
	ID    string
	State DeliveryState
	// DueAt is when the next attempt is due, if the delivery still waits.
	DueAt int64
	Error string
	// Counts says that this counts as an attempt. A delivery that was only put off (the channel's circuit is open) has
	// none.
	Counts bool
}

// Overdue selects deliveries that have waited for too long.
type Overdue struct {
	// Age is how long they have waited since they were created or last replayed.
	Age time.Duration
	// Lease is the lease of [Store.DueDeliveries]. Deliveries that are due within it may be claimed by a process, and are
	// left out.
	Lease time.Duration
	Max   int
}

// AlertFilter selects alerts; empty fields select all.
type AlertFilter struct {
	User, Rule, Policy string
	// OpenOnly leaves out resolved alerts.
	OpenOnly bool
	// Before and BeforeID select the page after the alert with that RaisedAt and ID; 0 for the first page.
	Before   int64
	BeforeID string
	Max      int
}

// DeadFilter selects dead letters; empty fields select all.
type DeadFilter struct {
	ID, Channel string
	// After selects ids greater than it, for the next page.
	After string
	Max   int
}

// Disabled is a channel whose target said that it no longer exists.
type Disabled struct {
	Channel string
	// Target is a fingerprint of the target. A channel of the same name with another target is not disabled.
	Target string
	Reason string
	At     int64
}

// Store stores alerts, deliveries and silences. Several processes may use one at the same time. Every implementation must
// pass one conformance suite (package storetest). All times are of the store's clock.
type Store interface {
	// Take stores the ids of the events, locks the groups (in order, so that two batches never deadlock), calls decide, and
	// writes what it returns, in one transaction. An error of decide rolls everything back. decide is called again if the
	// transaction has to be retried.
	Take(ctx context.Context, t TakeQuery, decide func(TakeState) (Changes, error)) error
	// PendingAlerts claims up to max pending alerts, the oldest first, for the lease, and returns them with the store's
	// clock. No other call returns them before the lease is over, an hour at most: a claim that lasts longer from now was
	// made while the clock was ahead, and does not count.
	PendingAlerts(ctx context.Context, max int, lease time.Duration) (all []Alert, now int64, err error)
	// SaveNotices writes the decisions about pending alerts, and their deliveries, in one transaction. It returns the ids of
	// the alerts that were still pending.
	SaveNotices(ctx context.Context, all []NoticeDecision) (changed []string, err error)
	// ResolveAlerts resolves up to max open alerts whose ResolveAt has come and that are not pending, the earliest first,
	// and adds the deliveries that build returns for each to the outbox, in one transaction. Alerts that another process has
	// locked are left for later. Last come alerts whose ResolveAt is more than [MaxResolveDelay] from now.
	ResolveAlerts(ctx context.Context, max int, build func(Alert) ([]Delivery, error)) (int, error)
	// HeldUsers returns up to max users greater than after, in order, that have held alerts which are in no digest and whose
	// HeldUntil has come, or will come within [DigestLead], or is more than [MaxHoldDelay] from now.
	HeldUsers(ctx context.Context, after string, max int) ([]string, error)
	// DigestAlerts locks up to max such alerts of a user, the oldest first. If there are any, it calls build and writes its
	// decision and deliveries, in one transaction. It returns how many alerts they were, including those left for later.
	// build is called again if the transaction has to be retried.
	DigestAlerts(ctx context.Context, user string, max int, build func(held []Alert, now int64) (DigestDecision, error)) (int, error)

	// AddDelivery adds a delivery to the outbox.
	AddDelivery(ctx context.Context, d Delivery) error
	// DueDeliveries claims up to max due deliveries of a channel, the earliest first, for the lease. DueAt of the deliveries
	// that it returns is when the lease ends. While an alert's "ID.raised" waits, its "ID.resolved" for the same channel is
	// not due.
	DueDeliveries(ctx context.Context, channel string, max int, lease time.Duration) ([]Delivery, error)
	// OtherDeliveries returns up to max waiting deliveries whose channel is not among those given, and that have been due
	// for at least due. A delivery that is claimed, or waits for its next attempt, is not due: some process knows its
	// channel. Nor is an "ID.resolved" while its "ID.raised" waits.
	OtherDeliveries(ctx context.Context, channels []string, due time.Duration, max int) ([]Delivery, error)
	// SaveResults writes the results of attempts. A delivery that no longer waits is not changed.
	SaveResults(ctx context.Context, all []DeliveryResult) error
	// RecallDeliveries corrects up to max deliveries that are due later than later from now, which happens only if the
	// clock was ahead. They become due after the lease, so that an attempt in flight ends before, and their age counts from
	// now.
	RecallDeliveries(ctx context.Context, later, lease time.Duration, max int) (int, error)
	// AdvanceDeliveries makes up to max waiting deliveries of a channel due now, the earliest first, that are due later than
	// lease from now: no process has claimed those. It returns how many.
	AdvanceDeliveries(ctx context.Context, channel string, lease time.Duration, max int) (int, error)
	// EndDeliveries makes overdue deliveries dead letters, with a reason, the oldest first, and returns them as they were
	// before. Each is returned to one process only. While an alert's "ID.raised" waits, its "ID.resolved" is not overdue.
	EndDeliveries(ctx context.Context, o Overdue, reason func(*Delivery) string) ([]Delivery, error)
	// WaitingDeliveries counts waiting deliveries by channel.
	WaitingDeliveries(ctx context.Context) (map[string]int64, error)
	// DeliveriesOf returns the deliveries whose id begins with the given id and a dot (those of an alert) or a slash (those of a
	// digest or a test).
	DeliveriesOf(ctx context.Context, alert string, max int) ([]Delivery, error)
	// DeadDeliveries returns dead letters in order of id.
	DeadDeliveries(ctx context.Context, f DeadFilter) ([]Delivery, error)
	// ReplayDeliveries makes dead letters wait again, due at once, with attempts and age reset. It returns how many.
	ReplayDeliveries(ctx context.Context, f DeadFilter) (int, error)

	// DisableChannel stores that a channel is disabled. It replaces an earlier entry of the channel.
	DisableChannel(ctx context.Context, d Disabled) error
	EnableChannel(ctx context.Context, channel string) (found bool, err error)
	DisabledChannels(ctx context.Context) ([]Disabled, error)

	// Alerts returns alerts, the last raised first (then by id, descending).
	Alerts(ctx context.Context, f AlertFilter) ([]Alert, error)
	Alert(ctx context.Context, id string) (a Alert, found bool, err error)

	// AddSilence stores a silence. It sets CreatedAt to the store's clock, and ExpiresAt to lasts after that.
	AddSilence(ctx context.Context, s Silence, lasts time.Duration) (Silence, error)
	// EndSilence ends a silence now. found is false if there is none with the id that has not ended.
	EndSilence(ctx context.Context, id string) (s Silence, found bool, err error)
	// Silences returns up to max silences, the last created first: those that have not ended, and with ended all.
	Silences(ctx context.Context, ended bool, max int) ([]Silence, error)

	// KeepPoison stores a message that is no valid event. If the same message is there already nothing changes; a different
	// one with the same sequence, of a stream that was deleted, stays beside it. At the first call, and at every
	// [PoisonTrim]th, it removes all but the last [MaxPoison].
	KeepPoison(ctx context.Context, p Poison) error
	// PoisonMessages returns up to max of them, the last first.
	PoisonMessages(ctx context.Context, max int) ([]Poison, error)

	// PruneAlerts removes up to max of each: alerts that were resolved before a time (held ones only after a digest has
	// included them), deliveries and silences that ended, and poison.
	PruneAlerts(ctx context.Context, before time.Time, max int) (int, error)
	// PruneTaken removes up to max ids of events that were taken before a time. PruneGroups removes up to max groups that
	// have not changed since and have no open alert.
	PruneTaken(ctx context.Context, before time.Time, max int) (int, error)
	PruneGroups(ctx context.Context, before time.Time, max int) (int, error)
}
