package bus

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// hand holds the messages of a pull. While some of them are taken, the others must not come again.
type hand struct {
	pull <-chan jetstream.Msg
	// held are being handled; waiting have arrived and come next.
	held, waiting []jetstream.Msg
	// The server was told at keptAt, or later, that all of them are worked on. It is told every so
	// often, which is far less than its acknowledgement timeout: before each call of the store, and
	// that may take long.
	keptAt time.Time
	every  time.Duration
}

func newHand(pull <-chan jetstream.Msg, began time.Time, ackWait time.Duration) hand {
	return hand{pull: pull, keptAt: began, every: ackWait / 6}
}

// gatherTime bounds the wait for messages that are on their way.
const gatherTime = 20 * time.Millisecond

// next returns what has arrived as soon as there is something, and nothing when the pull is over. If the server has said that
// more is left in the stream, it waits a little for that: a batch costs the same round trips to the store, however small it is.
// So few messages are handled at once, and what arrives while a batch is taken forms the next one.
func (h *hand) next(most int) []jetstream.Msg {
	h.held = nil
	if len(h.waiting) == 0 {
		m, ok := <-h.pull
		if !ok {
			return nil
		}
		h.waiting = append(h.waiting, m)
	}
	h.receive()
	if len(h.waiting) < most && h.moreLeft() {
		h.gather(most)
	}
	n := min(len(h.waiting), most)
	h.held, h.waiting = h.waiting[:n], h.waiting[n:]
	return h.held
}

// moreLeft reports whether the stream had more when it delivered the last message. Another consumer may get that.
func (h *hand) moreLeft() bool {
	meta, err := h.waiting[len(h.waiting)-1].Metadata()
	return err == nil && meta.NumPending > 0
}

// gather receives what is on its way.
func (h *hand) gather(most int) {
	end := time.NewTimer(gatherTime)
	defer end.Stop()
	for len(h.waiting) < most && h.moreLeft() {
		select {
		case m, ok := <-h.pull:
			if !ok {
				return
			}
			h.waiting = append(h.waiting, m)
		case <-end.C:
			return
		}
		h.receive()
	}
}

// receive receives what has arrived.
func (h *hand) receive() {
	for {
		select {
		case m, ok := <-h.pull:
			if !ok {
				return
			}
			h.waiting = append(h.waiting, m)
		default:
			return
		}
	}
}

// keep keeps the messages from coming again, to this process or another, if it is time to.
func (h *hand) keep() {
	if time.Since(h.keptAt) < h.every {
		return
	}
	h.receive()
	for _, some := range [][]jetstream.Msg{h.held, h.waiting} {
		for _, m := range some {
			_ = m.InProgress() // sends nothing for one that was acknowledged or given back
		}
	}
	h.keptAt = time.Now()
}
