package channel

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
)

// pipes is a listener whose connections are in memory, so that they follow the test's clock.
type pipes struct {
	accepted chan net.Conn
	closed   context.Context
	close    context.CancelFunc
	dialed   []*mortal
}

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	p.accepted <- server
	m := &mortal{Conn: client}
	p.dialed = append(p.dialed, m)
	return m, nil
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepted:
		return c, nil
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.close(); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// mortal is a connection that can die silently: what is written is dropped.
type mortal struct {
	net.Conn
	dead atomic.Bool
}

func (m *mortal) Write(p []byte) (int, error) {
	if m.dead.Load() {
		return len(p), nil
	}
	return m.Conn.Write(p)
}

// TestDeadConnectionIsDropped: the attempt that finds it dead fails, and the next one uses another
// connection.
func TestDeadConnectionIsDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network := &pipes{accepted: make(chan net.Conn)}
		network.closed, network.close = context.WithCancel(t.Context())
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor != 2 {
				t.Errorf("%s", r.Proto)
			}
		}))
		_ = server.Listener.Close()
		server.Listener, server.EnableHTTP2 = network, true
		server.StartTLS()
		defer server.Close()

		cfg := config(t)
		cfg.Timeout = defaultTimeout
		cfg.RootCAs = server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
		maker, err := NewMaker(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer maker.Close()
		maker.transport.DialContext = network.dial
		c, err := maker.Make(hook("https://example.com"))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := c.Send(t.Context(), message()); err != nil {
				t.Fatal(err)
			}
		}
		network.dialed[0].dead.Store(true)
		wantError(t, c.Send(t.Context(), message()), "post to example.com: the connection was lost")
		if err := c.Send(t.Context(), message()); err != nil || len(network.dialed) != 2 {
			t.Errorf("%v, over connection %d", err, len(network.dialed))
		}
	})
}

// TestLongHeaderIsNoAnswer: a target could fill the memory with it.
func TestLongHeaderIsNoAnswer(t *testing.T) {
	t.Parallel()
	r := receive(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Long", strings.Repeat("x", 20<<10)) })
	wantError(t, send(t, config(t), hook(r.URL)), "no valid HTTP answer")
}

// TestConnectionsAreReused: as many as a webhook has deliveries under way.
func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	const parallel = 32
	var opened atomic.Int64
	arrived, answer := make(chan struct{}, parallel), make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		select {
		case <-answer:
		case <-time.After(patience):
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	c := made(t, config(t), hook(server.URL))
	for round := range 2 {
		var sends errgroup.Group
		for range parallel {
			sends.Go(func() error { return c.Send(t.Context(), message()) })
		}
		for range parallel { // all are under way at the same time
			select {
			case <-arrived:
			case <-time.After(patience):
				t.Fatal("not all are under way")
			}
		}
		for range parallel {
			answer <- struct{}{}
		}
		if err := sends.Wait(); err != nil {
			t.Fatal(err)
		}
		if n := opened.Load(); n != parallel {
			t.Fatalf("after round %d %d connections were opened, want %d", round+1, n, parallel)
		}
	}
}

// TestAnAttemptIsNoFlood: net/http tries again what a server of HTTP/2 says that it did not process, without a pause.
func TestAnAttemptIsNoFlood(t *testing.T) {
	t.Parallel()
	ca := httptest.NewTLSServer(nil)
	t.Cleanup(ca.Close)
	server, err := tls.Listen("tcp4", "127.0.0.1:0", &tls.Config{Certificates: ca.TLS.Certificates, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	var opened atomic.Int64
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			opened.Add(1)
			go func() {
				defer conn.Close()
				// SETTINGS, and GOAWAY with 0 as the last stream that was processed (RFC 9113, 6.5 and 6.8)
				_, _ = conn.Write([]byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x08\x07\x00\x00\x00\x00\x00" + strings.Repeat("\x00", 8)))
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
	cfg := config(t)
	cfg.RootCAs = ca.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	wantError(t, send(t, cfg, hook("https://"+server.Addr().String())), "it ended 3 connections without an answer")
	if n := opened.Load(); n > 20*maxConnections { // without the bound thousands
		t.Errorf("one attempt opened %d connections", n)
	}
}

// TestABusyTargetGetsEachMessageOnce, also one that takes a single stream of HTTP/2 at a time.
func TestABusyTargetGetsEachMessageOnce(t *testing.T) {
	t.Parallel()
	r := &receiver{}
	r.Server = httptest.NewUnstartedServer(r.keep(nil))
	r.EnableHTTP2, r.Config.HTTP2 = true, &http.HTTP2Config{MaxConcurrentStreams: 1}
	r.StartTLS()
	t.Cleanup(r.Close)
	cfg := config(t)
	cfg.RootCAs = r.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	c := made(t, cfg, hook(r.URL))
	const parallel = 40
	var sends errgroup.Group
	for range parallel {
		sends.Go(func() error { return c.Send(t.Context(), message()) })
	}
	if err := sends.Wait(); err != nil || r.count() != parallel {
		t.Errorf("%d of %d arrived: %v", r.count(), parallel, err)
	}
}
