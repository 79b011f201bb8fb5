package channel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

// TestMain runs the tests in a zone an hour east of Greenwich. In UTC, times in the zone of the machine would seem right.
func TestMain(m *testing.M) {
	time.Local = time.FixedZone("CET", 3600)
	os.Exit(m.Run())
}

// patience bounds every wait; it is long because a busy machine must not fail these tests.
const patience = 60 * time.Second

// secret is in the path of every URL. No error may contain it.
const secret = "T0Secret9"

// config allows loopback, where the receivers of these tests are.
func config(*testing.T) Config {
	return Config{
		Logger: slog.New(slog.DiscardHandler), Timeout: patience,
		Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
	}
}

func message() *alerts.Message {
	return &alerts.Message{
		ID: "a1b2.raised", Kind: alerts.KindRaised, Time: 1_767_225_600_123, Severity: alerts.Critical, User: "7",
		Title: "user 7 is over the limit", Text: "5 denials of api in 10m", Data: json.RawMessage(`{"alert":"a1b2","denied":5}`),
	}
}

// hook is a webhook whose URL ends in a secret.
func hook(url string) *alerts.ChannelSpec {
	return &alerts.ChannelSpec{Name: "pager", Kind: alerts.ChannelWebhook,
		Webhook: &alerts.WebhookSpec{URL: url + "/" + secret, Secrets: [][]byte{[]byte("key of 24 bytes or more.")}}}
}

// send makes a channel and sends the message over it, once.
func send(t *testing.T, cfg Config, spec *alerts.ChannelSpec) error {
	t.Helper()
	return made(t, cfg, spec).Send(t.Context(), message())
}

// made makes a channel by a maker that is closed when the test ends.
func made(t *testing.T, cfg Config, spec *alerts.ChannelSpec) alerts.Channel {
	t.Helper()
	m, err := NewMaker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	c, err := m.Make(spec)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", parts)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
	if strings.Contains(err.Error(), secret) {
		t.Errorf("error %q tells the URL", err)
	}
}

// received is a received request.
type received struct {
	header http.Header
	body   []byte
}

// receiver is an HTTP server that records the requests.
type receiver struct {
	*httptest.Server
	mu   sync.Mutex
	seen []received
}

// receive starts a receiver. Without a handler it answers 200.
func receive(t *testing.T, answer http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(r.keep(answer))
	t.Cleanup(func() { r.CloseClientConnections(); r.Close() })
	return r
}

func (r *receiver) keep(answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.seen = append(r.seen, received{req.Header.Clone(), body})
		r.mu.Unlock()
		if answer != nil {
			answer(w, req)
		}
	}
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

func TestMakeRejectsInvalidSpecs(t *testing.T) {
	t.Parallel()
	m, err := NewMaker(config(t))
	if err != nil {
		t.Fatal(err)
	}
	smtp := func(change func(*alerts.SMTPSpec)) *alerts.ChannelSpec {
		s := &alerts.SMTPSpec{Addr: "mail.example:587", TLS: "starttls", From: "a@b.example", To: []string{"c@d.example"}}
		change(s)
		return &alerts.ChannelSpec{Name: "pager", Kind: alerts.ChannelSMTP, SMTP: s}
	}
	keyless := hook("https://hook.example")
	keyless.Webhook.Secrets = nil
	open := hook("https://hook.example") // anybody could sign with its second secret
	open.Webhook.Secrets = [][]byte{[]byte("secret"), {}}
	for want, spec := range map[string]*alerts.ChannelSpec{
		"is not supported":           {Name: "pager", Kind: alerts.ChannelNATS},
		"settings are":               {Name: "pager", Kind: alerts.ChannelSlack},
		`"webhook" is not`:           {Name: "pager", Kind: alerts.ChannelWebhook},
		`"smtp" is not`:              {Name: "pager", Kind: alerts.ChannelSMTP},
		"url:":                       hook("ftp://hook.example"),
		"http or https":              hook("https://"),
		"with a host":                hook("https://[::1"),
		"secrets":                    keyless,
		"number 2 is empty":          open,
		"host:port":                  smtp(func(s *alerts.SMTPSpec) { s.Addr = "mail.example" }),
		`":587" is not host`:         smtp(func(s *alerts.SMTPSpec) { s.Addr = ":587" }),
		"1 to 65535":                 smtp(func(s *alerts.SMTPSpec) { s.Addr = "mail.example:0" }),
		"want starttls, tls or none": smtp(func(s *alerts.SMTPSpec) { s.TLS = "" }),
		"in the clear":               smtp(func(s *alerts.SMTPSpec) { s.TLS, s.Username = "none", "u" }),
		"from:":                      smtp(func(s *alerts.SMTPSpec) { s.From = "a@b.example\r\nBcc: x@y.example" }),
		"no address given":           smtp(func(s *alerts.SMTPSpec) { s.To = nil }),
		"to:":                        smtp(func(s *alerts.SMTPSpec) { s.To = []string{"nobody"} }),
	} {
		_, err := m.Make(spec)
		wantError(t, err, `channel "pager"`, want)
	}
}

func TestFingerprintIsOfTheTarget(t *testing.T) {
	t.Parallel()
	one, rotated := hook("https://hook.example"), hook("https://hook.example")
	rotated.Webhook.Secrets = [][]byte{[]byte("another")}
	if Fingerprint(one) != Fingerprint(rotated) {
		t.Error("another key made another target")
	}
	if strings.Contains(Fingerprint(one), "hook") {
		t.Error("the fingerprint tells the URL")
	}
	slack := func(url string) *alerts.ChannelSpec {
		return &alerts.ChannelSpec{Kind: alerts.ChannelSlack, Slack: &alerts.SlackSpec{URL: url}}
	}
	mail := func(password, addr, from string, to ...string) *alerts.ChannelSpec {
		return &alerts.ChannelSpec{Kind: alerts.ChannelSMTP, SMTP: &alerts.SMTPSpec{Addr: addr, From: from, To: to, Password: password}}
	}
	if Fingerprint(mail("a", "mail.example:587", "f@x", "t@x")) != Fingerprint(mail("b", "mail.example:587", "f@x", "t@x")) {
		t.Error("another password made another target")
	}
	seen := map[string]int{}
	for i, spec := range []*alerts.ChannelSpec{
		one, hook("https://hook2.example"), slack("https://hook.example/" + secret), slack("https://hook2.example"),
		mail("", "mail.example:587", "f@x", "t@x"), mail("", "mail.example:25", "f@x", "t@x"), mail("", "mail.example:587", "g@x", "t@x"),
		mail("", "mail.example:587", "f@x", "u@x"), mail("", "mail.example:587", "f@x", "t@x", "u@x"), mail("", "mail.example:587", "f@x", "t@xu@x"),
	} {
		if j, is := seen[Fingerprint(spec)]; is {
			t.Errorf("the targets %d and %d are the same", j, i)
		}
		seen[Fingerprint(spec)] = i
	}
}

// TestUnsetOptionsHaveDefaults, and a missing required setting is an error.
func TestUnsetOptionsHaveDefaults(t *testing.T) {
	t.Parallel()
	if _, err := NewMaker(Config{}); err == nil || !strings.Contains(err.Error(), "Logger is missing") {
		t.Errorf("without a logger: %v", err)
	}
	r := receive(t, nil)
	cfg := config(t)
	cfg.Timeout = 0
	if err := send(t, cfg, hook(r.URL)); err != nil {
		t.Fatal(err)
	}
	if agent := r.seen[0].header.Get("User-Agent"); agent != "limits" {
		t.Errorf("the user agent is %q", agent)
	}
}

// TestCloseEndsConnections that no attempt is using.
func TestCloseEndsConnections(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{}, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closed <- struct{}{}
		}
	}
	server.Start()
	defer server.Close()
	m, err := NewMaker(config(t))
	if err != nil {
		t.Fatal(err)
	}
	c, err := m.Make(hook(server.URL))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Send(t.Context(), message()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-closed:
		t.Fatal("the connection is not kept for the next")
	default:
	}
	m.Close()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Error("the connection is open yet")
	}
}

func TestSlackTextIsEscaped(t *testing.T) {
	t.Parallel()
	r := receive(t, nil)
	m := message()
	m.Title, m.Text = "<!channel> a&b", "@ALL <https://evil.example|click> ![x](//evil.example) ops@hereafter.example ann@mail.example"
	spec := &alerts.ChannelSpec{Kind: alerts.ChannelSlack, Slack: &alerts.SlackSpec{URL: r.URL + "/" + secret}}
	c := made(t, config(t), spec)
	if err := c.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal(r.seen[0].body, &got); err != nil {
		t.Fatal(err)
	}
	want := "[critical] &lt;!channel&gt; a&amp;b\n@\u200bALL &lt;https://evil.example|click&gt; ![x]\u200b(//evil.example) ops@\u200bhereafter.example ann@mail.example"
	if len(got) != 1 || got["text"] != want {
		t.Errorf("got %q, want text %q", got, want)
	}
	m.Title, m.Text = "long", strings.Repeat("ü", 10_000)
	if text := slackText(m); len([]rune(text)) != maxSlackText+1 || !strings.HasSuffix(text, "ü…") {
		t.Errorf("a long text is sent with %d letters", len([]rune(text)))
	}
	if m.Text = strings.Repeat("&", 10_000); !strings.HasSuffix(slackText(m), "&amp;…") || strings.Count(slackText(m), "&amp;") < maxSlackText-50 {
		t.Error("a text is cut after its escaping")
	}
}

// TestSlackTextMentionsNobody: Mattermost strips . - : and _ after a word before it looks the name up.
func TestSlackTextMentionsNobody(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"@all_", "@here_", "@channel__", "@Everyone_.", "@here-", "(@here)", "x:@here", "@@all", "@ann", "@übel", "a@Everyone",
		"<@U024BE7LH>", "@7up", "@.x", "@_x", "ü@someone", "用户@7"} {
		m := message()
		m.Title, m.Text = text, text
		if got := slackText(m); strings.Count(got, "@\u200b") != 2 || mentionNobody(got) != got {
			t.Errorf("%q is sent as %q", text, got)
		}
	}
	for text, want := range map[string]string{"@é@bob": "@\u200bé@\u200bbob", "@-@bob": "@\u200b-@\u200bbob", "@bob @.@alice": "@\u200bbob @\u200b.@\u200balice"} {
		if got := slackEscape(text); got != want {
			t.Errorf("%q is sent as %q", text, got)
		}
	}
	if got := slackEscape("5 @ 3 a@7 @!"); got != "5 @ 3 a@7 @!" {
		t.Errorf("an @ before no letter is sent as %q", got)
	}
}

func TestSlackErrorShowsOnlyErrorCodes(t *testing.T) {
	t.Parallel()
	for body, told := range map[string]bool{
		"channel_not_found": true, "path_of_url": false, "Cannot POST /" + secret: false, "no_" + strings.Repeat("x", 70000): false, "": false,
		"word": false, "a_b_c_d_e_f": true, "a_b_c_d_e_f_g": false,
	} {
		r := receive(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusGone)
			_, _ = io.WriteString(w, body)
		})
		err := send(t, config(t), &alerts.ChannelSpec{Kind: alerts.ChannelSlack, Slack: &alerts.SlackSpec{
			URL: r.URL + "/path_of_url/" + secret}})
		wantError(t, err, "410")
		if strings.HasSuffix(err.Error(), ": "+body) != told {
			t.Errorf("the answer %.20q gave the error %.100q", body, err)
		}
		if refusal, ok := errors.AsType[*alerts.Refusal](err); !ok || !refusal.Gone {
			t.Errorf("error %v is not gone", err)
		}
	}
	r := receive(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "no_error") })
	if err := send(t, config(t), &alerts.ChannelSpec{Kind: alerts.ChannelSlack, Slack: &alerts.SlackSpec{URL: r.URL}}); err != nil {
		t.Errorf("what was taken is an error: %v", err)
	}
}

func TestLogWritesALineBySeverity(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		severity alerts.Severity
		kind     alerts.Kind
		level    string
	}{
		{alerts.Info, alerts.KindRaised, "INFO"}, {alerts.Warning, alerts.KindRaised, "WARN"},
		{alerts.Critical, alerts.KindRaised, "ERROR"}, {alerts.Critical, alerts.KindResolved, "INFO"},
	} {
		var out bytes.Buffer
		cfg := config(t)
		cfg.Logger = slog.New(slog.NewJSONHandler(&out, nil))
		c := made(t, cfg, &alerts.ChannelSpec{Name: "lines", Kind: alerts.ChannelLog})
		m := message()
		m.Severity, m.Kind, m.Title, m.Text = test.severity, test.kind, strings.Repeat("ü", maxLogText+1), "a\nb"
		if err := c.Send(context.Background(), m); err != nil {
			t.Fatal(err)
		}
		var line map[string]any
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatalf("%q is not one line of JSON: %v", out.String(), err)
		}
		if line["level"] != test.level || line["id"] != m.ID || line["channel"] != "lines" || line["text"] != m.Text ||
			line["title"] != strings.Repeat("ü", maxLogText)+"…" ||
			line["at"] != time.UnixMilli(m.Time).UTC().Format(time.RFC3339Nano) {
			t.Errorf("severity %s: %v", test.severity, line)
		}
		// Which of two keys of the same name a JSON parser keeps is not defined.
		if n := strings.Count(out.String(), `"time":`); n != 1 {
			t.Errorf("%d keys named time: %s", n, out.String())
		}
	}
}
