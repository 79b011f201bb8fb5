package channel

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// TestWebhookSignatureMatchesStandard uses the example that the standard's own libraries are
// tested with.
func TestWebhookSignatureMatchesStandard(t *testing.T) {
	t.Parallel()
	key, _ := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	cfg := config(t)
	cfg.Now = func() time.Time { return time.Unix(1614265330, 0) }
	maker, _ := NewMaker(cfg)
	c, err := maker.webhook(&alerts.WebhookSpec{URL: "https://hook.example", Secrets: [][]byte{key}})
	if err != nil {
		t.Fatal(err)
	}
	header, err := c.(*webhook).sign("msg_p5jXN8AQM9LWM0D4loKWxJek", []byte(`{"test": 2432232314}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := header.Get("webhook-signature"), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("signature %s, want %s", got, want)
	}
	if got := header.Get("webhook-timestamp"); got != "1614265330" {
		t.Errorf("timestamp %s", got)
	}
}

// verify is written from the standard's text alone: {id}.{timestamp}.{body}, HMAC-SHA256, base64, any of the signatures.
func verify(key []byte, r received) bool {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", r.header.Get("webhook-id"), r.header.Get("webhook-timestamp"), r.body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	return slices.Contains(strings.Split(r.header.Get("webhook-signature"), " "), want)
}

func TestWebhookIsVerifiedWhileKeysAreRotated(t *testing.T) {
	t.Parallel()
	older, newer := []byte("the older key, of 24 bytes"), []byte("the newer key, of 24 bytes")
	r := receive(t, nil)
	spec := hook(r.URL)
	for _, step := range []struct {
		keys    [][]byte
		old, by bool // whether receivers with the older, and with the newer key accept it
	}{
		{[][]byte{older}, true, false}, {[][]byte{newer, older}, true, true}, {[][]byte{newer}, false, true},
	} {
		spec.Webhook.Secrets = step.keys
		if err := send(t, config(t), spec); err != nil {
			t.Fatal(err)
		}
		got := r.seen[len(r.seen)-1]
		for _, check := range []struct {
			key  []byte
			want bool
		}{{older, step.old}, {newer, step.by}, {[]byte("a key of somebody else's"), false}} {
			stock, _ := standardwebhooks.NewWebhookRaw(check.key)
			if err := stock.Verify(got.body, got.header); (err == nil) != check.want {
				t.Errorf("the stock library says %v to key %q, want accepted %t", err, check.key, check.want)
			}
			if verify(check.key, got) != check.want {
				t.Errorf("key %q: want accepted %t", check.key, check.want)
			}
		}
		got.body = append(slices.Clone(got.body), ' ')
		if verify(step.keys[0], got) {
			t.Error("a body that was changed is accepted")
		}
	}
}

func TestWebhookRepeatsIdAndBody(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	cfg := config(t)
	cfg.Now = func() time.Time { return now }
	cfg.UserAgent = "limits/1.2"
	r := receive(t, nil)
	for range 2 {
		if err := send(t, cfg, hook(r.URL)); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Hour)
	}
	a, b := r.seen[0], r.seen[1]
	if a.header.Get("webhook-id") != "a1b2.raised" || b.header.Get("webhook-id") != "a1b2.raised" || string(a.body) != string(b.body) {
		t.Errorf("two tries differ: %v %s, %v %s", a.header, a.body, b.header, b.body)
	}
	if a.header.Get("webhook-timestamp") != "1800000000" || b.header.Get("webhook-timestamp") != "1800003600" {
		t.Errorf("timestamps %v, %v are not those of the tries", a.header, b.header)
	}
	want := `{"type":"alerts.raised","timestamp":"2026-01-01T00:00:00.123Z","data":{"alert":"a1b2","denied":5}}`
	if string(a.body) != want {
		t.Errorf("body %s, want %s", a.body, want)
	}
	if a.header.Get("Content-Type") != "application/json" || a.header.Get("User-Agent") != "limits/1.2" || a.header.Get("Accept-Encoding") != "" {
		t.Errorf("header %v", a.header)
	}
}

func TestWebhookWithInvalidDataIsFinal(t *testing.T) {
	t.Parallel()
	c := made(t, config(t), hook("https://hook.example"))
	m := message()
	m.Data = json.RawMessage(`{`)
	if refusal, ok := errors.AsType[*alerts.Refusal](c.Send(t.Context(), m)); !ok || !refusal.Final {
		t.Error("data that is no JSON is tried again")
	}
}

func TestHTTPStatusDecidesOutcome(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	cfg := config(t)
	cfg.Now = func() time.Time { return now }
	date := func(d time.Duration) string { return now.Add(d).UTC().Format(http.TimeFormat) }
	for _, test := range []struct {
		code       int
		retryAfter string
		wait       time.Duration
		gone, done bool
	}{
		{code: 200, done: true}, {code: 204, done: true}, {code: 202, retryAfter: "9", done: true},
		{code: 410, gone: true},
		{code: 429, retryAfter: "7", wait: 7 * time.Second}, {code: 503, retryAfter: " 120 ", wait: 2 * time.Minute},
		{code: 429, retryAfter: date(90 * time.Second), wait: 90 * time.Second}, {code: 503, retryAfter: date(-time.Hour)},
		{code: 429, retryAfter: "999999999999", wait: time.Hour},
		{code: 429, retryAfter: "99999999999999999999999999", wait: time.Hour},
		{code: 429, retryAfter: date(1000 * time.Hour), wait: time.Hour},
		{code: 429, retryAfter: "-5"}, {code: 429, retryAfter: "soon"}, {code: 429}, {code: 503},
		{code: 500, retryAfter: "7"}, {code: 400}, {code: 401}, {code: 404}, {code: 502},
	} {
		r := receive(t, func(w http.ResponseWriter, _ *http.Request) {
			if test.retryAfter != "" {
				w.Header().Set("Retry-After", test.retryAfter)
			}
			w.WriteHeader(test.code)
			if test.code != 204 {
				_, _ = io.WriteString(w, "your "+secret)
			}
		})
		err := send(t, cfg, hook(r.URL))
		if test.done {
			if err != nil {
				t.Errorf("%d: %v", test.code, err)
			}
			continue
		}
		wantError(t, err, r.Listener.Addr().String(), strconv.Itoa(test.code))
		refusal := &alerts.Refusal{}
		errors.As(err, &refusal)
		if refusal.Gone != test.gone || refusal.RetryAfter != test.wait || refusal.Final {
			t.Errorf("%d with Retry-After %q: %+v", test.code, test.retryAfter, refusal)
		}
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := receive(t, nil)
	for _, code := range []int{301, 302, 303, 307, 308} {
		r := receive(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", elsewhere.URL+"/"+secret)
			w.WriteHeader(code)
		})
		wantError(t, send(t, config(t), hook(r.URL)), strconv.Itoa(code), "redirects are not followed")
	}
	if n := elsewhere.count(); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

// TestTargetsThatStall: targets that hold the connection in different ways; the attempt ends by its own timeout.
func TestTargetsThatStall(t *testing.T) {
	t.Parallel()
	listen := func(speak func(net.Conn)) string {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { conn.Close() })
				go func() {
					_, _ = conn.Read(make([]byte, 8192)) // the request
					speak(conn)
				}()
			}
		}()
		return "http://" + l.Addr().String()
	}
	cfg := config(t)
	cfg.Timeout = 200 * time.Millisecond
	wantError(t, send(t, cfg, hook(listen(func(net.Conn) {}))), "timed out after 200ms")
	wantError(t, send(t, cfg, hook(listen(func(c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Le")
	}))), "timed out after 200ms")

	cfg.Timeout = patience
	wantError(t, send(t, cfg, hook(listen(func(c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(c, "X-%d: %s\r\n", i, strings.Repeat("y", 1000)); err != nil {
				return
			}
		}
	}))), "post to 127.0.0.1")
	for name, body := range map[string]func(net.Conn) error{
		"a body without an end": func(c net.Conn) error { _, err := c.Write(make([]byte, 8192)); return err },
		"a body that stalls":    func(net.Conn) error { return io.EOF },
	} {
		began := time.Now()
		if err := send(t, cfg, hook(listen(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
			for body(c) == nil {
			}
		}))); err != nil {
			t.Errorf("%s after a 200: %v", name, err)
		}
		if took := time.Since(began); took >= patience/2 {
			t.Errorf("%s after a 200 was read for %s", name, took)
		}
	}
}

// TestSwitchingProtocolsIsAFailure: net/http returns the connection as the body, whose end never comes while the target holds it.
func TestSwitchingProtocolsIsAFailure(t *testing.T) {
	t.Parallel()
	closed := make(chan error, 1)
	r := receive(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			closed <- err
			return
		}
		t.Cleanup(func() { conn.Close() })
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		_, err = conn.Read(make([]byte, 1))
		closed <- err
	})
	sent := make(chan error, 1)
	go func() { sent <- send(t, config(t), hook(r.URL)) }()
	select {
	case err := <-sent:
		wantError(t, err, "it answered 101 Switching Protocols")
		if refusal, ok := errors.AsType[*alerts.Refusal](err); ok {
			t.Errorf("it is not simply tried again: %+v", refusal)
		}
	case <-time.After(patience):
		t.Fatal("the try does not end")
	}
	if err := <-closed; err != io.EOF {
		t.Errorf("the connection is not closed: %v", err)
	}
}

func TestClosedPort(t *testing.T) {
	t.Parallel()
	r := receive(t, nil)
	r.Close()
	wantError(t, send(t, config(t), hook(r.URL)), "post to 127.0.0.1", "refused")
}

// TestEchoedURLIsNotShown: net/http quotes an answer that it cannot parse, and the answer may
// contain the URL.
func TestEchoedURLIsNotShown(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		"POST %s HTTP/1.1\r\n\r\n", "HTTP/1.1 %s\r\n\r\n", "%s 200 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: %s\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: %s\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length, %s\r\n\r\n",
		"HTTP/1.1 200 OK\r\n%s\r\n\r\n",
	} {
		wantError(t, send(t, config(t), hook(answers(t, answer))), "post to 127.0.0.1", "no valid HTTP answer")
	}
}

// answers is a target that answers each request with a text, in which %s is replaced by the path, and closes the connection.
func answers(t *testing.T, answer string) string {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(c, strings.ReplaceAll(answer, "%s", r.URL.Path))
			}
			_ = c.Close()
		}
	}()
	return "http://" + l.Addr().String()
}

// TestNetworkErrorsAreReported: without the reason nobody could repair the channel.
func TestNetworkErrorsAreReported(t *testing.T) {
	t.Parallel()
	wantError(t, send(t, config(t), hook(answers(t, ""))), "EOF")
	wantError(t, send(t, config(t), hook(answers(t, "HTTP/1.1 200 OK\r\n"))), "unexpected EOF")
	wantError(t, send(t, config(t), hook(strings.Replace(answers(t, ""), "http:", "https:", 1))), "EOF")
	plain := receive(t, nil)
	wantError(t, send(t, config(t), hook(strings.Replace(plain.URL, "http:", "https:", 1))), "does not look like a TLS handshake")

	old := httptest.NewUnstartedServer(http.NotFoundHandler())
	old.Config.ErrorLog = log.New(io.Discard, "", 0)
	old.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	old.StartTLS()
	t.Cleanup(old.Close)
	wantError(t, send(t, config(t), hook(old.URL)), "protocol version")
}

func TestCertificatesAreChecked(t *testing.T) {
	t.Parallel()
	r := &receiver{}
	r.Server = httptest.NewUnstartedServer(r.keep(nil))
	r.Config.ErrorLog = log.New(io.Discard, "", 0)
	r.StartTLS()
	t.Cleanup(r.Close)
	wantError(t, send(t, config(t), hook(r.URL)), "certificate")

	cfg := config(t)
	cfg.RootCAs = r.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	u, _ := url.Parse(r.URL)
	cfg.Resolver = names(t, func() netip.Addr { return netip.MustParseAddr("127.0.0.1") })
	wantError(t, send(t, cfg, hook("https://other.name:"+u.Port())), "post to other.name", "certificate")
	if n := r.count(); n != 0 {
		t.Fatalf("%d requests were sent to who could not show who it is", n)
	}
	if err := send(t, cfg, hook(r.URL)); err != nil {
		t.Errorf("with the right authority: %v", err)
	}
}

func TestProxyFromEnvironmentIsNotUsed(t *testing.T) {
	t.Parallel()
	m, _ := NewMaker(config(t))
	if m.transport.Proxy != nil {
		t.Error("a proxy would make connections past the guard")
	}
}
