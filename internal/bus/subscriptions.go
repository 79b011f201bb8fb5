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

// A server whose permissions change below a connection takes its subscriptions away and says so once. When they are granted again
// nothing brings them back but another connection, which is made so long after, and after twice as long each time.
const (
	resubscribeAfter    = 10 * time.Second
	maxResubscribeAfter = 5 * time.Minute
)

// hearing knows whether the server delivers what a connection has to hear.
type subscriptionGuard struct {
	mu sync.Mutex
	// subjects were granted at the start.
	subjects []string
	// refused is one that is not granted any more; empty for none.
	refused string
	// wait is how long after a refusal another connection is made, and due is when that is.
	wait time.Duration
	due  time.Time
}

// hearingOf gives that of a connection of [Connect]; nil for another.
func guardOf(nc *nats.Conn) *subscriptionGuard {
	if d := dialerOf(nc); d != nil {
		return &d.guard
	}
	return nil
}

// guard notes what the server has granted, for as long as the connection lasts.
func (h *subscriptionGuard) watch(subjects []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subjects = subjects
}

// note takes a violation of permissions, which may be of a subscription.
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
	if h.wait == 0 || !h.due.IsZero() && now.Sub(h.due) > 2*maxResubscribeAfter { // it was granted meanwhile
		h.wait = resubscribeAfter
	} else {
		h.wait = min(2*h.wait, maxResubscribeAfter)
	}
	h.due = now.Add(h.wait)
	log.Error("the NATS server does not deliver requests any more, and is asked again: grant the subscription to the user of "+
		"this connection (docs/operations.md, Permissions in NATS)", "subject", subject, "after", h.wait)
	time.AfterFunc(h.wait, func() {
		if h.err() != nil && !nc.IsDraining() { // else it has come back by itself
			_ = nc.ForceReconnect() // which fails when the connection is closed
		}
	})
}

// again notes that the connection was made anew: what is refused is told behind that.
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
