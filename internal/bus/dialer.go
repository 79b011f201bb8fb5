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

// dialer makes the connections to NATS. It looks up the names of servers itself, so that the
// look-up and all addresses of a server share one timeout. nats.go has no bound for a look-up, and
// gives a dialer each address with the whole timeout.
type dialer struct {
	// dialErr is why the last dial failed. Of a server that refuses connections nats.go only says
	// that there is none.
	dialErr atomic.Pointer[error]
	// guard is the connection's. It is kept here because a [nats.Conn] has no other place for it.
	guard subscriptionGuard
	// handlers take requests where they are read. maxPayload is how much the server takes of an
	// answer on the last connection, 0 while that is not known. nats.go knows it too, but tells it
	// under a lock that it holds while it writes.
	handlers   natsconn.Handlers
	maxPayload atomic.Pointer[atomic.Int64]

	// creds is the option for the credentials file; nil without one. client is the connection to
	// which it is applied again, nil until that was made.
	creds  nats.Option
	client atomic.Pointer[nats.Conn]

	// last is the connection that was made last; nil while another one is being made.
	last atomic.Pointer[natsconn.Conn]

	// tlsOptions has the options for TLS, and listedHosts the hosts of the configured URLs. address
	// and host are those of the last connection. lastNamedHost is the last host to which TLS was made
	// that is a name and not an IP address. nats.go makes one connection after another, so these need
	// no lock.
	tlsOptions                   nats.Options
	listedHosts                  []string
	address, host, lastNamedHost string
	// websocket says that the URLs are of websockets, secure that TLS is wanted, and tlsFirst has the
	// addresses where TLS is made before the server has spoken.
	websocket, secure bool
	tlsFirst          map[string]bool
}

// dialerOf returns the dialer of a connection that [Connect] made; nil for any other.
func dialerOf(nc *nats.Conn) *dialer {
	d, _ := nc.Opts.CustomDialer.(*dialer)
	return d
}

// connected is [nats.Conn.IsConnected] for callers that cannot wait. nats.go holds its lock while
// it dials and until the server has said something, which may be never: 2 s at a time, again and
// again.
func connected(nc *nats.Conn) bool {
	d := dialerOf(nc)
	return (d == nil || d.upConn() != nil) && nc.IsConnected()
}

// upConn returns the connection if it is up; nil while there is none.
func (d *dialer) upConn() *natsconn.Conn {
	if last := d.last.Load(); last != nil && last.Up() {
		return last
	}
	return nil
}

// publishNoWait publishes a small message without waiting, for callers that hold the store's turn
// to write. nats.go holds its lock while it writes, too, and the server may not be reading. Over a
// websocket, on which only nats.go can write, it may wait for that.
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

// smallAnswer is a size that every server accepts on which a limiter works at all.
const smallAnswer = 512

// fits reports whether the server is known to take so many bytes.
func (d *dialer) fits(size int) bool {
	return size <= smallAnswer || int64(size) <= d.maxPayload.Load().Load()
}

// Dial implements [nats.CustomDialer].
func (d *dialer) Dial(network, address string) (conn net.Conn, err error) {
	d.noteSilence()
	d.last.Store(nil)
	if nc := d.client.Load(); nc != nil && d.creds != nil {
		// The file may have another nkey now, which nats.go would not look for. It holds the lock of
		// its connection here. An error comes again when it signs.
		_ = d.creds(&nc.Opts)
	}
	end := time.Now().Add(dialTimeout)
	all := resolve(address, end)
	for i, a := range all {
		conn, err = net.DialTimeout(network, a, max(time.Until(end)/time.Duration(len(all)-i), time.Millisecond))
		if err == nil {
			d.maxPayload.Store(new(atomic.Int64))
			c := natsconn.New(quickconn.Wrap(conn), &d.handlers, writeTimeout)
			d.last.Store(c)
			d.address = address
			d.host, _, _ = net.SplitHostPort(address)
			return c, d.beginTLS(c)
		}
	}
	d.dialErr.Store(&err)
	return nil, err
}

// noteSilence notes that the last server to which a connection was made said nothing. If TLS is
// wanted, it may be one that begins with TLS (handshake_first), and the next connection to it does.
// Nothing is less safe for that: what a server says in plain text is only that it wants TLS.
func (d *dialer) noteSilence() {
	if d.silent() && d.secure {
		if d.tlsFirst == nil {
			d.tlsFirst = map[string]bool{}
		}
		d.tlsFirst[d.address] = true
	}
}

// silent reports whether the last connection was made, and the server said nothing, though in the
// NATS protocol it speaks first.
func (d *dialer) silent() bool {
	last := d.last.Load()
	return last != nil && !last.ServerSpoke() && !d.websocket
}

// beginTLS makes TLS on a new connection, if it is one that begins with that. If the server does not
// speak TLS, the next connection does not begin with it.
func (d *dialer) beginTLS(c *natsconn.Conn) error {
	if !d.tlsFirst[d.address] {
		return nil
	}
	config, err := d.tlsConfig()
	if err == nil {
		err = c.StartTLS(config)
	}
	if err == nil {
		d.noteTLSHost()
		return nil
	}
	_ = c.Close()
	d.last.Store(nil)
	if _, spoke := errors.AsType[*tls.CertificateVerificationError](err); !spoke {
		delete(d.tlsFirst, d.address)
	}
	return fmt.Errorf("%w: %w", nats.ErrTLS, err)
}

// learnMaxPayload finds out how much the server takes of an answer. A user or an account may have a
// lower limit than the server, which the server tells only after it has answered the client's first
// PING, hence the round trip. If the connection is made anew meanwhile, nats.go may know only the
// server's own limit by then. That is stored for the old connection, where nobody looks: on the new
// one, an answer larger than the user's limit would end the connection and be lost.
func (d *dialer) learnMaxPayload(nc *nats.Conn) {
	payload := d.maxPayload.Load()
	if nc.FlushTimeout(confirmTimeout) == nil { // else the connection is made anew once more
		payload.Store(nc.MaxPayload())
	}
}

// SkipTLSHandshake is called by nats.go when it is about to begin TLS. The dialer makes TLS itself,
// so that requests are taken above it. It can do so only after the server has spoken, which
// excludes websockets, or has already done so.
func (d *dialer) SkipTLSHandshake() bool {
	if d.tlsFirst[d.address] {
		return true
	}
	last := d.last.Load()
	if !last.ServerSpoke() {
		return false
	}
	config, err := d.tlsConfig()
	if err == nil {
		err = last.StartTLS(config)
	}
	if err != nil { // nats.go goes on, and gets this error from its next write
		last.Fail(fmt.Errorf("%w: %w", nats.ErrTLS, err))
		return true
	}
	d.noteTLSHost()
	return true
}

// noteTLSHost notes that TLS was made to the host.
func (d *dialer) noteTLSHost() {
	if net.ParseIP(d.host) == nil {
		d.lastNamedHost = d.host
	}
}

// tlsConfig returns what nats.go would use. The files are read each time, since certificates are
// replaced.
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

// serverName is the name that the certificate must have. A server tells of the others in its
// cluster by their addresses. Their certificates have the name under which the cluster was first
// reached.
func (d *dialer) serverName() string {
	if net.ParseIP(d.host) != nil && d.lastNamedHost != "" && !slices.Contains(d.listedHosts, d.host) {
		return d.lastNamedHost
	}
	return d.host
}

// explain adds the reason of the last failed dial to an error of nats.go that has none, and what a
// silent server may want.
func (d *dialer) explain(err error) error {
	if d.silent() && !d.tlsFirst[d.address] {
		if d.secure {
			return fmt.Errorf("%w: the server said nothing; the next attempt begins with TLS", err)
		}
		return fmt.Errorf("%w: the server said nothing; if it wants TLS first (handshake_first), write tls:// in its URL", err)
	}
	if last := d.dialErr.Load(); last != nil && errors.Is(err, nats.ErrNoServers) {
		return fmt.Errorf("%w: %w", err, *last)
	}
	return err
}

// resolve returns the addresses of a server in random order, so that connections spread over them.
// If the look-up fails it returns the address as it is: dialing that tells why. It gives up at end.
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

// urlHosts returns the hosts of URLs in the forms that nats.go accepts, which need no scheme.
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
