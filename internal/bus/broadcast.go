package bus

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
)

// The subjects on which workers tell each other what changed. They are below limits.internal, so
// that permissions can keep clients from them.
const (
	// subjectForget carries what all workers are to forget from their caches.
	subjectForget = "limits.internal.forget"
	// SubjectForgetKey carries the id of an API key that was changed.
	SubjectForgetKey = "limits.internal.keys"
	// SubjectReadOverrides asks workers to read the overrides again.
	SubjectReadOverrides = "limits.internal.overrides"
	// subjectStore carries the store that a worker keeps its counters in.
	subjectStore = "limits.internal.store"
)

const (
	// maxForgetBytes bounds a broadcast of what to forget: a key and a name, which may be those of a
	// policy and its limit, in which every byte is escaped.
	maxForgetBytes = 6*(limits.MaxKeyBytes+3*limits.MaxNameBytes) + 64
	// maxAnnouncedBytes bounds an announcement.
	maxAnnouncedBytes = 256
)

// Broadcast carries values of one type to all workers, including the one that sends. A value may be
// lost while the connection is down. Receivers also look for changes themselves, within a second,
// so nothing is done about that.
type Broadcast[T any] struct {
	conn    *nats.Conn
	subject string
	log     *slog.Logger
	// maxBytes bounds a message, and valid refuses values; nil for none.
	maxBytes int
	valid    func(T) error
	sub      atomic.Pointer[nats.Subscription]
	// ignored throttles the log of messages that are not valid, and unsent of those that could not
	// be sent.
	ignored, unsent logThrottle
}

// Announcement says that something changed. ID is its id, or empty if the subject tells enough.
type Announcement struct {
	ID string `json:"id,omitempty"`
}

// NewAnnouncements carries announcements on one subject.
func NewAnnouncements(conn *nats.Conn, subject string, log *slog.Logger) *Broadcast[Announcement] {
	return &Broadcast[Announcement]{conn: conn, subject: subject, log: log, maxBytes: maxAnnouncedBytes}
}

// StoreState says which store a worker uses.
type StoreState struct {
	// ID is the name of the store.
	ID string `json:"id,omitempty"`
	// Seq and Token are of a row that its journal has; Token is 0 for none.
	Seq   int64 `json:"seq,omitzero"`
	Token int64 `json:"token,omitzero"`
}

// NewStoreStates carries which store each worker uses.
func NewStoreStates(conn *nats.Conn, log *slog.Logger) *Broadcast[StoreState] {
	return &Broadcast[StoreState]{conn: conn, subject: subjectStore, log: log, maxBytes: maxAnnouncedBytes}
}

// NewForgets carries what workers are to forget. If one is lost, a worker learns of the change with
// its next transaction, or when its lease ends. It is made before the engine, which sends through
// it, and listens once the engine is there: to all but what a [Service] on the same connection has
// seen first.
func NewForgets(conn *nats.Conn, log *slog.Logger) *Broadcast[engine.Forget] {
	return &Broadcast[engine.Forget]{conn: conn, subject: subjectForget, log: log, maxBytes: maxForgetBytes, valid: saysWhat}
}

// Send sends a value, or logs why it could not. It does not block.
func (b *Broadcast[T]) Send(what T) {
	data, err := json.Marshal(what)
	if err == nil {
		err = publishNoWait(b.conn, b.subject, data)
	}
	if err != nil { // throttled: when a connection breaks each refund that waits fails here
		if n := b.unsent.due(); n > 0 {
			b.log.Warn("cannot broadcast a change to all workers", "subject", b.subject, "error", err, "messages", n)
		}
	}
}

// Listen calls apply for each valid value that is sent after it returns, by this worker too. Unknown
// members are ignored: a newer worker may send more.
func (b *Broadcast[T]) Listen(apply func(T)) error {
	sub, err := b.conn.Subscribe(b.subject, func(m *nats.Msg) {
		what, err := decodeBroadcast(m.Data, b.maxBytes, b.valid)
		if err != nil {
			if n := b.ignored.due(); n > 0 {
				b.log.Warn("ignored an invalid broadcast to all workers", "subject", m.Subject, "error", err, "messages", n)
			}
			return
		}
		apply(what)
	})
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", b.subject, err)
	}
	b.sub.Store(sub)
	// Else what Send sends next, which does not wait in the client's buffer, overtakes the
	// subscription, and what others answer is lost. If the connection breaks meanwhile, the client
	// subscribes anew on the next one.
	_ = b.conn.FlushTimeout(confirmTimeout)
	return nil
}

// Close stops listening.
func (b *Broadcast[T]) Close() {
	if sub := b.sub.Swap(nil); sub != nil {
		_ = sub.Unsubscribe()
	}
}

func decodeBroadcast[T any](data []byte, maxBytes int, valid func(T) error) (what T, err error) {
	if len(data) > maxBytes {
		return what, fmt.Errorf("it has %d bytes; want at most %d", len(data), maxBytes)
	}
	if err := json.Unmarshal(data, &what); err != nil {
		return what, err
	}
	if valid == nil {
		return what, nil
	}
	return what, valid(what)
}

func saysWhat(what engine.Forget) error {
	if what.Key == "" && (what.Name != "" || what.Prefix == "" && !what.All) {
		return errors.New("it does not say what to forget")
	}
	return nil
}
