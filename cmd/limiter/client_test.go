package main

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/settings"
	"github.com/seed503877ad/limits/internal/testenv"
)

// serveNATS starts a server with one password.
func serveNATS(t *testing.T, port int, password string) *server.Server {
	t.Helper()
	return testenv.NATS(t, func(o *server.Options) { o.Port, o.JetStream, o.Username, o.Password = port, false, "u", password })
}

// TestClientReconnectsAfterAuthorizationErrors: a server that restarts may accept the user again only later.
func TestClientReconnectsAfterAuthorizationErrors(t *testing.T) {
	t.Parallel()
	s := serveNATS(t, server.RANDOM_PORT, "p")
	port := s.Addr().(*net.TCPAddr).Port
	refused, back, closed := make(chan struct{}, 1000), make(chan struct{}, 1), make(chan struct{}, 1)
	f := natsFlags{settings.NATS{NATSURL: "nats://u:p@" + s.Addr().String()}}
	nc, err := f.connect(&session{ctx: t.Context()}, "test", nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrAuthorization) {
				refused <- struct{}{}
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }), nats.ClosedHandler(func(*nats.Conn) { closed <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	wait := func(what string, signal <-chan struct{}) {
		t.Helper()
		select {
		case <-signal:
		case <-closed:
			t.Fatalf("%s: the connection was closed for good: %v", what, nc.LastError())
		case <-time.After(time.Minute):
			t.Fatalf("%s: nothing in a minute", what)
		}
	}
	s.Shutdown()
	s = serveNATS(t, port, "another")
	for range 3 {
		wait("refused", refused)
	}
	s.Shutdown()
	serveNATS(t, port, "p")
	wait("back", back)
}
