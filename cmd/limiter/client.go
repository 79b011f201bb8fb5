package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/natscreds"
	"github.com/seed503877ad/limits/internal/redact"
	"github.com/seed503877ad/limits/internal/settings"
)

// natsFlags say how a client reaches a NATS server.
type natsFlags struct {
	settings.NATS `set:"unset=nats://127.0.0.1:4222"`
}

const connectTimeout = 5 * time.Second

// connect connects as a client; verb names the connection on the server. It returns when the session ends, even while the
// server does not answer.
func (f *natsFlags) connect(s *session, verb string, more ...nats.Option) (*nats.Conn, error) {
	to := cmp.Or(f.NATSURL, nats.DefaultURL)
	options := []nats.Option{
		nats.Name("limiter " + verb), nats.Timeout(connectTimeout), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(10 * time.Second), nats.MaxPingsOutstanding(1), // a server that hangs is left for another, as by limits.Reconnect
		// The default handler would write to standard error. Later errors show in the answers, and watch has its own handler.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}
	if f.NATSCreds != "" {
		options = append(options, natscreds.Option(f.NATSCreds))
	}
	if f.NATSTLSCA != "" {
		options = append(options, nats.RootCAs(f.NATSTLSCA))
	}
	if f.NATSTLSCert != "" {
		options = append(options, nats.ClientCert(f.NATSTLSCert, f.NATSTLSKey))
	}
	if f.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(f.InboxPrefix))
	}
	options = append(options, more...)
	secure := f.NATSTLSCA != "" || f.NATSTLSCert != "" || strings.Contains(to, "tls://")
	var nc *nats.Conn
	var err error
	connected := make(chan struct{})
	go func() {
		defer close(connected)
		if nc, err = nats.Connect(to, options...); secure && serverSilent(err) {
			nc, err = nats.Connect(to, append(options, nats.TLSHandshakeFirst())...)
		}
	}()
	select {
	case <-connected:
	case <-s.ctx.Done(): // the process ends, and with it the goroutine
		return nil, fmt.Errorf("interrupted while connecting to %s", redact.Servers(to))
	}
	if err != nil {
		hint := "is a limiter running? start one with: limiter"
		switch {
		case !secure && serverSilent(err):
			hint = "the server did not answer; if it wants TLS first (handshake_first), write tls:// in NATS_URL (--nats-url)"
		case !errors.Is(err, nats.ErrNoServers):
			hint = "check NATS_URL (--nats-url) and the other --nats-* settings"
		}
		return nil, fmt.Errorf("connect to %s: %s; %s", redact.Servers(to), redact.Error(err), hint)
	}
	return nc, nil
}

// serverSilent reports whether err is that of a connection on which the server said nothing. One that wants TLS first waits
// for it, until it gives up.
func serverSilent(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded)
}

// untilRefused returns a context that ends, with the error as its cause, when the server refuses the user something. The
// connection needs the option. Otherwise the server says so, and whoever waits learns only that nothing came.
func untilRefused(ctx context.Context) (context.Context, context.CancelCauseFunc, nats.Option) {
	ctx, refuse := context.WithCancelCause(ctx)
	return ctx, refuse, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			refuse(err)
		}
	})
}

// clientFlags are the flags of every verb that sends requests. A verb whose request may take long embeds them with
// set:"timeout=6s": the worker gives up after 5 s, and its answer says so.
type clientFlags struct {
	natsFlags
	Timeout time.Duration `default:"${timeout=2s}" placeholder:"DURATION" help:"How long to wait for an answer (${default})."`
	JSON    bool          `help:"Print JSON."`
}

// connect waits no longer for a server than for an answer.
func (f *clientFlags) connect(s *session, verb string, more ...nats.Option) (*nats.Conn, error) {
	return f.natsFlags.connect(s, verb, append(more, nats.Timeout(min(f.Timeout, connectTimeout)))...)
}

// AfterApply refuses arguments that are not valid UTF-8. JSON would replace the invalid bytes, and two arguments could
// become the same key.
func (*clientFlags) AfterApply(k *kong.Context) error {
	for _, arg := range k.Args {
		if !utf8.ValidString(arg) {
			return fmt.Errorf("%q is not valid UTF-8", arg)
		}
	}
	return nil
}

func (f *clientFlags) Validate() error {
	if f.Timeout <= 0 {
		return fmt.Errorf("--timeout: %v is not above 0; want one such as 2s", f.Timeout)
	}
	return f.natsFlags.Validate()
}

// validateMax checks --max and the client flags.
func (f *clientFlags) validateMax(max, limit int) error {
	if max < 1 || max > limit {
		return fmt.Errorf("--max: %d is not between 1 and %d", max, limit)
	}
	return f.Validate()
}

// oneOf checks that exactly one of the flags was given. names lists them for the error.
func oneOf(names string, given ...bool) error {
	n := 0
	for _, g := range given {
		if g {
			n++
		}
	}
	switch n {
	case 0:
		return fmt.Errorf("one of %s is required", names)
	case 1:
		return nil
	}
	return fmt.Errorf("only one of %s is allowed; leave out the others", names)
}

// ask connects, sends one request and decodes the answer into reply. With --json it prints the answer.
func (f *clientFlags) ask(s *session, subject string, request, reply any) error {
	nc, err := f.connect(s, subject)
	if err != nil {
		return err
	}
	defer nc.Close()
	return f.askOver(s, nc, subject, request, reply)
}

// askOver sends one request over nc and decodes the answer into reply. With --json it prints the answer, errors included.
func (f *clientFlags) askOver(s *session, nc *nats.Conn, subject string, request, reply any) error {
	raw, err := f.send(s, nc, subject, request, reply)
	if f.JSON && len(raw) > 0 {
		s.out.line(raw)
	}
	return err
}

// send sends one request over nc, decodes the answer into reply, and returns the answer.
func (f *clientFlags) send(s *session, nc *nats.Conn, subject string, request, reply any) ([]byte, error) {
	body, err := requestBody(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(s.ctx, f.Timeout)
	defer cancel()
	raw, err := limits.NewClient(nc).Do(ctx, subject, body)
	if err != nil {
		return raw, f.unanswered(s, subject, request, err)
	}
	if err := json.Unmarshal(raw, reply); err != nil {
		return raw, fmt.Errorf("%s: read answer: %w", subject, err)
	}
	return raw, nil
}

// requestBody encodes a request; bytes are sent as they are.
func requestBody(request any) ([]byte, error) {
	if raw, ok := request.([]byte); ok {
		return raw, nil
	}
	return json.Marshal(request)
}
