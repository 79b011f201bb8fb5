package bus

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

func embed(t *testing.T, listen, dir string) *Embedded {
	t.Helper()
	e, err := Embed(EmbedConfig{Listen: listen, StoreDir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestEmbedKeepsItsStreams starts a server twice in one folder.
func TestEmbedKeepsItsStreams(t *testing.T) {
	dir := t.TempDir()
	for n := range 2 {
		e := embed(t, "127.0.0.1:0", dir)
		nc := dial(t, e.URL())
		js := testenv.JetStream(t, nc)
		if _, err := ensureStream(t.Context(), js, eventStream()); err != nil {
			t.Fatal(err)
		}
		ack, err := js.Publish(t.Context(), limits.EventWarning, nil)
		if err != nil || ack.Sequence != uint64(n+1) {
			t.Errorf("%+v %v", ack, err)
		}
		nc.Close()
		e.Shutdown()
	}
}

func TestEmbedOnBusyPortSuggestsAlternatives(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = Embed(EmbedConfig{Listen: l.Addr().String(), StoreDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{l.Addr().String(), "--nats-listen", "--nats-url"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not name %s", err, part)
		}
	}
	for _, bad := range []string{"4222", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"} {
		if _, err := Embed(EmbedConfig{Listen: bad, StoreDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// TestEmbedFailsFastIfServerGivesUp, such as one whose folder cannot be written.
func TestEmbedFailsFastIfServerGivesUp(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "file", "nats")
	if err := os.WriteFile(filepath.Dir(dir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := Embed(EmbedConfig{Listen: "127.0.0.1:0", StoreDir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		e.Shutdown()
		t.Fatal("no error")
	}
	for _, part := range []string{dir, "Can't start JetStream", "not a directory"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not name %s", err, part)
		}
	}
	if strings.Contains(err.Error(), "not ready after") {
		t.Errorf("it waited all the same: %v", err)
	}
}

func TestConnectRetriesAndHidesSecrets(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	var log bytes.Buffer
	logged := make(chan struct{}, 100)
	h := slog.NewTextHandler(&signalWriter{&log, logged}, nil)
	type result struct {
		nc  *nats.Conn
		err error
	}
	got := make(chan result, 1)
	go func() {
		nc, err := Connect(t.Context(), ConnectConfig{URL: "nats://joe:s3cret@" + addr, Name: "x", Logger: slog.New(h)})
		got <- result{nc, err}
	}()
	<-logged
	e := embed(t, addr, t.TempDir())
	defer e.Shutdown()
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := Healthy(ctx, r.nc); err != nil {
		t.Error(err)
	}
	r.nc.Close()
	if err := Healthy(ctx, r.nc); err == nil || err.Error() != "the connection is down" {
		t.Error(err)
	}
	if text := log.String(); strings.Contains(text, "s3cret") || !strings.Contains(text, "***@"+addr) {
		t.Error(text)
	}
}

// TestBadHeadersDoNotFillTheLog sends malformed headers, which no client library does.
func TestBadHeadersDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	log, logged := new(bytes.Buffer), make(chan struct{}, 2000)
	nc, err := Connect(t.Context(), ConnectConfig{URL: url, Name: "x", Logger: slog.New(slog.NewTextHandler(&signalWriter{log, logged}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Subscribe("limits.check", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("tcp", strings.TrimPrefix(url, "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const header = "NATS/1.0\r\nabc\r\n\r\n"
	message := fmt.Sprintf("HPUB limits.check %d %d\r\n%s\r\n", len(header), len(header), header)
	if _, err := fmt.Fprint(client, `CONNECT {"verbose":false,"headers":true}`+"\r\n"+strings.Repeat(message, 1001)+"PING\r\n"); err != nil {
		t.Fatal(err)
	}
	for said := bufio.NewScanner(client); said.Scan() && said.Text() != "PONG"; { // the server has taken all
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	nc.SetClosedHandler(func(*nats.Conn) { close(ended) }) // which comes behind all errors
	nc.Close()
	<-ended
	if text := log.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, "messages=1\n") {
		t.Error(text)
	}
}

// TestForbiddenReplySubjectsDoNotFillTheLog: a client chooses the reply subject, and this user may
// not publish there.
func TestForbiddenReplySubjectsDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	s := testenv.NATSConfig(t, `authorization { users: [{user: u, password: p, permissions: {publish: {deny: "inbox.>"}, subscribe: ">"}}] }`)
	log, logged := new(bytes.Buffer), make(chan struct{}, 2000)
	nc, err := Connect(t.Context(), ConnectConfig{URL: "nats://u:p@" + s.Addr().String(), Name: "x",
		Logger: slog.New(slog.NewTextHandler(&signalWriter{log, logged}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	nc.SetClosedHandler(func(*nats.Conn) { close(ended) }) // which comes behind all errors
	for range 1000 {
		if err := nc.Publish("inbox.1", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	nc.Close()
	<-ended
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, `Permissions Violation for Publish to \"inbox.1\"`) {
		t.Errorf("%.600s", text)
	}
}

// TestRevokedSubscriptionsAreRestored: permissions change while a connection is up, and later
// change back. In between the connection is not healthy.
func TestRevokedSubscriptionsAreRestored(t *testing.T) {
	t.Parallel()
	may := func(subscribe ...string) *server.Options {
		return &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, Users: []*server.User{
			{Username: "w", Password: "p", Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Allow: subscribe}}},
			{Username: "c", Password: "p"},
		}}
	}
	s, err := server.NewServer(may("limits.>", "$SRV.>", "_INBOX.>"))
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("NATS server not ready")
	}
	nc, err := Connect(t.Context(), ConnectConfig{URL: "nats://w:p@" + s.Addr().String(), Name: "x", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := NewService(ServiceConfig{Conn: nc, Engine: &fakeEngine{submit: allowing}, Version: "1.2.3", Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	client := dial(t, "nats://c:p@"+s.Addr().String())
	ask(t, client, limits.SubjectConsume, `{"key":"k","limit":1,"window":"1m"}`)
	guardOf(nc).wait = 5 * time.Millisecond // doubled with each try
	healthy := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return Healthy(ctx, nc)
	}
	if err := healthy(); err != nil {
		t.Fatal(err)
	}
	if err := s.ReloadOptions(may("$SRV.>", "_INBOX.>")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the refused subscription is told", func() bool {
		err := healthy()
		return err != nil && strings.Contains(err.Error(), "refuses the subscription to limits.")
	})
	if err := s.ReloadOptions(may("limits.>", "$SRV.>", "_INBOX.>")); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		_, err := client.Request(limits.SubjectConsume, []byte(`{"key":"k","limit":1,"window":"1m"}`), time.Second)
		if err = errors.Join(err, healthy()); err == nil {
			break
		} else if time.Since(begin) > time.Minute {
			t.Fatal(err)
		}
	}
}

// Nobody can tell where the password of a malformed URL ends, so nothing of the URL is shown.
func TestConnectHidesMalformedURL(t *testing.T) {
	var log bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := Connect(ctx, ConnectConfig{URL: "nats://joe:s3cret/x@127.0.0.1:1", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err == nil || !strings.Contains(err.Error(), "%2F") || strings.Contains(err.Error()+log.String(), "s3cret") {
		t.Errorf("%v\n%s", err, &log)
	}
}

type signalWriter struct {
	b      *bytes.Buffer
	logged chan struct{}
}

func (w *signalWriter) Write(p []byte) (int, error) {
	n, err := w.b.Write(p)
	w.logged <- struct{}{}
	return n, err
}

func TestConnectEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := Connect(ctx, ConnectConfig{URL: "nats://u:p@127.0.0.1:1", Logger: slog.New(slog.DiscardHandler)})
	if err == nil || strings.Contains(err.Error(), "u:p") || !strings.Contains(err.Error(), "at nats://***@127.0.0.1:1: ") ||
		!strings.Contains(err.Error(), "dial tcp 127.0.0.1:1: connect: connection refused") {
		t.Error(err)
	}
	for _, cfg := range []ConnectConfig{{}, {URL: "x", Creds: "/nowhere"}} {
		cfg.Logger = slog.New(slog.DiscardHandler)
		if _, err := Connect(t.Context(), cfg); err == nil {
			t.Errorf("%+v connects", cfg)
		}
	}
}

func TestForgetReachesEveryWorker(t *testing.T) {
	url := testenv.NATS(t).ClientURL()
	heard := make(chan engine.Forget, 10)
	var workers []*Broadcast[engine.Forget]
	for range 2 {
		f := NewForgets(dial(t, url), slog.New(slog.DiscardHandler))
		if err := f.Listen(func(w engine.Forget) { heard <- w }); err != nil {
			t.Fatal(err)
		}
		workers = append(workers, f)
	}
	nc := dial(t, url)
	for _, junk := range []string{"", "{}", "x", `{"key":5}`, `{"key":"` + strings.Repeat("k", 3000) + `"}`} {
		_ = nc.Publish(subjectForget, []byte(junk))
	}
	_ = nc.Flush()
	want := engine.Forget{Key: "a\"b"}
	workers[0].Send(want)
	waitFor(t, "both hear of it", func() bool { return len(heard) == 2 })
	for range 2 {
		if got := <-heard; got != want {
			t.Errorf("%+v", got)
		}
	}
	for _, f := range workers {
		f.Close()
	}
}

// TestFailedBroadcastsDoNotFillTheLog: when a connection breaks, the broadcasts of all refunds
// fail.
func TestFailedBroadcastsDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	nc := connect(t, testenv.NATS(t).ClientURL())
	nc.Close()
	var lines bytes.Buffer
	forget := NewForgets(nc, slog.New(slog.NewTextHandler(&lines, nil)))
	for range 100 {
		forget.Send(engine.Forget{Key: "k"})
	}
	if n := strings.Count(lines.String(), "\n"); n != 1 || !strings.Contains(lines.String(), subjectForget) {
		t.Errorf("%d lines: %.300s", n, lines.String())
	}
}

// TestHungServerIsUnhealthy: the connection is up, but nothing answers.
func TestHungServerIsUnhealthy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		fmt.Fprint(c, `INFO {"server_id":"x","version":"2.11.0","proto":1,"max_payload":1048576}`+"\r\n")
		for lines, pings := bufio.NewScanner(c), 0; lines.Scan(); {
			if lines.Text() == "PING" && pings == 0 {
				pings++
				fmt.Fprint(c, "PONG\r\n")
			}
		}
	}()
	nc, err := nats.Connect("nats://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Healthy(ctx, nc); err == nil {
		t.Error("a server that answers nothing is healthy")
	}
}

// TestServerErrorsDoNotEndTheConnectionForGood, as nats.go would do at errors that it does not
// know, however often it is told to reconnect: one message from afar would disconnect a worker
// until it is restarted.
func TestServerErrorsDoNotEndTheConnectionForGood(t *testing.T) {
	t.Parallel()
	for name, publish := range map[string]func(nc *nats.Conn) error{
		"a subject that is too long": func(nc *nats.Conn) error { return nc.Publish(strings.Repeat("a", 5000), nil) },
		"a message over a limit that was lowered": func(nc *nats.Conn) error {
			return nc.Publish("a", make([]byte, 10_000))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var options *server.Options
			s := testenv.NATS(t, func(o *server.Options) { options = o })
			lines := make(chan string, 100)
			nc, err := Connect(t.Context(), ConnectConfig{URL: s.ClientURL(), Name: "test", Logger: slog.New(slog.NewTextHandler(lineWriter(lines), nil))})
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			back := make(chan struct{})
			nc.SetReconnectHandler(func(*nats.Conn) { close(back) })
			smaller := options.Clone()
			smaller.MaxPayload = 4096
			if err := s.ReloadOptions(smaller); err != nil {
				t.Fatal(err)
			}
			if err := publish(nc); err != nil {
				t.Fatal(err)
			}
			select {
			case <-back:
			case <-time.After(patience):
				t.Fatalf("the connection is %s: %v", nc.Status(), nc.LastError())
			}
			if err := nc.FlushTimeout(patience); err != nil || nc.MaxPayload() != 4096 {
				t.Errorf("%v, and it takes %d", err, nc.MaxPayload())
			}
			for line := range lines {
				if strings.Contains(line, "rejected what it was sent") {
					break
				}
			}
		})
	}
}
