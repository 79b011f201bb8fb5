package bus

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// A server whose permissions change while a connection is up takes subscriptions away, and says so
// once. When the permission is granted again only a new connection brings the subscription back. So
// one is made resubscribeAfter later, and then after twice as long each time, up to
// maxResubscribeAfter.
const (
	resubscribeAfter    = 10 * time.Second
	maxResubscribeAfter = 5 * time.Minute
)

// subscriptionGuard knows whether the server delivers the subjects that a connection must receive,
// and makes the connection anew if it does not.
type subscriptionGuard struct {
	mu sync.Mutex
	// subjects were granted at the start.
	subjects []string
	// refused is a subject that is not granted any more, empty if there is none.
	refused string
	// wait is how long after a refusal the connection is made anew, and due when that is.
	wait time.Duration
	due  time.Time
}

// guardOf returns the guard of a connection that [Connect] made; nil for any other.
func guardOf(nc *nats.Conn) *subscriptionGuard {
	if d := dialerOf(nc); d != nil {
		return &d.guard
	}
	return nil
}

// watch sets the subjects that the server has granted.
func (h *subscriptionGuard) watch(subjects []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subjects = subjects
}

// noteViolation takes a violation of permissions. It ignores those that are not about a watched
// subscription.
func (h *subscriptionGuard) noteViolation(nc *nats.Conn, err error, log *slog.Logger) {
	_, rest, _ := strings.Cut(err.Error(), `Subscription to "`)
	subject, _, _ := strings.Cut(rest, `"`)
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if !slices.Contains(h.subjects, subject) {
		return
	}
	if h.refused = subject; now.Before(h.due) {
		return
	}
	if h.wait == 0 || !h.due.IsZero() && now.Sub(h.due) > 2*maxResubscribeAfter { // it had been granted again
		h.wait = resubscribeAfter
	} else {
		h.wait = min(2*h.wait, maxResubscribeAfter)
	}
	h.due = now.Add(h.wait)
	log.Error("the NATS server does not deliver requests any more, and is asked again: grant the subscription to the user of "+
		"this connection (docs/operations.md, Permissions in NATS)", "subject", subject, "after", h.wait)
	time.AfterFunc(h.wait, func() {
		if h.err() != nil && !nc.IsDraining() { // else the connection was made anew meanwhile
			_ = nc.ForceReconnect() // it fails when the connection is closed
		}
	})
}

// reconnected notes that the connection was made anew. The server repeats its refusals after that.
func (h *subscriptionGuard) reconnected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused = ""
}

func (h *subscriptionGuard) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refused == "" {
		return nil
	}
	return fmt.Errorf("the NATS server refuses the subscription to %s", h.refused)
}
