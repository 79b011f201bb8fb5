package channel

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/mail"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/seed503877ad/limits/internal/alerts"

	gomail "github.com/wneessen/go-mail"
	"github.com/wneessen/go-mail/smtp"
)

// maxSMTPAnswers bounds how many bytes are read from a mail server in one session, certificates included. Otherwise an
// endless line would be read for ever.
const maxSMTPAnswers = 256 << 10

// quitTimeout bounds the QUIT command after the server has accepted the mail.
const quitTimeout = time.Second

// maxMailText is how many characters of a text are mailed.
const maxMailText = 20_000

// mailer sends each message in an SMTP session of its own.
type mailer struct {
	maker *Maker
	log   *slog.Logger
	spec  alerts.SMTPSpec
	host  string
	from  *mail.Address
	to    []*mail.Address
}

func (m *Maker) smtp(name string, spec *alerts.SMTPSpec) (alerts.Channel, error) {
	s := &mailer{maker: m, log: m.cfg.Logger.With("channel", name), spec: *spec}
	host, port, err := net.SplitHostPort(spec.Addr)
	if err != nil || host == "" {
		return nil, fmt.Errorf("addr: %q is not host:port; want one such as mail.example.com:587", spec.Addr)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return nil, fmt.Errorf("addr: port %q is not a number from 1 to 65535", port)
	}
	s.host = host
	switch {
	case spec.TLS != "starttls" && spec.TLS != "tls" && spec.TLS != "none":
		return nil, fmt.Errorf("tls: invalid value %q; want starttls, tls or none", spec.TLS)
	case spec.TLS == "none" && spec.Username != "":
		return nil, errors.New("tls: none would send the password in the clear; use starttls or tls, or leave out username")
	}
	return s, s.parseAddresses()
}

func (s *mailer) parseAddresses() (err error) {
	if s.from, err = mail.ParseAddress(s.spec.From); err != nil {
		return fmt.Errorf("from: %q is not a mail address", s.spec.From)
	}
	if len(s.spec.To) == 0 {
		return errors.New("to: no address given")
	}
	for _, to := range s.spec.To {
		parsed, err := mail.ParseAddress(to)
		if err != nil {
			return fmt.Errorf("to: %q is not a mail address", to)
		}
		s.to = append(s.to, parsed)
	}
	return nil
}

// errSilent is the error for a server that sends no greeting. It may wait for a TLS handshake.
var errSilent = errors.New("the server sent no greeting; if it expects TLS at once, as on port 465, set tls: tls")

// Send mails a message.
func (s *mailer) Send(ctx context.Context, m *alerts.Message) error {
	final, err := s.session(ctx, m)
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("mail over %s: %w", s.spec.Addr, sanitize(err))
	_, answered := errors.AsType[*textproto.Error](err)
	switch {
	case final:
		return &alerts.Refusal{Err: wrapped, Final: true}
	case errors.Is(err, errSilent):
		return fmt.Errorf("mail over %s: %w, and %w", s.spec.Addr, context.Cause(ctx), errSilent)
	case !answered && ctx.Err() != nil:
		return fmt.Errorf("mail over %s: %w", s.spec.Addr, context.Cause(ctx))
	}
	return wrapped
}

// session runs one SMTP session. final says that a retry cannot help. If the server refuses the session or the login it
// may, whatever the server says, because a password or a block list can be corrected.
func (s *mailer) session(ctx context.Context, m *alerts.Message) (final bool, err error) {
	ctx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	client, err := s.dial(ctx)
	if err != nil {
		return false, err
	}
	defer client.Close()
	if err = s.login(client); err != nil {
		err = fmt.Errorf("log in: %w", codeOnly(err))
	} else {
		final, err = s.send(client, m)
	}
	if _, answered := errors.AsType[*textproto.Error](err); err == nil || answered {
		defer time.AfterFunc(quitTimeout, hangUp).Stop()
		_ = client.Quit() // whatever it answers, the server has the mail, or has refused it
	}
	return final, err
}

// dial connects and exchanges greetings, over TLS unless that is "none". The connection ends with ctx.
func (s *mailer) dial(ctx context.Context) (*smtp.Client, error) {
	config := s.maker.tls.Clone()
	config.ServerName = s.host
	policy := gomail.NoTLS
	if s.spec.TLS == "starttls" {
		policy = gomail.TLSMandatory
	}
	var limited *limitedConn
	// The address from the library lacks the brackets around an IPv6 address.
	connect := func(ctx2 context.Context, network, _ string) (net.Conn, error) {
		conn, err := s.maker.dialer.DialContext(ctx2, network, s.spec.Addr)
		if err != nil {
			return nil, err
		}
		limited = limit(ctx, conn)
		if s.spec.TLS != "tls" {
			return limited, nil
		}
		secured := tls.Client(limited, config)
		return secured, secured.HandshakeContext(ctx2)
	}
	client, err := gomail.NewClient(s.host, gomail.WithTLSConfig(config), gomail.WithTLSPolicy(policy),
		gomail.WithTimeout(s.maker.cfg.Timeout), gomail.WithDialContextFunc(connect), gomail.WithoutSMTPUTF8())
	if err != nil {
		return nil, err
	}
	greeted, err := client.DialToSMTPClientWithContext(ctx)
	if _, plain := errors.AsType[tls.RecordHeaderError](err); plain && s.spec.TLS == "tls" {
		err = fmt.Errorf("%w; if the server starts without TLS, set tls: starttls", err)
	}
	if err != nil && ctx.Err() != nil && s.spec.TLS != "tls" && limited != nil && limited.left == maxSMTPAnswers {
		err = fmt.Errorf("%w: %w", errSilent, err)
	}
	return greeted, err
}

// login uses PLAIN or LOGIN, protected by TLS. With SCRAM a server could choose a number of rounds that keeps us busy.
func (s *mailer) login(c *smtp.Client) error {
	if s.spec.Username == "" {
		return nil
	}
	_, offered := c.Extension("AUTH")
	for mechanism := range strings.FieldsSeq(offered) {
		switch strings.ToUpper(mechanism) {
		case "PLAIN":
			return c.Auth(smtp.PlainAuth("", s.spec.Username, s.spec.Password, s.host, false))
		case "LOGIN":
			return c.Auth(smtp.LoginAuth(s.spec.Username, s.spec.Password, s.host, false))
		}
	}
	return errors.New("the server offers neither PLAIN nor LOGIN")
}

// send sends a mail. If some recipients are refused, the others get it, and it is not retried for the refused ones: a
// mailbox that is full today may be full for weeks, and the others would get it again and again. If all are refused, it is
// retried unless all refusals are permanent.
func (s *mailer) send(c *smtp.Client, m *alerts.Message) (final bool, err error) {
	if err := c.Mail("<" + s.from.Address + ">"); err != nil {
		return ofAddress(err), fmt.Errorf("sender %s: %w", s.from.Address, err)
	}
	accepted, refused := 0, error(nil)
	for _, to := range s.to {
		err := c.Rcpt("<" + to.Address + ">")
		if err == nil {
			accepted++
			continue
		}
		err = fmt.Errorf("recipient %s: %w", to.Address, err)
		answer, answered := errors.AsType[*textproto.Error](err)
		if !answered || answer.Code < 400 {
			return false, err
		}
		s.log.Warn("mail server refused a recipient of alerts", "error", sanitize(err))
		if refused == nil || !ofAddress(err) {
			refused = err
		}
	}
	if accepted == 0 {
		return ofAddress(refused), refused
	}
	err = write(c, s.mail(m))
	return permanent(err), err
}

// permanent reports whether an answer is final: 5xx, except those that can be put right. These are about access, which a
// server may tell of at any command: it asks for a login, another login or TLS (RFC 4954), or names a policy (RFC 3463, 3.8:
// x.7.x) such as a block list or a relay rule. Or they are about the session (500 to 504, and x.5.x), such as the name of
// this host, which Postfix does not refuse until it hears of a recipient.
func permanent(err error) bool {
	answer, answered := errors.AsType[*textproto.Error](err)
	return answered && answer.Code > 504 && !slices.Contains([]int{530, 534, 535, 538}, answer.Code) &&
		!strings.HasPrefix(answer.Msg, "5.7.") && !strings.HasPrefix(answer.Msg, "5.5.")
}

// ofAddress reports whether an answer is final that refuses an address. Without a code of RFC 3463 nobody can tell: Exim
// reports its relay rule as 550 alone, as others do an unknown user.
func ofAddress(err error) bool {
	answer, answered := errors.AsType[*textproto.Error](err)
	return answered && strings.HasPrefix(answer.Msg, "5.") && permanent(err)
}

func write(c *smtp.Client, msg *gomail.Msg) error {
	w, err := c.Data()
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if _, err := msg.WriteTo(w); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	return nil
}

// mail makes the mail of a message. Its Message-ID is made of the message's id, so that mail readers show a repeat once.
func (s *mailer) mail(m *alerts.Message) *gomail.Msg {
	msg := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	msg.FromMailAddress(s.from)
	msg.ToMailAddress(s.to...)
	msg.Subject(subject(m))
	msg.SetDateWithValue(s.maker.cfg.Now())
	_, domain, _ := strings.Cut(s.from.Address, "@")
	msg.SetMessageIDWithValue(messageID(m.ID) + "@" + domain)
	msg.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: suppresses automatic replies
	text := fmt.Sprintf("%s\n\n%s\n\n%s · %s · %s\n", m.Title, firstRunes(m.Text, maxMailText), m.Kind,
		time.UnixMilli(m.Time).UTC().Format(time.RFC3339), m.ID)
	msg.SetBodyString(gomail.TypeTextPlain, text)
	return msg
}

// subject returns the subject of a mail. It encodes texts that a mail reader would show differently, in addition to those
// beyond ASCII, which the library encodes: a user's name that looks like an encoded word (RFC 2047) would be decoded, and
// could show characters that were removed before; adjacent spaces could become an empty folded line.
func subject(m *alerts.Message) string {
	text := firstRunes(oneLine(fmt.Sprintf("[%s] %s", m.Severity, m.Title)), 200)
	if !strings.Contains(text, "=?") && !strings.Contains(text, "  ") {
		return text
	}
	var words []string
	for runes := range slices.Chunk([]rune(text), 11) { // up to 44 bytes: an encoded word has at most 75 characters
		words = append(words, "=?UTF-8?B?"+base64.StdEncoding.EncodeToString([]byte(string(runes)))+"?=")
	}
	return strings.Join(words, " ")
}

// messageID replaces the characters of an id that are not allowed in a Message-ID (RFC 5322, dot-atom).
func messageID(id string) string {
	return strings.Map(func(r rune) rune {
		if r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._-", r)) {
			return r
		}
		return '-'
	}, id)
}

// limit bounds a connection: it ends with ctx, and no more than maxSMTPAnswers is read.
func limit(ctx context.Context, c net.Conn) *limitedConn {
	return &limitedConn{Conn: c, left: maxSMTPAnswers, stop: context.AfterFunc(ctx, func() { c.Close() })}
}

type limitedConn struct {
	net.Conn
	left int
	stop func() bool
}

func (l *limitedConn) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("the server sent more than %d bytes", maxSMTPAnswers)
	}
	n, err := l.Conn.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

// SetDeadline ignores the library's deadlines: the attempt's context ends the connection, and its cause says why.
func (l *limitedConn) SetDeadline(time.Time) error { return nil }

func (l *limitedConn) Close() error {
	l.stop()
	return l.Conn.Close()
}

// codeOnly drops the text after the number of an answer: in an answer to a login, the server could repeat the password.
func codeOnly(err error) error {
	if answer, ok := errors.AsType[*textproto.Error](err); ok {
		return fmt.Errorf("the server answered %d", answer.Code)
	}
	return sanitize(err)
}

// maxErrorText is how many characters of an error are shown, which may quote a server's answer.
const maxErrorText = 200

// sanitized is an error whose text is one printable line of maxErrorText characters at most.
type sanitized struct{ error }

func sanitize(err error) error { return sanitized{err} }

func (s sanitized) Error() string { return firstRunes(oneLine(s.error.Error()), maxErrorText) }
func (s sanitized) Unwrap() error { return s.error }

func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}
