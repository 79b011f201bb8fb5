package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/natsconn"
	"github.com/seed503877ad/limits/internal/quickconn"
)

// dialer makes the connections to NATS. It looks up the names of servers itself: that and the addresses of one share a timeout. nats.go has
// no bound for a look-up, and with a dialer gives each address all of the timeout.
type dialer struct {
	// failed is why the last dial failed: of a server that refuses connections nats.go says only that there is none.
	dialErr atomic.Pointer[error]
	// hearing is that of the connection, which nothing else can be kept with.
	guard subscriptionGuard
	// handlers take requests where they are read, and payload is how much the server takes of an answer on the last connection, 0 where
	// that is not known yet: nats.go tells it under its lock, which it holds while it writes.
	handlers   natsconn.Handlers
	maxPayload atomic.Pointer[atomic.Int64]

	// last is the connection that was made last; nil while another is being made.
	last atomic.Pointer[natsconn.Conn]

	// secure has the options of TLS, and listed the hosts of the URLs. nats.go makes one connection after another, the last to host; named
	// is the last host with a name to which TLS was made.
	tlsOptions          nats.Options
	listedHosts         []string
	host, lastNamedHost string
}

// dialerOf gives that of a connection of [Connect]; nil for another.
func dialerOf(nc *nats.Conn) *dialer {
	d, _ := nc.Opts.CustomDialer.(*dialer)
	return d
}

// connected is [nats.Conn.IsConnected] for who cannot wait. nats.go has its lock while it dials, and until the server has spoken, which may be
// never: 2 s, again and again.
func connected(nc *nats.Conn) bool {
	d := dialerOf(nc)
	return (d == nil || d.upConn() != nil) && nc.IsConnected()
}

// up gives the connection on which nothing has failed; nil while there is none.
func (d *dialer) upConn() *natsconn.Conn {
	if last := d.last.Load(); last != nil && last.Up() {
		return last
	}
	return nil
}

// tell publishes something small, and waits for nothing: it is for the turn of the store. nats.go has its lock while it writes, too, and a server
// may not read. Over a websocket, in which nobody else can write, that is waited for.
func publishNoWait(nc *nats.Conn, subject string, data []byte) error {
	if d := dialerOf(nc); d != nil {
		if up := d.upConn(); up != nil && d.fits(len(data)) {
			if err := up.PublishNoWait(subject, data); !errors.Is(err, errors.ErrUnsupported) {
				return err
			}
		}
	}
	if !connected(nc) {
		return nats.ErrDisconnected
	}
	return nc.Publish(subject, data)
}

// takes tells whether the server is known to take so many bytes.
func (d *dialer) fits(size int) bool {
	return size <= smallAnswer || int64(size) <= d.maxPayload.Load().Load()
}

// Dial implements [nats.CustomDialer].
func (d *dialer) Dial(network, address string) (conn net.Conn, err error) {
	d.last.Store(nil)
	end := time.Now().Add(dialTimeout)
	all := resolve(address, end)
	for i, a := range all {
		conn, err = net.DialTimeout(network, a, max(time.Until(end)/time.Duration(len(all)-i), time.Millisecond))
		if err == nil {
			d.maxPayload.Store(new(atomic.Int64))
			c := natsconn.New(quickconn.Wrap(conn), &d.handlers, writeTimeout)
			d.last.Store(c)
			d.host, _, _ = net.SplitHostPort(address)
			return c, nil
		}
	}
	d.dialErr.Store(&err)
	return nil, err
}

// limited finds out how much the server takes of an answer, behind a round trip: that a user or an account has a limit of its own is told
// behind the first answer. Where the connection is made anew meanwhile, what nats.go tells then may be the server's own limit, which is noted
// for nobody: an answer that is larger than the user's would end the connection, and be lost.
func (d *dialer) learnMaxPayload(nc *nats.Conn) {
	payload := d.maxPayload.Load()
	if nc.FlushTimeout(confirmTimeout) == nil { // else it is made anew once more
		payload.Store(nc.MaxPayload())
	}
}

// SkipTLSHandshake is what nats.go asks when it is about to begin TLS. It is made here, so that requests are taken above it: when the server has
// spoken, and so is none of websockets.
func (d *dialer) SkipTLSHandshake() bool {
	last := d.last.Load()
	if !last.ServerSpoke() {
		return false
	}
	config, err := d.tlsConfig()
	if err == nil {
		err = last.StartTLS(config)
	}
	if err != nil { // nats.go goes on, and meets it with what it writes next
		last.Fail(fmt.Errorf("%w: %w", nats.ErrTLS, err))
		return true
	}
	d.noteTLSHost()
	return true
}

// secured notes that TLS was made to the host.
func (d *dialer) noteTLSHost() {
	if net.ParseIP(d.host) == nil {
		d.lastNamedHost = d.host
	}
}

// config is as nats.go makes it. The files are read each time, since certificates are replaced.
func (d *dialer) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: d.serverName()}
	if d.tlsOptions.TLSCertCB != nil {
		cert, err := d.tlsOptions.TLSCertCB()
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{cert}
	}
	if d.tlsOptions.RootCAsCB != nil {
		roots, err := d.tlsOptions.RootCAsCB()
		if err != nil {
			return nil, err
		}
		config.RootCAs = roots
	}
	return config, nil
}

// serverName is whom the certificate has to be of. A server tells of others of its cluster by their addresses, whose certificates are of the
// name that was asked for.
func (d *dialer) serverName() string {
	if net.ParseIP(d.host) != nil && d.lastNamedHost != "" && !slices.Contains(d.listedHosts, d.host) {
		return d.lastNamedHost
	}
	return d.host
}

// why puts the last dial's failure to an error of nats.go that tells none.
func (d *dialer) explain(err error) error {
	if last := d.dialErr.Load(); last != nil && errors.Is(err, nats.ErrNoServers) {
		return fmt.Errorf("%w: %w", err, *last)
	}
	return err
}

// addresses gives those of a server, in an order by chance, so that connections spread over them. One that cannot be looked up is
// its own: to dial it tells why. After end nothing is found.
func resolve(address string, end time.Time) []string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return []string{address}
	}
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	found, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil || len(found) == 0 {
		return []string{address}
	}
	all := make([]string, len(found))
	for i, n := range rand.Perm(len(found)) {
		all[i] = net.JoinHostPort(found[n], port)
	}
	return all
}

// hosts gives those of URLs as nats.go takes them, which need no scheme.
func urlHosts(urls string) (all []string) {
	for u := range strings.SplitSeq(urls, ",") {
		if _, rest, ok := strings.Cut(u, "://"); ok {
			u = rest
		}
		u, _, _ = strings.Cut(u[strings.LastIndexByte(u, '@')+1:], "/")
		host, _, err := net.SplitHostPort(strings.TrimSpace(u))
		if err != nil {
			host = strings.Trim(strings.TrimSpace(u), "[]")
		}
		all = append(all, host)
	}
	return all
}
