package limits

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/nats-io/nats.go"
)

// maxReconnectDelay is short, so that a connection is back soon after an outage of any length.
const maxReconnectDelay = 2 * time.Second

// Reconnect is the nats.Option for the connection of a [Client]. It keeps the connection alive for the lifetime of the
// process:
//
//	nc, err := nats.Connect(url, limits.Reconnect())
//
// It changes four defaults of nats.go:
//
//   - nats.Connect succeeds even if no NATS server can be reached. So a program can start without the limiter, just as it
//     goes on if the limiter goes away later. Until the connection is made, calls fail as they do during an outage.
//   - The connection comes back after any outage. By default it is closed for good after 60 attempts, and when a
//     server refuses its credentials twice, which a server may do while it restarts.
//   - The first attempt to reconnect comes after 50 ms, and later ones less and less often, down to one every 2 s. Each
//     delay is shortened at random by up to half, so that many clients do not come back at once. By default the first
//     delay is 2 s, which turns an outage of half a second into two seconds without decisions.
//   - A server that hangs, or whose network is cut, is left within 20 s for another one. By default that takes up to 6
//     minutes, since the server is asked for a sign of life only every 2.
//
// So a mistyped address or wrong credentials are no error of nats.Connect, which still fails if it cannot parse an
// address or an option. They appear in the errors of calls, which name the servers and the reason why the last attempt
// failed. To log the problem at startup, ask nc.IsConnected.
//
// To change one of the settings, give another option after Reconnect, such as nats.RetryOnFailedConnect(false) for a
// program that is of no use without a server, nats.PingInterval and nats.MaxPingsOutstanding for other pings, or
// nats.CustomReconnectDelay for other delays (nats.ReconnectWait and nats.ReconnectJitter have no effect). A
// nats.ReconnectErrHandler has to come before Reconnect. If it comes after, errors contain what a server said, but not
// why no server could be reached.
func Reconnect() nats.Option {
	return func(o *nats.Options) error {
		o.RetryOnFailedConnect, o.AllowReconnect, o.MaxReconnect, o.IgnoreAuthErrorAbort = true, true, -1, true
		o.CustomReconnectDelayCB = reconnectDelay
		o.PingInterval, o.MaxPingsOut = 10*time.Second, 1
		next := o.ReconnectErrCB
		o.ReconnectErrCB = func(nc *nats.Conn, err error) {
			recordDialError(nc, err)
			if next != nil {
				next(nc, err)
			}
		}
		return nil
	}
}

// dialErrors has the last error of each connection that reached no server. nats.go passes it to the handler and does
// not keep it. The map is never freed, so its keys are weak pointers to the connections.
var dialErrors sync.Map

func recordDialError(nc *nats.Conn, err error) {
	key := any(weak.Make(nc))
	if _, known := dialErrors.Swap(key, err); !known {
		runtime.AddCleanup(nc, dialErrors.Delete, key)
	}
}

// serverNames lists the servers that a connection was configured with, without their credentials. nc.Servers also
// knows those that were discovered, but it takes the connection's lock, which nats.go holds while it waits for a
// server.
func serverNames(nc *nats.Conn) string {
	var all []string
	for _, one := range append([]string{nc.Opts.Url}, nc.Opts.Servers...) {
		if !strings.Contains(one, "://") {
			one = "nats://" + one
		}
		if u, err := url.Parse(one); err == nil && u.Host != "" { // nats.go has parsed it, too
			all = append(all, u.Scheme+"://"+u.Host)
		}
	}
	if len(all) == 0 {
		return nats.DefaultURL
	}
	return strings.Join(all, ",")
}

// fromServers names the servers in an error if the connection to them is down, and why if that is known.
func fromServers(nc *nats.Conn) string {
	if nc.IsConnected() {
		return ""
	}
	if reason := connectError(nc); reason != nil {
		return fmt.Sprintf(" from %s (%v)", serverNames(nc), reason)
	}
	return " from " + serverNames(nc)
}

// connectError returns why a connection has no server: the last message of a server, or why none could be reached; nil if
// it is not known. If the connection was made without a server, nothing else tells the user that an address is mistyped.
func connectError(nc *nats.Conn) error {
	if last := nc.LastError(); last != nil {
		return last
	}
	if err, ok := dialErrors.Load(weak.Make(nc)); ok {
		return fmt.Errorf("%v", err) // not wrapped, because a dial timeout is a context.DeadlineExceeded
	}
	return nil
}

// reconnectDelay is the pause after so many attempts at all servers.
func reconnectDelay(attempts int) time.Duration {
	d := maxReconnectDelay
	if attempts < 6 {
		d = 50 * time.Millisecond << max(attempts-1, 0)
	}
	return d/2 + rand.N(d/2)
}
