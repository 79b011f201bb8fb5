package main

import (
	"cmp"
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/httplimit"
)

// Pattern 1: an HTTP handler that answers 429 when its caller is over the limit.
func limited(client *limits.Client, handler http.HandlerFunc) http.Handler {
	return httplimit.Middleware(client, httplimit.Config{
		Limits: func(r *http.Request) []limits.LimitSpec {
			return []limits.LimitSpec{burst("api:" + user(r))}
		},
	})(handler)
}

// Pattern 2: a burst of 20 on top of 100 per minute.
func burst(key string) limits.LimitSpec {
	return limits.LimitSpec{Key: key, Limit: 100, Window: "1m", Algorithm: limits.TokenBucket, Burst: 20}
}

// Pattern 3: outbound calls that wait for their turn. All processes with the same turn together send no more than it
// allows. A call that has to wait sleeps until the time that the limiter gave. A call whose turn would come after the
// timeout fails at once.
func outbound(client *limits.Client, turn limits.Request, timeout time.Duration) *http.Client {
	return &http.Client{Transport: httplimit.Outbound(client, turn, nil), Timeout: timeout}
}

// Pattern 4: each user is sent 10 notifications per hour, and further ones go into a digest.
type notifier struct {
	client *limits.Client
	send   func(user, text string)

	mu     sync.Mutex
	digest map[string][]string // by user; use a table if it has to survive a restart
}

func (n *notifier) notify(ctx context.Context, user, text string) (sent bool, err error) {
	reply, err := n.client.Consume(ctx, limits.Per("notify:user:"+user, 10, "1h"))
	switch {
	case err != nil:
		return false, err
	case reply.Allowed:
		n.send(user, text)
		return true, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.digest[user] = append(n.digest[user], text)
	return false, nil
}

// takeDigest returns and empties the digest of a user.
func (n *notifier) takeDigest(user string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	texts := n.digest[user]
	delete(n.digest, user)
	return texts
}

// user identifies the caller. Here the caller may choose it; replace this by your authentication.
func user(r *http.Request) string { return cmp.Or(r.Header.Get("X-User"), "nobody") }
