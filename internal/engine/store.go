package engine

import (
	"context"
	"errors"
)

// Store keeps counters, idempotency receipts and the events that wait to be published.
//
// The contract of every implementation is held by one conformance suite (package storetest).
type Store interface {
	// Update runs one transaction, while no other can write: it reads the batch's counters, the receipts of its ids and
	// then the store's clock, calls decide, writes the changes and commits. When Update returns nil all of it is
	// durable. decide may be called again if the transaction had to be run again inside; the last call counts.
	//
	// A store that knows what it wrote last may ask decide first over that, while others can write, and write on
	// condition that it still stands; [Snapshot.Until] says so.
	//
	// The error is ErrConflict (or wraps it) when nothing was written and running it again at once is right,
	// wraps ErrCommitUnknown when the transaction may or may not have been committed, and any other error when
	// nothing was written.
	Update(ctx context.Context, b Batch, decide func(Snapshot) Changes) error

	// Counters reads all counters of one key, in order of name, and the store's clock.
	Counters(ctx context.Context, key string) ([]StoredCounter, int64, error)

	// List reads up to max counters whose key begins with prefix and that come after the given id (zero for the
	// first), in order of id, and the store's clock.
	List(ctx context.Context, prefix string, after CounterID, max int) ([]StoredCounter, int64, error)

	// Reset removes the counters that sel selects, or only counts them.
	Reset(ctx context.Context, sel Selection, dryRun bool) (int64, error)
}

// Waiter is a [Store] whose transactions may have to wait for those of other workers: what gathers meanwhile can be in the
// batch. Await returns once the turn has come; nil when there is no use in waiting before the batch is known, or when
// waiting failed.
type Waiter interface {
	Await(ctx context.Context) Turn
}

// Turn is the right to be the next who writes. It ends with the [Store.Update] of the batch it is in, or by End.
type Turn interface {
	End()
}

// The errors of [Store.Update] that mean something to the engine.
var (
	// ErrConflict says that another worker got in between and nothing was written.
	ErrConflict = errors.New("the transaction lost a race")
	// ErrCommitUnknown says that the answer to the commit was lost.
	ErrCommitUnknown = errors.New("the fate of the commit is unknown")
)

// Batch is what a transaction reads.
type Batch struct {
	// Counters are distinct.
	Counters []CounterID
	// IDs are distinct and in byte order.
	IDs []string
	// Turn is what a [Waiter] has given for this batch; nil for none.
	Turn Turn
}

// Snapshot is what the transaction read. Its slices are valid until decide returns.
type Snapshot struct {
	// Now is the store's clock when nobody else could write any more, in Unix milliseconds.
	Now int64
	// Until is 0 for a decision at Now, over what was read in turn. Else it is made somewhere from Now to Until: the states
	// are those that this worker knows, and the store writes the changes on condition that they still stand and that its
	// clock is then between the two; or the batch was gathered after the clock was read.
	Until int64
	// Latest is the latest that the clock may have been when decide was called, where there is an Until: Now is the
	// earliest. What the decision lends must end by the one, and what it charges counts from the other.
	Latest int64
	// States holds the encoded state of each counter of the batch; nil for one that is not stored.
	States [][]byte
	// Receipts holds the receipt of each id of the batch; nil for one that is not stored.
	Receipts []*Receipt
	// Others says what has changed since decide was called last, by others than Update of this store. An Update that
	// returns nil proves that nothing else has, up to its moment.
	Others Others
}

// Others are counters that another process has changed, or [Store.Reset], but for those that expired: time alone
// frees them. A store gathers them for the one engine that it serves.
type Others struct {
	// All says that any may have changed: the store has read anew all that there is.
	All bool
	// IDs may name a counter twice.
	IDs []CounterID
}

// othersMost bounds the named counters.
const othersMost = 1 << 14

// Add names a counter.
func (o *Others) Add(id CounterID) {
	if o.All || len(o.IDs) == othersMost {
		o.AddAll()
		return
	}
	o.IDs = append(o.IDs, id)
}

// AddAll stands for all counters.
func (o *Others) AddAll() { o.All, o.IDs = true, nil }

// Hand hands what was gathered to a decision, and gathers anew when that was made.
func (o *Others) Hand(decide func(Snapshot) Changes) func(Snapshot) Changes {
	return func(snap Snapshot) Changes {
		snap.Others = *o
		changes := decide(snap)
		clear(o.IDs)
		o.All, o.IDs = false, o.IDs[:0]
		return changes
	}
}

// Changes is what the transaction writes. Its slices are valid until Update returns.
type Changes struct {
	// Unsure says that the decisions may not hold up to [Snapshot.Until], or rest on counters that are not written.
	// Nothing is to be written then, and decide to be asked again over what is read while nobody else can write.
	Unsure bool
	// Counters are in the batch's order, each at most once.
	Counters []CounterChange
	// Receipts are new, in byte order of their ids. Those of the snapshot that Stale names are removed before.
	Receipts []Receipt
	Stale    []string
	Events   []Event
}

// CounterChange is a new state for a counter of the batch.
type CounterChange struct {
	// Slot is the counter's place in [Batch.Counters].
	Slot  int
	State []byte
	// Spec is what to keep of the limit, as JSON; nil when it stands unchanged. It is always there for a
	// counter that is not stored yet.
	Spec []byte
	// ExpiresAt is when the counter may be removed, in Unix milliseconds.
	ExpiresAt int64
}

// Receipt is the answer kept under an idempotency id.
type Receipt struct {
	ID          string
	Fingerprint [32]byte
	// Answer is opaque to the store.
	Answer []byte
	// ExpiresAt is when the receipt may be removed, in Unix milliseconds.
	ExpiresAt int64
}

// StoredCounter is a counter as stored.
type StoredCounter struct {
	CounterID
	// Spec is the JSON of a [Spec].
	Spec  []byte
	State []byte
}

// Selection names counters: those of one Key, or, without a Key, those whose key begins with Prefix. An empty
// Prefix selects all.
type Selection struct {
	Key, Prefix string
}

// EventType tells the events apart.
type EventType string

// The types of events.
const (
	EventWarning  EventType = "limits.warning"
	EventExceeded EventType = "limits.exceeded"
)

// Event is a crossing, as the outbox keeps it.
type Event struct {
	ID   string    `json:"-"`
	Type EventType `json:"-"`
	// Time is the store's clock at the decision, in Unix milliseconds.
	Time       int64  `json:"time"`
	Key        string `json:"key"`
	Name       string `json:"name"`
	Policy     string `json:"policy,omitempty"`
	Limit      int64  `json:"limit"`
	Window     string `json:"window"`
	Remaining  int64  `json:"remaining"`
	Threshold  int64  `json:"threshold"`
	ResetAt    int64  `json:"resetAt"`
	RetryAfter int64  `json:"retryAfter,omitzero"`
	// Denied is how many denials the event stands for.
	Denied int64  `json:"denied,omitzero"`
	User   string `json:"user,omitempty"`
}
