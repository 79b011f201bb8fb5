package bus

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestConnectedAndBroadcastsDoNotWaitForNATSGo, over TCP, TLS or a websocket: nats.go holds its
// lock even while the server does not read. Broadcasts bypass nats.go if they can.
func TestConnectedAndBroadcastsDoNotWaitForNATSGo(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(nil) // its certificate is for 127.0.0.1
	defer web.Close()
	secure, certFile, _ := tlsConfig(t, web.Certificate().Raw, web.TLS.Certificates[0].PrivateKey)
	for name, c := range map[string]struct{ config, ca string }{
		"plain":            {},
		"TLS":              {secure, certFile},
		"websocket":        {`websocket { listen: "127.0.0.1:-1", no_tls: true }`, ""},
		"secure websocket": {`websocket { listen: "127.0.0.1:-1", ` + secure + ` }`, certFile},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.NATSConfig(t, c.config)
			url := server.ClientURL()
			if strings.Contains(name, "websocket") {
				url = server.WebsocketURL()
			}
			nc, err := Connect(t.Context(), ConnectConfig{URL: url, TLSCA: c.ca, Name: "x", Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			if !connected(nc) {
				t.Error("there is no connection")
			}
			if err := nc.ForceReconnect(); err != nil {
				t.Fatal(err)
			}
			waitFor(t, "the connection is made anew", func() bool { return nc.Stats().Reconnects == 1 && connected(nc) })
			forget, heard := NewForgets(nc, slog.New(slog.DiscardHandler)), make(chan engine.Forget, 1)
			if err := forget.Listen(func(what engine.Forget) { heard <- what }); err != nil {
				t.Fatal(err)
			}
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			before, what := nc.Stats().OutMsgs, engine.Forget{Key: strings.Repeat("k", smallAnswer/2)}
			forget.Send(what)
			if got := <-heard; got != what {
				t.Errorf("%+v", got)
			}
			if sent := nc.Stats().OutMsgs - before; (sent == 1) != strings.Contains(name, "websocket") {
				t.Errorf("nats.go sent %d messages", sent)
			}
			server.Shutdown()
			waitFor(t, "the connection has ended", func() bool { return dialerOf(nc).upConn() == nil })
		})
	}
}

// greet accepts a connection as a server does, and returns what the client sends.
func greet(c net.Conn) (lines *bufio.Scanner, ok bool) {
	_, _ = fmt.Fprint(c, `INFO {"server_id":"x","version":"2.11.0","proto":1,"max_payload":1048576}`+"\r\n")
	_ = c.SetReadDeadline(time.Now().Add(time.Second)) // nats.go may have given it up, without a word
	for lines = bufio.NewScanner(c); lines.Scan(); {
		if lines.Text() == "PING" {
			_, _ = fmt.Fprint(c, "PONG\r\n")
			return lines, c.SetReadDeadline(time.Time{}) == nil
		}
	}
	return lines, false
}

// TestSilentServerDoesNotBlockCallers: nats.go holds its lock until it gives the server up, and a
// broadcast is sent while the store's turn is held.
func TestSilentServerDoesNotBlockCallers(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 10)
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			accepted <- c
		}
	}()
	first := make(chan net.Conn, 1)
	go func() {
		c := <-accepted
		greet(c)
		first <- c
	}()
	nc := connect(t, "nats://"+l.Addr().String())
	forget := NewForgets(nc, slog.New(slog.DiscardHandler))
	_ = (<-first).Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var lines *bufio.Scanner
	for tries, ok := 0, false; !ok; tries++ {
		c := <-accepted // so the lock is held
		defer c.Close()
		forget.Send(engine.Forget{Key: "k"})
		if err := Healthy(ctx, nc); err == nil {
			t.Error("a connection that is not made is healthy")
		}
		if lines, ok = greet(c); !ok && tries == 3 { // a busy machine may be late for once
			t.Fatal("each time nats.go had given the server up before somebody ceased to wait for it")
		}
	}
	waitFor(t, "the connection is made", func() bool { return connected(nc) })
	forget.Send(engine.Forget{Key: "k"})
	for told := false; !told; told = strings.HasPrefix(lines.Text(), "PUB "+subjectForget) {
		if !lines.Scan() {
			t.Fatalf("nothing is told: %v", lines.Err())
		}
	}
}
