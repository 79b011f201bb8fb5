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

// subjectForget carries what all workers are to forget. It is below limits.internal, so that permissions can keep
// clients from it.
const subjectForget = "limits.internal.forget"

// maxForgetBytes bounds a broadcast: a key or prefix whose every byte needs an escape.
const maxForgetBytes = 6*limits.MaxKeyBytes + 64

// Forgetter carries [engine.Forget] between workers. A broadcast may get lost while the connection is down; then
// the next transaction tells, or the lease ends, within a second, so nothing is done about it.
type Forgetter struct {
	conn  *nats.Conn
	log   *slog.Logger
	apply atomic.Pointer[func(engine.Forget)]
	sub   atomic.Pointer[nats.Subscription]
}

// NewForgetter makes one over a connection. It is made before the engine, whose Broadcast it is, and listens when
// the engine is there.
func NewForgetter(conn *nats.Conn, log *slog.Logger) *Forgetter {
	return &Forgetter{conn: conn, log: log}
}

// Broadcast tells all workers, this one included. It does not block.
func (f *Forgetter) Broadcast(what engine.Forget) {
	data, err := json.Marshal(what)
	if err == nil && f.conn.IsConnected() {
		err = f.conn.Publish(subjectForget, data)
	} else if err == nil {
		err = nats.ErrDisconnected
	}
	if err == nil {
		return
	}
	f.log.Warn("broadcast what to forget", "error", err)
	// The message would have come back to this worker too. It is applied beside the caller, which may hold the
	// engine's lock.
	if apply := f.apply.Load(); apply != nil {
		go (*apply)(what)
	}
}

// Listen calls apply for each broadcast, those of this worker too.
func (f *Forgetter) Listen(apply func(engine.Forget)) error {
	f.apply.Store(&apply)
	sub, err := f.conn.Subscribe(subjectForget, func(m *nats.Msg) {
		what, err := decodeForget(m.Data)
		if err != nil {
			f.log.Warn("ignore a broadcast", "subject", m.Subject, "error", err)
			return
		}
		apply(what)
	})
	if err != nil {
		return fmt.Errorf("subscribe %s: %w", subjectForget, err)
	}
	f.sub.Store(sub)
	return nil
}

// Close ends listening.
func (f *Forgetter) Close() {
	if sub := f.sub.Swap(nil); sub != nil {
		_ = sub.Unsubscribe()
	}
}

// decodeForget reads a broadcast. Unknown members are let through: a newer worker may send more.
func decodeForget(data []byte) (engine.Forget, error) {
	var f engine.Forget
	if len(data) > maxForgetBytes {
		return f, fmt.Errorf("%d bytes are too many", len(data))
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, err
	}
	if f == (engine.Forget{}) {
		return f, errors.New("it names nothing")
	}
	return f, nil
}
