package channel

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/http/httptest"
	"net/mail"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed503877ad/limits/internal/alerts"
)

// mailServer speaks enough SMTP (RFC 5321) for these tests. answers overrides its answers by the beginning of a command; "" is
// the greeting.
type mailServer struct {
	net.Listener
	config   *tls.Config
	roots    *x509.CertPool
	starttls bool
	auth     string // what AUTH is offered, on TLS alone
	answers  map[string]string
	noBye    bool // QUIT is not answered

	mu       sync.Mutex
	commands []string
	letters  []string
}

// serveMail starts a mail server; mode is the TLS that it wants.
func serveMail(t *testing.T, mode string, answers map[string]string) *mailServer {
	t.Helper()
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	defer certified.Close()
	s := &mailServer{roots: x509.NewCertPool(), starttls: mode == "starttls", auth: "LOGIN PLAIN SCRAM-SHA-256", answers: answers}
	s.config = &tls.Config{Certificates: certified.TLS.Certificates}
	s.roots.AddCert(certified.Certificate())
	var err error
	if s.Listener, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	go func() {
		for {
			conn, err := s.Accept()
			if err != nil {
				return
			}
			if mode == "tls" {
				conn = tls.Server(conn, s.config)
			}
			go s.converse(conn, mode == "tls")
		}
	}()
	return s
}

func (s *mailServer) note(list *[]string, entry string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*list = append(*list, entry)
}

func (s *mailServer) said(list *[]string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), *list...)
}

func (s *mailServer) answer(command, usual string) string {
	for start, answer := range s.answers {
		if start != "" && strings.HasPrefix(command, start) {
			return answer
		}
	}
	return usual
}

func (s *mailServer) converse(conn net.Conn, secure bool) {
	defer conn.Close()
	text := textproto.NewConn(conn)
	greeting, set := s.answers[""]
	if !set {
		greeting = "220 mail.example"
	}
	_ = text.PrintfLine("%s", greeting)
	for {
		line, err := text.ReadLine()
		if err != nil {
			return
		}
		s.note(&s.commands, line)
		usual := "250 ok"
		switch verb, _, _ := strings.Cut(line, " "); verb {
		case "EHLO":
			usual = "250-mail.example\r\n250-8BITMIME\r\n"
			if secure {
				usual += "250-AUTH " + s.auth + "\r\n"
			} else if s.starttls {
				usual += "250-STARTTLS\r\n"
			}
			usual += "250 HELP"
		case "STARTTLS":
			_ = text.PrintfLine("%s", s.answer(line, "220 go"))
			conn, secure = tls.Server(conn, s.config), true
			text = textproto.NewConn(conn)
			continue
		case "AUTH":
			usual = s.login(text, line)
		case "DATA":
			if usual = s.answer(line, ""); usual == "" {
				_ = text.PrintfLine("354 go on")
				letter, _ := text.ReadDotBytes()
				s.note(&s.letters, string(letter))
				usual = s.answer(".", "250 queued")
			}
			line = "-"
		case "QUIT":
			if s.noBye {
				_, _ = text.ReadLine() // until the client hangs up
			} else {
				_ = text.PrintfLine("221 bye")
			}
			return
		}
		_ = text.PrintfLine("%s", s.answer(line, usual))
	}
}

// login reads user and password of either mechanism.
func (s *mailServer) login(text *textproto.Conn, line string) string {
	decode := func(words string) string {
		plain, _ := base64.StdEncoding.DecodeString(words)
		return string(plain)
	}
	got := ""
	if words, plain := strings.CutPrefix(line, "AUTH PLAIN "); plain {
		got = decode(words)
	} else {
		for _, ask := range []string{"Username:", "Password:"} {
			_ = text.PrintfLine("334 %s", base64.StdEncoding.EncodeToString([]byte(ask)))
			words, _ := text.ReadLine()
			got += "\x00" + decode(words)
		}
	}
	if got == "\x00me\x00"+secret {
		return "235 welcome"
	}
	return "535 wrong " + secret
}

func (s *mailServer) spec(mode string) *alerts.ChannelSpec {
	return &alerts.ChannelSpec{Name: "mail", Kind: alerts.ChannelSMTP, SMTP: &alerts.SMTPSpec{
		Addr: s.Addr().String(), TLS: mode, From: "Limits <limits@sender.example>", To: []string{"ops@one.example", "Öps <ops@two.example>"},
	}}
}

func mailConfig(t *testing.T, s *mailServer) Config {
	cfg := config(t)
	cfg.RootCAs = s.roots
	cfg.Now = func() time.Time { return time.Unix(1_800_000_000, 0).UTC() }
	return cfg
}

func TestMailArrivesWhole(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"none", "starttls", "tls"} {
		s := serveMail(t, mode, nil)
		c := made(t, mailConfig(t, s), s.spec(mode))
		m := message()
		m.Title = "Grüße\r\nBcc: evil@three.example"
		m.Text = ".a line that begins with a dot\n\nümlaut" + strings.Repeat("x", maxMailText)
		if err := c.Send(t.Context(), m); err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		letter, err := mail.ReadMessage(strings.NewReader(s.said(&s.letters)[0]))
		if err != nil {
			t.Fatal(err)
		}
		subject, _ := new(mime.WordDecoder).DecodeHeader(letter.Header.Get("Subject"))
		if want := "[critical] Grüße  Bcc: evil@three.example"; subject != want || letter.Header.Get("Bcc") != "" {
			t.Errorf("%s: subject %q, want %q; header %v", mode, subject, want, letter.Header)
		}
		if id := letter.Header.Get("Message-ID"); id != "<a1b2.raised@sender.example>" {
			t.Errorf("%s: Message-ID %s", mode, id)
		}
		if date, err := letter.Header.Date(); err != nil || date.Unix() != 1_800_000_000 {
			t.Errorf("%s: Date %v, %v", mode, date, err)
		}
		if from := letter.Header.Get("From"); from != `"Limits" <limits@sender.example>` {
			t.Errorf("%s: From %s", mode, from)
		}
		if auto := letter.Header.Get("Auto-Submitted"); auto != "auto-generated" {
			t.Errorf("%s: Auto-Submitted %q: who is on holiday answers it", mode, auto)
		}
		to, err := letter.Header.AddressList("To")
		if err != nil || len(to) != 2 || to[1].Name != "Öps" || to[1].Address != "ops@two.example" {
			t.Errorf("%s: To %v, %v", mode, to, err)
		}
		if body := decoded(t, letter); !strings.Contains(body, "\n.a line that begins with a dot") || !strings.Contains(body, "ümlautx") ||
			!strings.Contains(body, "x…\n") || utf8.RuneCountInString(body) > maxMailText+200 {
			t.Errorf("%s: a body of %d letters: %.200q", mode, utf8.RuneCountInString(body), body)
		}
		envelope := strings.Join(s.said(&s.commands), "\n")
		if !strings.Contains(envelope, "MAIL FROM:<limits@sender.example>") || strings.Count(envelope, "RCPT TO:") != 2 ||
			!strings.HasSuffix(envelope, "\nQUIT") {
			t.Errorf("%s: envelope %q", mode, envelope)
		}
	}
}

// TestMailSubjectsRoundTrip: users choose their names, and a mail reader decodes what looks like
// an encoded word.
func TestMailSubjectsRoundTrip(t *testing.T) {
	t.Parallel()
	s := serveMail(t, "none", nil)
	c := made(t, mailConfig(t, s), s.spec("none"))
	hidden := "=?utf-8?q?=E2=80=AE_RESOLVED:_all_is_well_=0D=0A?="
	for i, title := range []string{
		"user m was denied", "user m" + hidden + " was denied", "user m " + hidden + " was denied", hidden, "3 alerts held back for " + hidden,
		"Größe " + hidden, "=?utf-8?q?" + strings.Repeat("=E2=80=AE", 17), strings.Repeat(hidden+" ", 3) + "end", strings.Repeat("=?😀", 60) + "end",
		"=?", "?=", "a  b", "a" + strings.Repeat(" ", 150) + "b", strings.Repeat("a word ", 25) + "end", strings.Repeat("=?utf-8?b?", 17) + "end",
	} {
		m := message()
		m.Title = title
		if err := c.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		sent := s.said(&s.letters)[i]
		letter, err := mail.ReadMessage(strings.NewReader(sent))
		if err != nil {
			t.Fatal(err)
		}
		subject, err := new(mime.WordDecoder).DecodeHeader(letter.Header.Get("Subject"))
		if want := firstRunes("[critical] "+title, 200); subject != want || err != nil {
			t.Errorf("subject %q, %v; want %q", subject, err, want)
		}
		if plain := !strings.Contains(title, "=?") && !strings.Contains(title, "  ") && len(title) < 60; plain && letter.Header.Get("Subject") != subject {
			t.Errorf("%q is encoded: %q", title, letter.Header.Get("Subject"))
		}
		header, _, _ := strings.Cut(sent, "\n\n")
		for line := range strings.Lines(header) {
			if strings.TrimSpace(line) == "" || strings.Contains(line, "=?") && len(line) > 77 { // with its end
				t.Errorf("%q: the line %q", title, line)
			}
		}
	}
}

func TestMailLogsInOnlyOverTLS(t *testing.T) {
	t.Parallel()
	for _, offer := range []string{"PLAIN LOGIN", "SCRAM-SHA-256 LOGIN"} {
		s := serveMail(t, "starttls", nil)
		s.auth = offer
		spec := s.spec("starttls")
		spec.SMTP.Username, spec.SMTP.Password = "me", secret
		if err := send(t, mailConfig(t, s), spec); err != nil {
			t.Errorf("AUTH %s: %v", offer, err)
		}
		spec.SMTP.Password = "wrong"
		err := send(t, mailConfig(t, s), spec)
		wantError(t, err, "log in", "535")
		if refusal, ok := errors.AsType[*alerts.Refusal](err); ok && refusal.Final {
			t.Error("a password that can be put right is final")
		}
		if n := len(s.said(&s.letters)); n != 1 {
			t.Errorf("%d letters, want 1", n)
		}
	}
	s := serveMail(t, "starttls", nil)
	s.auth = "SCRAM-SHA-256"
	spec := s.spec("starttls")
	spec.SMTP.Username, spec.SMTP.Password = "me", secret
	wantError(t, send(t, mailConfig(t, s), spec), "neither PLAIN nor LOGIN")
}

func TestMailRequiresConfiguredTLS(t *testing.T) {
	t.Parallel()
	plain := serveMail(t, "none", nil)
	wantError(t, send(t, mailConfig(t, plain), plain.spec("starttls")), "STARTTLS")
	wantError(t, send(t, mailConfig(t, plain), plain.spec("tls")), "set tls: starttls")
	secure := serveMail(t, "starttls", nil)
	cfg := mailConfig(t, secure)
	cfg.RootCAs = nil
	wantError(t, send(t, cfg, secure.spec("starttls")), "certificate")
	implicit := serveMail(t, "tls", nil)
	cfg = mailConfig(t, implicit)
	cfg.RootCAs = nil
	wantError(t, send(t, cfg, implicit.spec("tls")), "certificate")
	for _, s := range []*mailServer{plain, secure, implicit} {
		if commands := strings.Join(s.said(&s.commands), "\n"); strings.Contains(commands, "MAIL") {
			t.Errorf("a mail was begun without TLS: %q", commands)
		}
	}
}

func TestMailAnswers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		answers   map[string]string
		want      string // empty for sent
		final     bool
		delivered bool
	}{
		{map[string]string{"": "554 not you"}, "554", false, false},
		{map[string]string{"": "421 busy"}, "421", false, false},
		{map[string]string{"EHLO": "550 who", "HELO": "550 who"}, "550", false, false},
		{map[string]string{"MAIL": "550 5.1.8 sender unknown"}, "sender unknown", true, false},
		{map[string]string{"MAIL": "550 5.7.1 blocked"}, "blocked", false, false},
		{map[string]string{"RCPT": "554 5.7.1 Client host rejected"}, "rejected", false, false},
		{map[string]string{"RCPT TO:<ops@one": "550 5.1.1 gone", "RCPT TO:<ops@two": "554 5.7.1 Relay access denied"}, "ops@two.example: 554", false, false},
		{map[string]string{".": "554 5.7.1 policy"}, "policy", false, true},
		{map[string]string{"MAIL": "500 what"}, "500", false, false},
		{map[string]string{"RCPT": "504 5.5.2 <vm>: Helo command rejected: need fully-qualified hostname"}, "Helo", false, false},
		{map[string]string{"RCPT": "550 relay not permitted"}, "relay", false, false},
		{map[string]string{"RCPT": "550 5.5.0 bad name"}, "bad name", false, false},
		{map[string]string{"MAIL": "530 5.7.0 Authentication required"}, "530", false, false},
		{map[string]string{"MAIL": "534 stronger"}, "534", false, false},
		{map[string]string{"MAIL": "535 wrong"}, "535", false, false},
		{map[string]string{"MAIL": "538 not without TLS"}, "538", false, false},
		{map[string]string{"MAIL": "451 later"}, "451", false, false},
		{map[string]string{"RCPT": "550 5.1.1 user unknown"}, "user unknown", true, false},
		{map[string]string{"RCPT TO:<ops@one": "550 5.1.1 user unknown"}, "", false, true},
		{map[string]string{"RCPT TO:<ops@two": "452 full"}, "", false, true},
		{map[string]string{"RCPT TO:<ops@one": "452 full"}, "", false, true},
		{map[string]string{"RCPT TO:<ops@one": "400 later"}, "", false, true},
		{map[string]string{"RCPT": "452 full"}, "452", false, false},
		{map[string]string{"RCPT TO:<ops@one": "452 full", "RCPT TO:<ops@two": "550 5.1.1 gone"}, "ops@one.example: 452", false, false},
		{map[string]string{"RCPT TO:<ops@one": "550 5.1.1 gone", "RCPT TO:<ops@two": "452 full"}, "ops@two.example: 452", false, false},
		{map[string]string{"RCPT": "530 5.7.0 Authentication required"}, "530", false, false},
		{map[string]string{"RCPT TO:<ops@one": "550 5.1.1 gone", "RCPT TO:<ops@two": "530 log in"}, "ops@two.example: 530", false, false},
		{map[string]string{"RCPT TO:<ops@two": "nonsense"}, "ops@two.example", false, false},
		{map[string]string{"RCPT TO:<ops@two": "354 what"}, "ops@two.example: 354", false, false}, // it answers something else
		{map[string]string{"DATA": "554 no"}, "554", true, false},
		{map[string]string{".": "552 too big"}, "552", true, true},
		{map[string]string{".": "451 later"}, "451", false, true},
		{map[string]string{"MAIL": "nonsense"}, "mail over", false, false},
		{map[string]string{"MAIL": "550 " + strings.Repeat("x", 100_000)}, "550", false, false},
		{map[string]string{"": strings.Repeat("220-again\r\n", 40_000)}, "more than", false, false},
		{map[string]string{"MAIL": strings.Repeat("y", 400_000)}, "mail over", false, false},
	} {
		s := serveMail(t, "none", test.answers)
		err := send(t, mailConfig(t, s), s.spec("none"))
		if test.want != "" {
			wantError(t, err, test.want)
		}
		if err != nil && len(err.Error()) > 600 {
			t.Errorf("%.60v: an error of %d bytes", test.answers, len(err.Error()))
		}
		refusal := &alerts.Refusal{}
		errors.As(err, &refusal)
		if refusal.Final != test.final {
			t.Errorf("%.60v: error %v, want final %t", test.answers, err, test.final)
		}
		if delivered := len(s.said(&s.letters)) > 0; delivered != test.delivered {
			t.Errorf("%.60v: data sent %t, want %t", test.answers, delivered, test.delivered)
		}
	}
}

func TestSilentMailServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := &mailServer{Listener: l}
	cfg := mailConfig(t, s)
	cfg.Timeout = 200 * time.Millisecond
	for mode, hint := range map[string]string{"none": "set tls: tls", "starttls": "set tls: tls", "tls": ""} {
		err := send(t, cfg, s.spec(mode))
		if wantError(t, err, "timed out after 200ms", hint); hint == "" && strings.Contains(err.Error(), "set tls") {
			t.Errorf("with tls: %s the error is %v", mode, err)
		}
	}
}

// TestMailServerSilentAfterItsGreeting: that it expects TLS cannot be the reason.
func TestMailServerSilentAfterItsGreeting(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		text := textproto.NewConn(conn)
		_ = text.PrintfLine("220 mail.example")
		_, _ = text.ReadLine() // EHLO
		cancel(errors.New("that was long"))
		_, _ = text.ReadLine() // until the client hangs up
	}()
	s := &mailServer{Listener: l}
	err = made(t, mailConfig(t, s), s.spec("none")).Send(ctx, message())
	if wantError(t, err, "that was long"); err != nil && strings.Contains(err.Error(), "greeting") {
		t.Error(err)
	}
}

// TestMailServerSilentAfterAccept: the server has accepted the mail, so it must not hold up other
// deliveries.
func TestMailServerSilentAfterAccept(t *testing.T) {
	t.Parallel()
	s := serveMail(t, "tls", nil)
	s.noBye = true
	start := time.Now()
	if err := send(t, mailConfig(t, s), s.spec("tls")); err != nil {
		t.Error(err)
	}
	if took, n := time.Since(start), len(s.said(&s.letters)); took > patience/2 || n != 1 {
		t.Errorf("%d letters after %s, want one at once", n, took)
	}
}

func TestMailReportsRefusedRecipient(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{"550 gone\x07", "452 full\x07"} {
		s := serveMail(t, "none", map[string]string{"RCPT TO:<ops@one": answer})
		var out bytes.Buffer
		cfg := mailConfig(t, s)
		cfg.Logger = slog.New(slog.NewTextHandler(&out, nil))
		if err := send(t, cfg, s.spec("none")); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "ops@one.example: "+answer[:3]) || !strings.Contains(out.String(), "channel=mail") {
			t.Errorf("log %q", out.String())
		}
	}
}

func TestMessageIDsAreOneWord(t *testing.T) {
	t.Parallel()
	if got := messageID("a.b/c d>\r\nX: ü_9"); got != "a.b-c-d---X---_9" {
		t.Errorf("got %q", got)
	}
}

// decoded returns the text of a mail.
func decoded(t *testing.T, m *mail.Message) string {
	t.Helper()
	if encoding := m.Header.Get("Content-Transfer-Encoding"); encoding != "quoted-printable" {
		t.Fatalf("encoding %q", encoding)
	}
	text, err := io.ReadAll(quotedprintable.NewReader(m.Body))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}
