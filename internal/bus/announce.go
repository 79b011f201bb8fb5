package bus

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
)

// The subjects on which workers tell each other what changed. They are below limits.internal, so that permissions can
// keep clients from them.
const (
	// SubjectForgetKey carries the id of an API key that was changed.
	SubjectForgetKey = "limits.internal.keys"
	// SubjectReadOverrides asks for a look at the overrides.
	SubjectReadOverrides = "limits.internal.overrides"
	// SubjectStore carries the name of the store that a worker counts in.
	SubjectStore = "limits.internal.store"
)

// maxAnnouncedBytes bounds an announcement.
const maxAnnouncedBytes = 256

// announcement is the body.
type announcement struct {
	ID string `json:"id,omitempty"`
}

// Announcer tells all workers on one subject that something with an id changed. An announcement may get lost while
// the connection is down; who listens also looks by itself, within a second, so nothing is done about it.
type Announcer struct {
	conn    *nats.Conn
	subject string
	log     *slog.Logger
	sub     atomic.Pointer[nats.Subscription]
}

// NewAnnouncer makes one over a connection.
func NewAnnouncer(conn *nats.Conn, subject string, log *slog.Logger) *Announcer {
	return &Announcer{conn: conn, subject: subject, log: log}
}

// Announce tells all workers, this one included. It does not block.
func (a *Announcer) Announce(id string) {
	data, err := json.Marshal(announcement{id})
	if err == nil && a.conn.IsConnected() {
		err = a.conn.Publish(a.subject, data)
	} else if err == nil {
		err = nats.ErrDisconnected
	}
	if err != nil {
		a.log.Warn("announce a change", "subject", a.subject, "error", err)
	}
}

// Listen calls apply for each announcement, those of this worker too.
func (a *Announcer) Listen(apply func(id string)) error {
	sub, err := a.conn.Subscribe(a.subject, func(m *nats.Msg) {
		what, err := decodeAnnouncement(m.Data)
		if err != nil {
			a.log.Warn("ignore an announcement", "subject", m.Subject, "error", err)
			return
		}
		apply(what.ID)
	})
	if err != nil {
		return fmt.Errorf("subscribe %s: %w", a.subject, err)
	}
	a.sub.Store(sub)
	return nil
}

// Close ends listening.
func (a *Announcer) Close() {
	if sub := a.sub.Swap(nil); sub != nil {
		_ = sub.Unsubscribe()
	}
}

// decodeAnnouncement lets unknown members through: a newer worker may send more.
func decodeAnnouncement(data []byte) (what announcement, err error) {
	if len(data) > maxAnnouncedBytes {
		return what, fmt.Errorf("%d bytes are too many", len(data))
	}
	return what, json.Unmarshal(data, &what)
}
