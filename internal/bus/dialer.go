package bus

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/natsconn"
	"github.com/seed503877ad/limits/internal/quickconn"
)

// dialer makes the connections to NATS. It looks up the names of servers itself: the addresses of one share a timeout, as they do in
// nats.go without a dialer, which with one gives each of them all of it.
type dialer struct {
	// failed is why the last dial failed: of a server that refuses connections nats.go says only that there is none.
	failed atomic.Pointer[error]
	// hearing is that of the connection, which nothing else can be kept with.
	hearing hearing
	// handlers take requests where they are read.
	handlers natsconn.Handlers
}

// dialerOf gives that of a connection of [Connect]; nil for another.
func dialerOf(nc *nats.Conn) *dialer {
	d, _ := nc.Opts.CustomDialer.(*dialer)
	return d
}

// Dial implements [nats.CustomDialer].
func (d *dialer) Dial(network, address string) (conn net.Conn, err error) {
	all := addresses(address)
	end := time.Now().Add(dialTimeout)
	for i, a := range all {
		conn, err = net.DialTimeout(network, a, max(time.Until(end)/time.Duration(len(all)-i), time.Millisecond))
		if err == nil {
			return natsconn.New(quickconn.Wrap(conn), &d.handlers, flushTimeout), nil
		}
	}
	d.failed.Store(&err)
	return nil, err
}

// why puts the last dial's failure to an error of nats.go that tells none.
func (d *dialer) why(err error) error {
	if last := d.failed.Load(); last != nil && errors.Is(err, nats.ErrNoServers) {
		return fmt.Errorf("%w: %w", err, *last)
	}
	return err
}

// addresses gives those of a server, in an order by chance, so that connections spread over them. One that cannot be looked up is
// its own: to dial it tells why.
func addresses(address string) []string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return []string{address}
	}
	found, err := net.LookupHost(host)
	if err != nil || len(found) == 0 {
		return []string{address}
	}
	all := make([]string, len(found))
	for i, n := range rand.Perm(len(found)) {
		all[i] = net.JoinHostPort(found[n], port)
	}
	return all
}
