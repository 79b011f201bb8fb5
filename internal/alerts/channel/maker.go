package channel

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

// Config configures a [Maker].
type Config struct {
	// Logger is where channels of kind log write their messages, and other channels their warnings. Required.
	Logger *slog.Logger
	// Allow are private address ranges that may be connected to, such as 127.0.0.0/8. By default only public addresses may.
	Allow []netip.Prefix
	// UserAgent is sent to HTTP targets; default "limits".
	UserAgent string
	// Timeout bounds one attempt, from the lookup of the name to the end of the answer; default 15 s.
	Timeout time.Duration
	// RootCAs are trusted for TLS; default those of the system.
	RootCAs *x509.CertPool
	// Resolver looks names up; default that of the system.
	Resolver *net.Resolver
	// Now is the clock of signatures and mails; default time.Now.
	Now func() time.Time
}

const (
	defaultTimeout = 15 * time.Second
	// dialTimeout bounds the lookup of a name and the connect together. A lookup takes 5 s if the first server of the
	// resolver does not answer. The rest is shared among the addresses, so that a silent one leaves time for another.
	dialTimeout = 10 * time.Second
	// handshakeTimeout bounds the TLS handshake after that.
	handshakeTimeout = 5 * time.Second
)

// Maker makes channels, which share HTTP connections.
type Maker struct {
	cfg       Config
	dialer    *net.Dialer
	tls       *tls.Config
	transport *http.Transport
}

// NewMaker returns a maker. Close closes its idle connections.
func NewMaker(cfg Config) (*Maker, error) {
	if cfg.Logger == nil {
		return nil, errors.New("channels: Logger is missing")
	}
	if cfg.UserAgent == "" {
		cfg.UserAgent = "limits"
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	m := &Maker{cfg: cfg, tls: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.RootCAs}}
	m.dialer = &net.Dialer{Timeout: dialTimeout, Resolver: cfg.Resolver, Control: guard(cfg.Allow).control}
	m.transport = newTransport(m.dialer, m.tls)
	return m, nil
}

// Close closes the connections that no attempt is using.
func (m *Maker) Close() { m.transport.CloseIdleConnections() }

// Make makes a channel. It cannot make one of kind nats.
func (m *Maker) Make(spec *alerts.ChannelSpec) (alerts.Channel, error) {
	made, err := m.make(spec)
	if err != nil {
		return nil, fmt.Errorf("channel %q: %w", spec.Name, err)
	}
	return bounded{made, m.cfg.Timeout}, nil
}

func (m *Maker) make(spec *alerts.ChannelSpec) (alerts.Channel, error) {
	switch {
	case spec.Kind == alerts.ChannelLog:
		return logChannel{m.cfg.Logger, spec.Name}, nil
	case spec.Kind == alerts.ChannelWebhook && spec.Webhook != nil:
		return m.webhook(spec.Webhook)
	case spec.Kind == alerts.ChannelSlack && spec.Slack != nil:
		return m.slack(spec.Slack)
	case spec.Kind == alerts.ChannelSMTP && spec.SMTP != nil:
		return m.smtp(spec.Name, spec.SMTP)
	}
	return nil, fmt.Errorf("kind %q is not supported, or its settings are missing", spec.Kind)
}

// bounded is a channel with a timeout for each attempt.
type bounded struct {
	alerts.Channel
	timeout time.Duration
}

func (b bounded) Send(ctx context.Context, m *alerts.Message) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.timeout, fmt.Errorf("timed out after %s", b.timeout))
	defer cancel()
	return b.Channel.Send(ctx, m)
}

// Fingerprint returns a hash of a channel's target. A channel whose target is gone stays disabled until its fingerprint
// changes. Keys and passwords are not part of it.
func Fingerprint(spec *alerts.ChannelSpec) string {
	parts := []string{spec.Kind}
	switch {
	case spec.Webhook != nil:
		parts = append(parts, spec.Webhook.URL)
	case spec.Slack != nil:
		parts = append(parts, spec.Slack.URL)
	case spec.SMTP != nil:
		parts = append(append(parts, spec.SMTP.Addr, spec.SMTP.From), spec.SMTP.To...)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:12])
}
