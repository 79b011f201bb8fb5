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

// broadcast carries values of one type to all workers, including the one that sends. A value may be
// lost while the connection is down. Receivers also look for changes themselves, within a second,
// so nothing is done about that.
type broadcast[T any] struct {
	conn    *nats.Conn
	subject string
	log     *slog.Logger
	sub     atomic.Pointer[nats.Subscription]
	// ignored throttles the log of messages that are not valid, and unsent of those that could not
	// be sent.
	ignored, unsent logThrottle
}

// send sends what, or logs why it could not. It does not block.
func (b *broadcast[T]) send(what T) {
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

// listen calls apply for each valid value of at most maxBytes that is sent after it returns. Unknown
// members are ignored: a newer worker may send more.
func (b *broadcast[T]) listen(maxBytes int, valid func(T) error, apply func(T)) error {
	sub, err := b.conn.Subscribe(b.subject, func(m *nats.Msg) {
		what, err := decodeBroadcast(m.Data, maxBytes, valid)
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
	// Else what send sends next, which does not wait in the client's buffer, overtakes the
	// subscription, and what others answer is lost. If the connection breaks meanwhile, the client
	// subscribes anew on the next one.
	_ = b.conn.FlushTimeout(confirmTimeout)
	return nil
}

func decodeBroadcast[T any](data []byte, maxBytes int, valid func(T) error) (what T, err error) {
	if len(data) > maxBytes {
		return what, fmt.Errorf("it has %d bytes; want at most %d", len(data), maxBytes)
	}
	if err := json.Unmarshal(data, &what); err != nil {
		return what, err
	}
	return what, valid(what)
}

// Close stops listening.
func (b *broadcast[T]) Close() {
	if sub := b.sub.Swap(nil); sub != nil {
		_ = sub.Unsubscribe()
	}
}

// announcement is the body that an [Announcer] sends.
type announcement struct {
	ID string `json:"id,omitempty"`
}

// Announcer tells all workers on one subject that something with an id changed.
type Announcer struct{ broadcast[announcement] }

// NewAnnouncer makes an Announcer for one subject.
func NewAnnouncer(conn *nats.Conn, subject string, log *slog.Logger) *Announcer {
	return &Announcer{broadcast[announcement]{conn: conn, subject: subject, log: log}}
}

// Announce tells all workers, this one included. It does not block.
func (a *Announcer) Announce(id string) { a.send(announcement{id}) }

// Listen calls apply for each announcement, including those of this worker.
func (a *Announcer) Listen(apply func(id string)) error {
	return a.listen(maxAnnouncedBytes, func(announcement) error { return nil }, func(what announcement) { apply(what.ID) })
}

// StoreState is the body that [Stores] sends.
type StoreState struct {
	// ID is the name of the store.
	ID string `json:"id,omitempty"`
	// Seq and Token are of a row that its journal has; Token is 0 for none.
	Seq   int64 `json:"seq,omitzero"`
	Token int64 `json:"token,omitzero"`
}

// Stores carries between workers which store each of them uses.
type Stores struct{ broadcast[StoreState] }

// NewStores makes a Stores.
func NewStores(conn *nats.Conn, log *slog.Logger) *Stores {
	return &Stores{broadcast[StoreState]{conn: conn, subject: subjectStore, log: log}}
}

// Announce tells all workers, this one included. It does not block.
func (s *Stores) Announce(what StoreState) { s.send(what) }

// Listen calls apply for each announcement, including those of this worker.
func (s *Stores) Listen(apply func(StoreState)) error {
	return s.listen(maxAnnouncedBytes, func(StoreState) error { return nil }, apply)
}

// Forgetter carries [engine.Forget] between workers. If one is lost, a worker learns of the change
// with its next transaction, or when its lease ends.
type Forgetter struct{ broadcast[engine.Forget] }

// NewForgetter makes a Forgetter. It is made before the engine, which broadcasts through it, and
// listens once the engine is there.
func NewForgetter(conn *nats.Conn, log *slog.Logger) *Forgetter {
	return &Forgetter{broadcast[engine.Forget]{conn: conn, subject: subjectForget, log: log}}
}

// Broadcast tells all workers, this one included, although its engine has forgotten it already. It
// does not block.
func (f *Forgetter) Broadcast(what engine.Forget) { f.send(what) }

// Listen calls apply for each broadcast, including those of this worker, except for those that a [Service] on the same
// connection has seen first.
func (f *Forgetter) Listen(apply func(engine.Forget)) error {
	return f.listen(maxForgetBytes, saysWhat, apply)
}

func saysWhat(what engine.Forget) error {
	if what == (engine.Forget{}) || what.Name != "" && what.Key == "" {
		return errors.New("it does not say what to forget")
	}
	return nil
}

func decodeForget(data []byte) (engine.Forget, error) {
	return decodeBroadcast(data, maxForgetBytes, saysWhat)
}
