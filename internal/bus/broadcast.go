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

// The subjects on which workers tell each other what changed. They are below limits.internal, so that permissions can
// keep clients from them.
const (
	// subjectForget carries what all workers are to forget.
	subjectForget = "limits.internal.forget"
	// SubjectForgetKey carries the id of an API key that was changed.
	SubjectForgetKey = "limits.internal.keys"
	// SubjectReadOverrides asks for a look at the overrides.
	SubjectReadOverrides = "limits.internal.overrides"
	// SubjectStore carries the name of the store that a worker counts in.
	SubjectStore = "limits.internal.store"
)

const (
	// maxForgetBytes bounds a broadcast of what to forget: a key or prefix whose every byte needs an escape.
	maxForgetBytes = 6*limits.MaxKeyBytes + 64
	// maxAnnouncedBytes bounds an announcement.
	maxAnnouncedBytes = 256
)

// broadcast carries values of one type to all workers, the one that sends included. One may get lost while the connection is
// down; who listens also looks by itself, within a second, so nothing is done about it.
type broadcast[T any] struct {
	conn    *nats.Conn
	subject string
	log     *slog.Logger
	sub     atomic.Pointer[nats.Subscription]
	// ignored are those that came and are none, and untold those that could not be sent.
	ignored, unsent logThrottle
}

// send sends; the log says why it could not. It does not block.
func (b *broadcast[T]) send(what T) {
	data, err := json.Marshal(what)
	if err == nil {
		err = publishNoWait(b.conn, b.subject, data)
	}
	if err != nil { // a connection that breaks has one for each refund that waits
		if n := b.unsent.due(); n > 0 {
			b.log.Warn("tell all workers of a change", "subject", b.subject, "error", err, "messages", n)
		}
	}
}

// listen calls apply for each value of at most so many bytes that is valid. Unknown members are let through: a newer worker
// may send more.
func (b *broadcast[T]) listen(most int, valid func(T) error, apply func(T)) error {
	sub, err := b.conn.Subscribe(b.subject, func(m *nats.Msg) {
		what, err := decodeBroadcast(m.Data, most, valid)
		if err != nil {
			if n := b.ignored.due(); n > 0 {
				b.log.Warn("ignore what is told to all workers", "subject", m.Subject, "error", err, "messages", n)
			}
			return
		}
		apply(what)
	})
	if err != nil {
		return fmt.Errorf("subscribe %s: %w", b.subject, err)
	}
	b.sub.Store(sub)
	return nil
}

func decodeBroadcast[T any](data []byte, most int, valid func(T) error) (what T, err error) {
	if len(data) > most {
		return what, fmt.Errorf("%d bytes are too many", len(data))
	}
	if err := json.Unmarshal(data, &what); err != nil {
		return what, err
	}
	return what, valid(what)
}

// Close ends listening.
func (b *broadcast[T]) Close() {
	if sub := b.sub.Swap(nil); sub != nil {
		_ = sub.Unsubscribe()
	}
}

// announcement is the body of what an [Announcer] tells.
type announcement struct {
	ID string `json:"id,omitempty"`
}

// Announcer tells all workers on one subject that something with an id changed.
type Announcer struct{ broadcast[announcement] }

// NewAnnouncer makes one over a connection.
func NewAnnouncer(conn *nats.Conn, subject string, log *slog.Logger) *Announcer {
	return &Announcer{broadcast[announcement]{conn: conn, subject: subject, log: log}}
}

// Announce tells all workers, this one included. It does not block.
func (a *Announcer) Announce(id string) { a.send(announcement{id}) }

// Listen calls apply for each announcement, those of this worker too.
func (a *Announcer) Listen(apply func(id string)) error {
	return a.listen(maxAnnouncedBytes, func(announcement) error { return nil }, func(what announcement) { apply(what.ID) })
}

// Forgetter carries [engine.Forget] between workers. Where one is lost the next transaction tells, or the lease ends.
type Forgetter struct{ broadcast[engine.Forget] }

// NewForgetter makes one over a connection. It is made before the engine, whose Broadcast it is, and listens when
// the engine is there.
func NewForgetter(conn *nats.Conn, log *slog.Logger) *Forgetter {
	return &Forgetter{broadcast[engine.Forget]{conn: conn, subject: subjectForget, log: log}}
}

// Broadcast tells all workers, this one included, whose engine has forgotten it before. It does not block.
func (f *Forgetter) Broadcast(what engine.Forget) { f.send(what) }

// Listen calls apply for each broadcast, those of this worker too.
func (f *Forgetter) Listen(apply func(engine.Forget)) error {
	return f.listen(maxForgetBytes, func(what engine.Forget) error {
		if what == (engine.Forget{}) {
			return errors.New("it names nothing")
		}
		return nil
	}, apply)
}
