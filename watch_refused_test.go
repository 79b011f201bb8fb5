package limits_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// listening are the options of a NATS server whose user u may subscribe to these subjects.
func listening(port int, subjects ...string) *server.Options {
	return &server.Options{Host: "127.0.0.1", Port: port, NoSigs: true, NoLog: true, Users: []*server.User{{
		Username: "u", Password: "p", Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Allow: subjects}}}}}
}

func serve(t *testing.T, o *server.Options) *server.Server {
	t.Helper()
	return testenv.NATS(t, func(all *server.Options) { *all = *o })
}

// watched starts a watch and returns a channel with the error with which its sequence ends.
func watched(t *testing.T, c *limits.Client, types ...string) <-chan error {
	t.Helper()
	events, err := c.Watch(t.Context(), types...)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		var last error
		for _, last = range events {
		}
		ended <- last
	}()
	return ended
}

// wantRefused waits for the end of a watch that the server has refused.
func wantRefused(t *testing.T, ended <-chan error, eventType string) {
	t.Helper()
	select {
	case err := <-ended:
		if !errors.Is(err, nats.ErrPermissionViolation) || !strings.HasPrefix(err.Error(), "watch "+eventType+": ") ||
			!strings.Contains(err.Error(), `Subscription to "`+eventType+`"`) {
			t.Errorf("a watch that the server has refused ended with %v, want that %s is refused", err, eventType)
		}
	case <-time.After(time.Minute):
		t.Errorf("the watch of %s does not end", eventType)
	}
}

// TestWatchEndsWhenPermissionIsLost, each of several on one connection, and no other.
func TestWatchEndsWhenPermissionIsLost(t *testing.T) {
	t.Parallel()
	s := serve(t, listening(server.RANDOM_PORT, "limits.>", "alerts.>"))
	nc := testenv.Connect(t, s.ClientURL(), nats.UserInfo("u", "p"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	c := patient(nc)
	exceeded, alerts, warnings := watched(t, c), watched(t, c, "alerts.*"), watched(t, c, limits.EventWarning)
	if err := s.ReloadOptions(listening(server.RANDOM_PORT, "limits.warning")); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, exceeded, limits.EventExceeded)
	wantRefused(t, alerts, "alerts.*")
	if err := s.ReloadOptions(listening(server.RANDOM_PORT, "alerts.>")); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, warnings, limits.EventWarning)
	waitFor(t, func() bool { return nc.NumSubscriptions() == 0 })
}

// TestWatchEndsIfAnotherServerRefusesIt: nats.go restores a connection with its subscriptions.
func TestWatchEndsIfAnotherServerRefusesIt(t *testing.T) {
	t.Parallel()
	was := serve(t, listening(server.RANDOM_PORT, "limits.>"))
	nc := testenv.Connect(t, was.ClientURL(), limits.Reconnect(), nats.UserInfo("u", "p"),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	ended := watched(t, patient(nc))
	port := was.Addr().(*net.TCPAddr).Port
	was.Shutdown()
	was.WaitForShutdown()
	serve(t, listening(port, "limits.warning"))
	wantRefused(t, ended, limits.EventExceeded)
}
