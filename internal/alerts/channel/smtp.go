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

// maxSMTPAnswers bounds what is read of a mail server in one conversation, certificates included: a line without an end
// would otherwise be read for ever.
const maxSMTPAnswers = 256 << 10

// quitTimeout bounds the farewell to a server that has taken the mail.
const quitTimeout = time.Second

// maxMailText is how many letters of a text are mailed.
const maxMailText = 20_000

// mailer sends each message in a conversation of its own.
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
		return nil, fmt.Errorf("addr: %q is not host:port, such as mail.example.com:587", spec.Addr)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return nil, fmt.Errorf("addr: port %q is not one of 1 to 65535", port)
	}
	s.host = host
	switch {
	case spec.TLS != "starttls" && spec.TLS != "tls" && spec.TLS != "none":
		return nil, fmt.Errorf("tls: %q is none of starttls, tls and none", spec.TLS)
	case spec.TLS == "none" && spec.Username != "":
		return nil, errors.New("tls: none would send the password in the clear; use starttls or tls, or leave out username")
	}
	return s, s.addresses()
}

func (s *mailer) addresses() (err error) {
	if s.from, err = mail.ParseAddress(s.spec.From); err != nil {
		return fmt.Errorf("from: %q is not a mail address", s.spec.From)
	}
	if len(s.spec.To) == 0 {
		return errors.New("to: there is no address")
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

// errSilent is of a server that waits for TLS, or for nothing at all.
var errSilent = errors.New("the server says nothing; one that begins with TLS, as on port 465, wants tls: tls")

// Send mails a message. A server that does not let us in is asked again later, whatever it says, since a password or a block
// list can be put right; one that refuses the message for good has refused it.
func (s *mailer) Send(ctx context.Context, m *alerts.Message) error {
	inside, err := s.converse(ctx, m)
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("mail over %s: %w", s.spec.Addr, clean(err))
	answer, answered := errors.AsType[*textproto.Error](err)
	switch {
	case inside && answered && forGood(answer):
		return &alerts.Refusal{Err: wrapped, Final: true}
	case errors.Is(err, errSilent):
		return fmt.Errorf("mail over %s: %w, and %w", s.spec.Addr, context.Cause(ctx), errSilent)
	case !answered && ctx.Err() != nil:
		return fmt.Errorf("mail over %s: %w", s.spec.Addr, context.Cause(ctx))
	}
	return wrapped
}

// converse has one conversation with the server; inside says that it let us in.
func (s *mailer) converse(ctx context.Context, m *alerts.Message) (inside bool, err error) {
	ctx, hangUp := context.WithCancel(ctx)
	defer hangUp()
	client, err := s.dial(ctx)
	if err != nil {
		return false, err
	}
	defer client.Close()
	if err := s.login(client); err != nil {
		return false, fmt.Errorf("log in: %w", codeOnly(err))
	}
	if err := s.send(client, m); err != nil {
		return true, err
	}
	defer time.AfterFunc(quitTimeout, hangUp).Stop()
	_ = client.Quit() // the server has the mail, whatever it says to that
	return true, nil
}

// dial greets the server, over TLS unless that is "none". The connection ends with ctx.
func (s *mailer) dial(ctx context.Context) (*smtp.Client, error) {
	config := s.maker.tls.Clone()
	config.ServerName = s.host
	policy := gomail.NoTLS
	if s.spec.TLS == "starttls" {
		policy = gomail.TLSMandatory
	}
	var limited *limitedConn
	// The library's own host:port has no brackets around an address of IPv6.
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
		err = fmt.Errorf("%w; a server that begins without TLS wants tls: starttls", err)
	}
	if err != nil && ctx.Err() != nil && s.spec.TLS != "tls" && limited != nil && limited.left == maxSMTPAnswers {
		err = fmt.Errorf("%w: %w", errSilent, err)
	}
	return greeted, err
}

// login uses PLAIN or LOGIN, which TLS guards. With the others a server could name a number of rounds that keeps us busy.
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

// send hands a mail over. An address that is refused does not keep it from the others, nor do they get it again for its sake:
// a mailbox that is full today may be full for weeks. When none is taken it is tried again, unless all are refused for good.
func (s *mailer) send(c *smtp.Client, m *alerts.Message) error {
	if err := c.Mail("<" + s.from.Address + ">"); err != nil {
		return fmt.Errorf("sender %s: %w", s.from.Address, err)
	}
	taken, refused := 0, error(nil)
	for _, to := range s.to {
		err := c.Rcpt("<" + to.Address + ">")
		if err == nil {
			taken++
			continue
		}
		err = fmt.Errorf("recipient %s: %w", to.Address, err)
		answer, answered := errors.AsType[*textproto.Error](err)
		if !answered || answer.Code < 400 {
			return err
		}
		s.log.Warn("a recipient of alerts was refused", "error", clean(err))
		if refused == nil || !forGood(answer) {
			refused = err
		}
	}
	if taken == 0 {
		return refused
	}
	return write(c, s.letter(m))
}

// forGood says that an answer is final: 5xx, but for those of a server that does not let us in, which it may give to any command.
// They say how to be let in (RFC 4954: log in, log in otherwise or over TLS), or that a policy is against it (RFC 3463, 3.8: x.7.x),
// such as a list of blocked addresses or who may relay, which Postfix tells at the recipient.
func forGood(answer *textproto.Error) bool {
	return answer.Code >= 500 && !slices.Contains([]int{530, 534, 535, 538}, answer.Code) && !strings.HasPrefix(answer.Msg, "5.7.")
}

func write(c *smtp.Client, letter *gomail.Msg) error {
	w, err := c.Data()
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if _, err := letter.WriteTo(w); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	return nil
}

// letter writes a mail. Its Message-ID is made of the message's, so that a reader shows a repeat once.
func (s *mailer) letter(m *alerts.Message) *gomail.Msg {
	letter := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	letter.FromMailAddress(s.from)
	letter.ToMailAddress(s.to...)
	letter.Subject(subject(m))
	letter.SetDateWithValue(s.maker.cfg.Now())
	_, domain, _ := strings.Cut(s.from.Address, "@")
	letter.SetMessageIDWithValue(messageID(m.ID) + "@" + domain)
	letter.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: nobody on holiday answers it
	text := fmt.Sprintf("%s\n\n%s\n\n%s · %s · %s\n", m.Title, firstRunes(m.Text, maxMailText), m.Kind,
		time.UnixMilli(m.Time).UTC().Format(time.RFC3339), m.ID)
	letter.SetBodyString(gomail.TypeTextPlain, text)
	return letter
}

// subject is encoded where a reader would not see it as it was: a caller's name that looks like an encoded word (RFC 2047) would
// be decoded into what was removed from it, and of spaces side by side a folded line could be empty. The library encodes only
// what is beyond ASCII.
func subject(m *alerts.Message) string {
	text := firstRunes(oneLine(fmt.Sprintf("[%s] %s", m.Severity, m.Title)), 200)
	if !strings.Contains(text, "=?") && !strings.Contains(text, "  ") {
		return text
	}
	var words []string
	for letters := range slices.Chunk([]rune(text), 11) { // up to 44 bytes: a word has at most 75 characters
		words = append(words, "=?UTF-8?B?"+base64.StdEncoding.EncodeToString([]byte(string(letters)))+"?=")
	}
	return strings.Join(words, " ")
}

// messageID leaves of an id what may stand in a Message-ID (RFC 5322, dot-atom).
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
		return 0, fmt.Errorf("the server says more than %d bytes", maxSMTPAnswers)
	}
	n, err := l.Conn.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

// SetDeadline does nothing, since the try's own context ends the connection, and tells why.
func (l *limitedConn) SetDeadline(time.Time) error { return nil }

func (l *limitedConn) Close() error {
	l.stop()
	return l.Conn.Close()
}

// codeOnly leaves out what a server says behind the number: to a login it could repeat the password.
func codeOnly(err error) error {
	if answer, ok := errors.AsType[*textproto.Error](err); ok {
		return fmt.Errorf("the server answered %d", answer.Code)
	}
	return clean(err)
}

// maxAnswerWords bounds what errors tell of what a server said.
const maxAnswerWords = 200

type cleaned struct{ error }

func clean(err error) error { return cleaned{err} }

// Error bounds a text that a stranger has written.
func (c cleaned) Error() string { return firstRunes(oneLine(c.error.Error()), maxAnswerWords) }
func (c cleaned) Unwrap() error { return c.error }

func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}
