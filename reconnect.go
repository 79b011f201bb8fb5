package limits

import (
	"math/rand/v2"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"time"
	"weak"

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
// the errors of calls, which name the servers, and what the last try came to. Whoever wants to see it in the log at the start asks
// nc.IsConnected. What is to differ goes behind it, such as nats.RetryOnFailedConnect(false) for a program that is worth nothing without a
// server, or nats.CustomReconnectDelay for other pauses, which nats.ReconnectWait and nats.ReconnectJitter do not change here. A
// nats.ReconnectErrHandler goes in front of Reconnect: behind it, errors say only what a server said, and not why there was none.
func Reconnect() nats.Option {
	return func(o *nats.Options) error {
		o.RetryOnFailedConnect, o.AllowReconnect, o.MaxReconnect, o.IgnoreAuthErrorAbort = true, true, -1, true
		o.CustomReconnectDelayCB = reconnectDelay
		theirs := o.ReconnectErrCB
		o.ReconnectErrCB = func(nc *nats.Conn, err error) {
			noteUndialed(nc, err)
			if theirs != nil {
				theirs(nc, err)
			}
		}
		return nil
	}
}

// undialed has the errors of connections for which no server was reached, which nats.go tells its handler and forgets. Its keys are weak
// pointers, since it lasts for longer than they do.
var undialed sync.Map

func noteUndialed(nc *nats.Conn, err error) {
	key := any(weak.Make(nc))
	if _, known := undialed.Swap(key, err); !known {
		runtime.AddCleanup(nc, undialed.Delete, key)
	}
}

// servers names those that a connection is to be made with, without their credentials. nc.Servers knows more, and waits for a lock, which
// nats.go holds while it waits for a server.
func servers(nc *nats.Conn) string {
	var all []string
	for _, one := range append([]string{nc.Opts.Url}, nc.Opts.Servers...) {
		if !strings.Contains(one, "://") {
			one = "nats://" + one
		}
		if u, err := url.Parse(one); err == nil && u.Host != "" { // nats.go could read it, too
			all = append(all, u.Scheme+"://"+u.Host)
		}
	}
	if len(all) == 0 {
		return nats.DefaultURL
	}
	return strings.Join(all, ",")
}

// from names the servers for an error, where the connection to them is not up.
func from(nc *nats.Conn) string {
	if nc.IsConnected() {
		return ""
	}
	return " from " + servers(nc)
}

// reconnectDelay is how long to wait after all servers were tried so many times.
func reconnectDelay(attempts int) time.Duration {
	d := maxReconnectDelay
	if attempts < 6 {
		d = 50 * time.Millisecond << max(attempts-1, 0)
	}
	return d/2 + rand.N(d/2)
}
