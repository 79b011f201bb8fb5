package engine

import (
	"context"
	"errors"
)

// Store keeps counters, idempotency receipts and the events that wait to be published.
//
// The conformance suite in package storetest defines the contract of every implementation.
type Store interface {
	// Update runs one transaction, which no other write can overlap. It reads the batch's counters,
	// the receipts of its ids and then the store's clock, calls decide, writes the changes and
	// commits. When Update returns nil all of it is durable. The store may call decide again if it
	// has to run the transaction again; the last call counts.
	//
	// A store that remembers what it wrote last may first call decide with that, while others can
	// write, and then write on condition that it is still current; [Snapshot.Until] is set in that
	// case.
	//
	// The error wraps ErrConflict if nothing was written and the caller should try again at once.
	// It wraps ErrCommitUnknown if the transaction may or may not have been committed. After any
	// other error nothing was written.
	Update(ctx context.Context, b Batch, decide func(Snapshot) Changes) error

	// Counters reads the counters of one key, in order of name, one more than [MaxKeyCounters] at most, and the store's clock.
	Counters(ctx context.Context, key string) ([]StoredCounter, int64, error)

	// List reads up to max counters whose key begins with prefix and whose id comes after the given
	// one (zero for the first page), in order of id, and the store's clock.
	List(ctx context.Context, prefix string, after CounterID, max int) ([]StoredCounter, int64, error)

	// Receipts reads the receipts of ids as committed, in the same order; nil for one that is not
	// stored. No Update waits for it.
	Receipts(ctx context.Context, ids []string) ([]*Receipt, error)

	// Reset removes the selected counters, or only counts them if dryRun is set.
	Reset(ctx context.Context, sel Selection, dryRun bool) (int64, error)
}

// Waiter is a [Store] whose transactions may have to wait for those of other workers. The engine
// calls Await before it forms a batch, so that requests which arrive during the wait can join it.
// Await returns when it is this worker's turn, or nil if there is no point in waiting before the
// batch is known, or if waiting failed.
type Waiter interface {
	Await(ctx context.Context) Turn
}

// Turn is the right to write next. It ends with the [Store.Update] of its batch, or with End.
type Turn interface {
	End()
}

// The errors of [Store.Update] that the engine handles specially.
var (
	// ErrConflict says that another worker wrote in between, and nothing of this transaction was
	// written.
	ErrConflict = errors.New("the transaction lost a race with another one")
	// ErrCommitUnknown says that the answer to the commit was lost.
	ErrCommitUnknown = errors.New("it is unknown whether the commit succeeded")
)

// Batch is what a transaction reads.
type Batch struct {
	// Counters are distinct.
	Counters []CounterID
	// IDs are those of the requests that have one, distinct and in byte order. Each gets a receipt,
	// unless it has one.
	IDs []string
	// ConsumeIDs are those of the consumes that are settled, distinct. Their receipts count only
	// beside that of a settle.
	ConsumeIDs []string
	// Turn is what a [Waiter] returned for this batch; nil for none.
	Turn Turn
}

// Snapshot is what the transaction read. Its slices are valid until decide returns.
type Snapshot struct {
	// Now is the store's clock, in Unix milliseconds, read when nobody else could write any more.
	// With an Until it is the earliest that the clock may show at the commit.
	Now int64
	// Until is 0 for a decision at Now over what was read in this worker's turn. Otherwise the
	// decision must hold at every moment from Now to Until, or [Changes.Until]: the states are those that this worker
	// remembers, and the store writes the changes on condition that they are still current and that
	// its clock lies in between; or the batch was gathered after the clock was read.
	Until int64
	// Latest, if Until is set, is the latest that the clock may have shown when decide was called,
	// as Now is the earliest. A charge counts from Now, and the end of a lease is compared with the
	// clock as reckoned from Latest.
	Latest int64
	// States holds the encoded state of each counter of the batch; nil for one that is not stored.
	States [][]byte
	// Receipts holds the receipt of each id of the batch; nil for one that is not stored. With an
	// Until the store may take all for not stored. Then it writes the changes only if they have a
	// receipt for each id, and on condition that none is stored.
	Receipts []*Receipt
	// ConsumeReceipts holds the receipt of each of the batch's ConsumeIDs, nil for one that is not
	// stored. A store that takes all Receipts for not stored need not read these.
	ConsumeReceipts []*Receipt
	// Others names the counters that something other than this store's Update has changed since the
	// last call of decide. An Update that returns nil proves that nothing else had changed when it
	// ran.
	Others Others
}

// Others are counters that another process or [Store.Reset] has changed. Expired counters are not
// among them: they only became freer with time, which the engine knows. A store collects them for
// the one engine that it serves.
type Others struct {
	// All says that any counter may have changed, because the store has read everything anew.
	All bool
	// IDs may name a counter more than once.
	IDs []CounterID
}

// maxOthers bounds the named counters; more count as all.
const maxOthers = 1 << 14

// Add adds a counter.
func (o *Others) Add(id CounterID) {
	if o.All || len(o.IDs) == maxOthers {
		o.AddAll()
		return
	}
	o.IDs = append(o.IDs, id)
}

// AddAll adds all counters.
func (o *Others) AddAll() { o.All, o.IDs = true, nil }

// Hand wraps decide so that its snapshot holds what was collected, and starts a new collection
// after the call.
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
	// Unsure says that the decisions may not even hold until [Snapshot.Latest], or depend on counters
	// that are not written. The store must then write nothing, and call decide again with what it
	// reads while nobody else can write.
	Unsure bool
	// Until, if not 0, is the last moment at which the decisions hold, when that is before
	// [Snapshot.Until].
	Until int64
	// Counters are in the order of the batch, each at most once.
	Counters []CounterChange
	// Receipts are new, in byte order of their ids. Stale are the ids of receipts to remove first.
	Receipts []Receipt
	Stale    []string
	Events   []Event
}

// CounterChange is a new state for a counter of the batch.
type CounterChange struct {
	// Slot is the index of the counter in [Batch.Counters].
	Slot  int
	State []byte
	// Spec is the limit's [Spec] as JSON; nil if the stored one is right. A counter that is not
	// stored yet always has one.
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

// Selection names counters: those of one Key, or, without a Key, those whose key begins with
// Prefix. An empty Prefix selects all.
type Selection struct {
	Key, Prefix string
}

// EventType is the kind of an event.
type EventType string

// The types of events.
const (
	EventWarning  EventType = "limits.warning"
	EventExceeded EventType = "limits.exceeded"
)

// Event says that a limit's threshold or the limit itself was passed, as the outbox keeps it.
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
