package limits_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestAServerMayStartAfterItsClients: a program that lets requests pass without a limiter must also start without one.
func TestAServerMayStartAfterItsClients(t *testing.T) {
	t.Parallel()
	was := serveNATS(t, server.RANDOM_PORT)
	url, port := was.ClientURL(), was.Addr().(*net.TCPAddr).Port
	was.Shutdown()
	was.WaitForShutdown()

	connected, refused := make(chan struct{}), make(chan struct{}, 100)
	nc := testenv.Connect(t, url, nats.ReconnectErrHandler(func(*nats.Conn, error) { refused <- struct{}{} }), limits.Reconnect(),
		nats.ConnectHandler(func(*nats.Conn) { close(connected) }))
	c := limits.NewClient(nc)
	answer(t, nc, limits.SubjectConsume, func(string) *nats.Msg { return body(`{"allowed":true}`) })
	for range 2 { // the first has no reason yet
		<-refused
	}
	began := time.Now()
	_, err := c.Consume(t.Context(), limits.Per("k", 1, "1m"))
	if !errors.Is(err, nats.ErrDisconnected) || !strings.Contains(err.Error(), url) || !strings.Contains(err.Error(), "connection refused") ||
		time.Since(began) >= limits.DefaultTimeout {
		t.Errorf("without a server, after %v: %v; want at once that %s is not connected, and why", time.Since(began), err, url)
	}

	serveNATS(t, port)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-connected:
	case <-ctx.Done():
		t.Fatal("not connected to the server that has started")
	}
	if _, err := c.Consume(ctx, limits.Per("k", 1, "1m")); err != nil {
		t.Errorf("with the server: %v", err)
	}
}

// TestASilentServerIsLeftForAnother: one that hangs, or whose network is cut, closes no connection. By default nats.go would
// stay with it for 6 minutes.
func TestASilentServerIsLeftForAnother(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	go func() { // greets as a NATS server, answers the first PING, and then says nothing more
		for c, err := silent.Accept(); err == nil; c, err = silent.Accept() {
			t.Cleanup(func() { c.Close() })
			_, _ = c.Write([]byte("INFO {\"server_id\":\"silent\",\"max_payload\":1048576}\r\nPONG\r\n"))
		}
	}()
	other := serveNATS(t, server.RANDOM_PORT)
	connect := func(more ...nats.Option) *nats.Conn {
		nc, err := nats.Connect("nats://"+silent.Addr().String()+","+other.ClientURL(), append([]nats.Option{limits.Reconnect(), nats.DontRandomize()}, more...)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	if o := connect().Opts; o.PingInterval*time.Duration(o.MaxPingsOut+1) > 20*time.Second {
		t.Errorf("asked every %v, left after %d questions without an answer", o.PingInterval, o.MaxPingsOut)
	}
	left := make(chan struct{})
	nc := connect(nats.PingInterval(50*time.Millisecond), nats.ReconnectHandler(func(*nats.Conn) { close(left) }))
	if id := nc.ConnectedServerId(); id != "silent" {
		t.Fatalf("connected to %s first", id)
	}
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Fatal("still with the silent server")
	}
	answer(t, nc, limits.SubjectConsume, func(string) *nats.Msg { return body(`{"allowed":true}`) })
	if _, err := limits.NewClient(nc).Consume(t.Context(), limits.Per("k", 1, "1m")); err != nil {
		t.Error(err)
	}
}

// TestCallsReportWrongCredentials, since nats.Connect does not report them.
func TestCallsReportWrongCredentials(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t, func(o *server.Options) { o.JetStream, o.Username, o.Password = false, "u", "right" })
	tried := make(chan struct{}, 100)
	nc := testenv.Connect(t, s.ClientURL(), limits.Reconnect(), nats.UserInfo("u", "wrong"),
		nats.CustomReconnectDelay(func(int) time.Duration { tried <- struct{}{}; return 10 * time.Millisecond }))
	for range 4 { // nats.go would give up at the second refusal
		select {
		case <-tried:
		case <-time.After(time.Minute):
			t.Fatalf("not tried again: %v", nc.LastError())
		}
	}
	_, err := limits.NewClient(nc).Consume(t.Context(), limits.Per("k", 1, "1m"))
	if !errors.Is(err, nats.ErrDisconnected) || !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("refused: %v; want that it is the credentials", err)
	}
	c, request := limits.NewClient(nc, limits.Timeout(20*time.Millisecond)), limits.Per("k", 1, "1m")
	for name, call := range map[string]func() error{ // those that wait for the connection
		"record": func() error { _, err := c.Record(t.Context(), request); return err },
		"status": func() error { _, err := c.Status(t.Context(), "k"); return err },
		"watch":  func() error { _, err := c.Watch(t.Context()); return err },
	} {
		var err error
		for range 50 { // on a busy machine a call may end before it has the reason
			if err = call(); strings.Contains(fmt.Sprint(err), "Authorization Violation") {
				break
			}
		}
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer from "+s.ClientURL()+" (nats: Authorization Violation): ") {
			t.Errorf("%s: %v; want that it is the credentials", name, err)
		}
	}
}

// TestCallsNameTheServersThatDoNotAnswer, whatever the reason, and never a password.
func TestCallsNameTheServersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	m, url := serveMute(t, strings.TrimPrefix(natsURL, "nats://"))
	lost, again := make(chan struct{}, 1), make(chan time.Duration)
	nc, err := nats.Connect(strings.Replace(url, "//", "//u:secret@", 1), limits.Reconnect(), nats.Timeout(time.Minute),
		nats.CustomReconnectDelay(func(int) time.Duration { return <-again }),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { lost <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.setSilent(false); nc.Close(); close(again) }) // Close waits for the server
	c := limits.NewClient(nc, limits.Timeout(20*time.Millisecond))
	check := func(when string) (hangs bool) {
		for name, call := range map[string]func() error{
			"consume": func() error { _, err := c.Consume(t.Context(), limits.Per("k", 1, "1h")); return err },
			"status":  func() error { _, err := c.Status(t.Context(), "k"); return err },
			"watch":   func() error { _, err := c.Watch(t.Context()); return err },
		} {
			err := call()
			if err == nil || !strings.Contains(err.Error(), url) || strings.Contains(err.Error(), "secret") {
				t.Fatalf("%s, %s: %v; want that %s does not answer", name, when, err, url)
			}
			hangs = hangs || strings.Contains(err.Error(), "is stalled")
		}
		return hangs
	}
	m.setSilent(true)
	<-lost
	check("before it is tried again")
	again <- 0
	waitFor(t, func() bool { return check("while it says nothing") })
	check("a second later")
}

// TestReconnectBacksOff: an outage of half a second must not become one of two seconds, and many
// clients must not come back at once.
func TestReconnectBacksOff(t *testing.T) {
	t.Parallel()
	var o nats.Options
	if err := limits.Reconnect()(&o); err != nil {
		t.Fatal(err)
	}
	for attempt, most := range map[int]time.Duration{0: 50, 1: 50, 2: 100, 3: 200, 4: 400, 5: 800, 6: 2000, 1000: 2000} {
		seen := map[time.Duration]bool{}
		for range 100 {
			d := o.CustomReconnectDelayCB(attempt)
			if seen[d] = true; d < most*time.Millisecond/2 || d > most*time.Millisecond {
				t.Errorf("attempt %d after %v, want %d to %d ms", attempt, d, most/2, most)
			}
		}
		if len(seen) < 50 {
			t.Errorf("attempt %d: %d delays of 100 differ", attempt, len(seen))
		}
	}
}

// TestDocumentedCodeReconnectsForever: the examples and documents use Reconnect. With a connection
// that is closed after 60 attempts, or two refusals, nothing would be limited until somebody
// notices.
func TestDocumentedCodeReconnectsForever(t *testing.T) {
	connect, found := regexp.MustCompile(`nats\.Connect\(.*`), 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		test := strings.HasSuffix(path, "_test.go")
		example := strings.HasPrefix(path, "examples/") && !strings.HasPrefix(path, "examples/internal/") && !test ||
			test && strings.HasPrefix(entry.Name(), "example")
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".md") && !(example && strings.HasSuffix(path, ".go")) {
			return err
		}
		text, err := os.ReadFile(path)
		for _, line := range connect.FindAllString(string(text), -1) {
			found++
			if !strings.Contains(line, "limits.Reconnect()") {
				t.Errorf("%s: %s has no limits.Reconnect()", path, line)
			}
		}
		return err
	})
	if err != nil || found < 10 {
		t.Errorf("%d connections, %v", found, err)
	}
}
