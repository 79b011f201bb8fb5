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
func (g *subscriptionGuard) watch(subjects []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.subjects = subjects
}

// noteViolation takes a violation of permissions. It ignores those that are not about a watched
// subscription.
func (g *subscriptionGuard) noteViolation(nc *nats.Conn, err error, log *slog.Logger) {
	_, rest, _ := strings.Cut(err.Error(), `Subscription to "`)
	subject, _, _ := strings.Cut(rest, `"`)
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if !slices.Contains(g.subjects, subject) {
		return
	}
	if g.refused = subject; now.Before(g.due) {
		return
	}
	if g.wait == 0 || !g.due.IsZero() && now.Sub(g.due) > 2*maxResubscribeAfter { // it had been granted again
		g.wait = resubscribeAfter
	} else {
		g.wait = min(2*g.wait, maxResubscribeAfter)
	}
	g.due = now.Add(g.wait)
	log.Error("the NATS server no longer allows the subscription to requests, will reconnect to try again: grant it to the user of "+
		"this connection (docs/operations.md, Permissions in NATS)", "subject", subject, "after", g.wait)
	time.AfterFunc(g.wait, func() {
		if g.err() != nil && !nc.IsDraining() { // else the connection was made anew meanwhile
			_ = nc.ForceReconnect() // it fails when the connection is closed
		}
	})
}

// reconnected notes that the connection was made anew. The server repeats its refusals after that.
func (g *subscriptionGuard) reconnected() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refused = ""
}

func (g *subscriptionGuard) err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refused == "" {
		return nil
	}
	return fmt.Errorf("the NATS server refuses the subscription to %s", g.refused)
}
