package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/redact"
	"github.com/seed503877ad/limits/internal/settings"
)

// natsFlags say how a client reaches a NATS server.
type natsFlags struct {
	settings.NATS `set:"unset=nats://127.0.0.1:4222"`
}

const connectTimeout = 5 * time.Second

// connect connects as a client; verb names the connection on the server. It ends with the session, whatever a server that says
// nothing has it wait for.
func (f *natsFlags) connect(s *session, verb string, more ...nats.Option) (*nats.Conn, error) {
	to := cmp.Or(f.NATSURL, nats.DefaultURL)
	options := []nats.Option{
		nats.Name("limiter " + verb), nats.Timeout(connectTimeout), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		// What goes wrong later shows in the answers, and watch looks itself; the default handler would write to standard error.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}
	if f.NATSCreds != "" {
		options = append(options, nats.UserCredentials(f.NATSCreds))
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
	var nc *nats.Conn
	var err error
	connected := make(chan struct{})
	go func() {
		defer close(connected)
		nc, err = nats.Connect(to, append(options, more...)...)
	}()
	select {
	case <-connected:
	case <-s.ctx.Done(): // the process is about to end, and the connection with it
		return nil, fmt.Errorf("interrupted: not connected to %s", redact.Servers(to))
	}
	if err != nil {
		way := "is a limiter running? start one with: limiter"
		if !errors.Is(err, nats.ErrNoServers) {
			way = "look at NATS_URL (--nats-url) and the other --nats-* settings"
		}
		return nil, fmt.Errorf("connect to %s: %s; %s", redact.Servers(to), redact.Error(err), way)
	}
	return nc, nil
}

// clientFlags are the flags of every verb that asks the service. A verb that may give a worker much to do embeds them with
// set:"timeout=6s": the worker gives up after 5 s, and says so.
type clientFlags struct {
	natsFlags
	Timeout time.Duration `default:"${timeout=2s}" placeholder:"DURATION" help:"How long to wait for an answer (${default})."`
	JSON    bool          `help:"Print JSON."`
}

// connect waits for a server no longer than for an answer.
func (f *clientFlags) connect(s *session, verb string, more ...nats.Option) (*nats.Conn, error) {
	return f.natsFlags.connect(s, verb, append(more, nats.Timeout(min(f.Timeout, connectTimeout)))...)
}

// AfterApply refuses arguments in which JSON would have other characters: two of them could become the same key.
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

// validateMax holds --max, and the flags of a client.
func (f *clientFlags) validateMax(max, most int) error {
	if max < 1 || max > most {
		return fmt.Errorf("--max: %d is not between 1 and %d", max, most)
	}
	return f.Validate()
}

// ask connects, sends one request and reads the reply into it.
func (f *clientFlags) ask(s *session, subject string, request, reply any) error {
	nc, err := f.connect(s, subject)
	if err != nil {
		return err
	}
	defer nc.Close()
	return f.askOver(s, nc, subject, request, reply)
}

// askOver sends one request and reads the reply into it; with --json it prints the answer, be it an error or not.
func (f *clientFlags) askOver(s *session, nc *nats.Conn, subject string, request, reply any) error {
	raw, err := f.send(s, nc, subject, request, reply)
	if f.JSON && len(raw) > 0 {
		s.out.line(raw)
	}
	return err
}

// send is askOver that prints nothing and gives the answer.
func (f *clientFlags) send(s *session, nc *nats.Conn, subject string, request, reply any) ([]byte, error) {
	body, err := requestBody(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(s.ctx, f.Timeout)
	defer cancel()
	raw, err := limits.NewClient(nc).Do(ctx, subject, body)
	if err != nil {
		return raw, err
	}
	if err := json.Unmarshal(raw, reply); err != nil {
		return raw, fmt.Errorf("%s: read answer: %w", subject, err)
	}
	return raw, vouch(subject, raw)
}

// signs are fields that answers have which a script acts upon.
var signs = map[string]string{
	limits.SubjectConsume: "allowed", limits.SubjectCheck: "allowed", limits.SubjectRecord: "allowed", limits.SubjectRefund: "allowed",
	limits.SubjectSettle: "allowed", limits.SubjectVerify: "valid", limits.SubjectReset: "reset",
	limits.SubjectKeysRevoke: "key", limits.SubjectKeysExpire: "key", limits.SubjectKeysCreate: "key",
}

// vouch holds that an answer is a limiter's: one of something else that listens there, such as {}, would read as a denial, or as done.
func vouch(subject string, raw []byte) error {
	field, known := signs[subject]
	var answer map[string]json.RawMessage
	if !known || json.Unmarshal(raw, &answer) == nil && answer[field] != nil {
		return nil
	}
	return fmt.Errorf("%s: read answer: it lacks %q, so it is not that of a limiter", subject, field)
}

// requestBody writes a request; bytes are sent as they are.
func requestBody(request any) ([]byte, error) {
	if raw, ok := request.([]byte); ok {
		return raw, nil
	}
	return json.Marshal(request)
}
