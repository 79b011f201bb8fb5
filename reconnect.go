package limits

import (
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
)

// maxReconnectDelay has a connection back soon after an outage of any length.
const maxReconnectDelay = 2 * time.Second

// Reconnect makes a connection for a [Client] that lives as long as its process:
//
//	nc, err := nats.Connect(url, limits.Reconnect())
//
// It is made also while no NATS server can be reached, so that a program starts where the limiter is away, as it goes on when the limiter
// goes away later: until then calls fail as they do in an outage. It comes back after any outage, where nats.go would close it for good
// after 60 tries, and when a server refuses its credentials twice, as one that restarts may do. And it tries again after 50 ms and then
// ever more seldom, to 2 s, half of that by chance, so that many do not come at once: nats.go waits for 2 s at first, which makes two
// seconds without decisions of an outage of half a second.
//
// So a mistyped address, or wrong credentials, are no error of nats.Connect, which still gives one for what it cannot read. They show in
// the errors of calls, which name the servers that were tried. Whoever wants to see it in the log at the start asks nc.IsConnected. What
// is to differ goes behind it, such as nats.RetryOnFailedConnect(false) for a program that is worth nothing without a server.
func Reconnect() nats.Option {
	return func(o *nats.Options) error {
		o.RetryOnFailedConnect, o.AllowReconnect, o.MaxReconnect, o.IgnoreAuthErrorAbort = true, true, -1, true
		o.CustomReconnectDelayCB = reconnectDelay
		return nil
	}
}

// reconnectDelay is how long to wait after all servers were tried so many times.
func reconnectDelay(attempts int) time.Duration {
	d := maxReconnectDelay
	if attempts < 6 {
		d = 50 * time.Millisecond << max(attempts-1, 0)
	}
	return d/2 + rand.N(d/2)
}
