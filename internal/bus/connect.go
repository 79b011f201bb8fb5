package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/natscreds"
	"github.com/seed503877ad/limits/internal/redact"
)

// ConnectConfig configures a connection to NATS.
type ConnectConfig struct {
	// URL is one or more server URLs, separated by commas; required.
	URL string
	// Creds is a credentials file, or a file with only an nkey seed; none when empty.
	Creds string
	// TLSCA is a PEM file of authorities to trust; TLSCert and TLSKey are PEM files of this
	// client's certificate. Each may be empty.
	TLSCA, TLSCert, TLSKey string
	// InboxPrefix is what the reply subjects of this connection begin with; "_INBOX" when empty. If
	// each role has one of its own, permissions can keep a role from receiving the answers for
	// another.
	InboxPrefix string
	// Name is the connection's name in the server's monitoring.
	Name string
	// Logger is required.
	Logger *slog.Logger
}

const (
	// dialTimeout bounds one try at one server, with the look-up of its name and all of its
	// addresses.
	dialTimeout = 2 * time.Second
	// reconnectBuffer holds what is published while the connection is down. It is small on purpose.
	// During a short break answers are worth keeping: the caller may be on another server of the
	// cluster and still wait. But nobody waits for an answer any more after a long break, and the 8
	// MiB that nats.go keeps by default would be sent as one burst. What does not fit fails at once
	// and is counted by the service. Events are kept by the outbox.
	reconnectBuffer = 1 << 20
	// writeTimeout bounds a write to a server that stopped reading, because the engine's loop
	// writes answers. After it the connection is given up and made anew.
	writeTimeout = 2 * time.Second
)

// Connect connects, and tries until ctx is done. The connection then comes back by itself after any
// outage.
func Connect(ctx context.Context, cfg ConnectConfig) (*nats.Conn, error) {
	if cfg.Logger == nil {
		return nil, errors.New("connect to NATS: Logger is missing")
	}
	dial := new(dialer)
	opts, err := cfg.options(dial)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	for attempt := 1; ; attempt++ {
		nc, err := nats.Connect(cfg.URL, opts...)
		if err == nil {
			dial.client.Store(nc)
			return nc, nil
		}
		text := redact.Error(dial.explain(err))
		cfg.Logger.Warn("cannot connect to NATS", "url", redact.Servers(cfg.URL), "attempt", attempt, "error", text)
		if sleep(ctx, reconnectDelay(attempt)) != nil {
			return nil, fmt.Errorf("connect to NATS at %s: %w; the last error was: %s", redact.Servers(cfg.URL), context.Cause(ctx), text)
		}
	}
}

// options returns the options of nats.go. A file that cannot be read is an error at once, instead
// of being tried again.
func (c *ConnectConfig) options(dial *dialer) ([]nats.Option, error) {
	if c.URL == "" {
		return nil, errors.New("the URL is missing")
	}
	opts := c.behaviour(dial)
	if c.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(c.InboxPrefix))
	}
	if c.Creds != "" {
		dial.creds = natscreds.Option(c.Creds)
		if err := dial.creds(new(nats.Options)); err != nil {
			return nil, err
		}
		opts = append(opts, dial.creds)
	}
	var secure []nats.Option
	if c.TLSCA != "" {
		secure = append(secure, nats.RootCAs(c.TLSCA))
	}
	if c.TLSCert != "" {
		secure = append(secure, nats.ClientCert(c.TLSCert, c.TLSKey))
	}
	dial.listedHosts = urlHosts(c.URL)
	dial.websocket = strings.Contains(c.URL, "ws://") || strings.Contains(c.URL, "wss://") // all are, or none
	dial.secure = len(secure) > 0 || strings.Contains(c.URL, "tls://")
	for _, option := range secure {
		if err := option(&dial.tlsOptions); err != nil {
			return nil, err
		}
	}
	return append(opts, secure...), nil
}

func (c *ConnectConfig) behaviour(dial *dialer) []nats.Option {
	log := c.Logger.With("connection", c.Name)
	var dropped logThrottle
	var others logThrottles
	dial.handlers.Dropped = func() { // anyone may send those
		if n := dropped.due(); n > 0 {
			log.Warn("dropped messages with a carriage return in the subject or reply subject, or with a reply subject that is too long", "messages", n)
		}
	}
	dial.handlers.Refused = func(text string) {
		if n := others.due(text); n > 0 {
			log.Error("the NATS server rejected what it was sent; a message over its size limit is lost", "error", text, "times", n)
		}
	}
	return []nats.Option{
		nats.Name(c.Name),
		nats.Timeout(dialTimeout),
		nats.SetCustomDialer(dial), nats.SkipHostLookup(), // the dialer does the look-up
		limits.Reconnect(),
		nats.RetryOnFailedConnect(false), // Connect tries until its context is done, and says why it must
		nats.ReconnectBufSize(reconnectBuffer),
		nats.FlusherTimeout(writeTimeout),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("NATS disconnected", "error", redact.Error(err))
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			go dial.learnMaxPayload(nc)
			dial.guard.reconnected()
			log.Info("NATS reconnected", "url", redact.URLs(nc.ConnectedUrl()))
		}),
		nats.ErrorHandler(dial.errorHandler(log, &others)),
	}
}

// errorHandler logs what goes wrong on a connection. Others can cause most of it, any number of
// times, so the log is throttled.
func (d *dialer) errorHandler(log *slog.Logger, others *logThrottles) nats.ErrHandler {
	var badHeaders, refused logThrottle
	return func(nc *nats.Conn, sub *nats.Subscription, err error) {
		subject := ""
		if sub != nil {
			subject = sub.Subject
		}
		switch {
		case errors.Is(err, nats.ErrBadHeaderMsg): // anyone may send those
			if n := badHeaders.due(); n > 0 {
				log.Warn("NATS error", "subject", subject, "error", err, "messages", n)
			}
		case errors.Is(err, nats.ErrPermissionViolation): // anyone may name a reply subject that this user may not publish to
			d.guard.noteViolation(nc, err, log)
			if n := refused.due(); n > 0 {
				log.Error("NATS error", "subject", subject, "error", redact.Error(err), "messages", n)
			}
		default: // a broken connection has one for each answer that waits, and a flood one for each that finds no room
			text := redact.Error(err)
			if n := others.due(subject + " " + text); n > 0 {
				log.Error("NATS error", "subject", subject, "error", text, "times", n)
			}
		}
	}
}

// reconnectDelay is how long clients of the service, and workers, wait between tries: at most 2 s,
// so that they are back within 5 s of the server.
func reconnectDelay(attempts int) time.Duration {
	var o nats.Options
	_ = limits.Reconnect()(&o) // it never fails
	return o.CustomReconnectDelayCB(attempts)
}

// Healthy returns nil while the connection is up, the server answers on it, and the server delivers
// what a [Service] on it has subscribed to. Otherwise the error says what is wrong. ctx needs a
// deadline.
func Healthy(ctx context.Context, nc *nats.Conn) error {
	if !connected(nc) { // asked first, because nats.go may take long to say that it is closed or made anew
		return errors.New("the connection is down")
	}
	if err := nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("ping the NATS server: %w", err)
	}
	if guard := guardOf(nc); guard != nil {
		return guard.err()
	}
	return nil
}
