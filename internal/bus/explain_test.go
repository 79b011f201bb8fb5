package bus

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/testenv"
)

// withinASecond bounds a call that is never answered.
func withinASecond(t *testing.T, act func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return act(ctx)
}

// breakStream creates a stream and removes its folder from under the server, which then does not
// answer publishers, as when the disk is full.
func breakStream(t *testing.T, s *server.Server, nc *nats.Conn, cfg jetstream.StreamConfig) {
	t.Helper()
	js := testenv.JetStream(t, nc)
	if _, err := ensureStream(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	messages := filepath.Join(s.StoreDir(), "$G", "streams", cfg.Name, "msgs")
	if err := os.Rename(messages, messages+".gone"); err != nil {
		t.Fatal(err)
	}
	before, _ := healthErrors(s)
	for range 200 { // until the server needs another file
		_ = withinASecond(t, func(ctx context.Context) error {
			_, err := js.Publish(ctx, cfg.Subjects[0], make([]byte, maxMessage-1000))
			return err
		})
		if now, _ := healthErrors(s); len(now) > len(before) {
			return
		}
	}
	t.Fatal("the server acknowledges what it cannot write")
}

// TestErrorsOfUnwritableServerAreExplained: otherwise the log would show a deadline alone.
func TestErrorsOfUnwritableServerAreExplained(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	nc := dial(t, s.ClientURL())
	breakStream(t, s, nc, eventStream())
	breakStream(t, s, nc, alertStream())
	relay, err := NewRelay(RelayConfig{Conn: nc, Outbox: &fakeOutbox{}, Logger: slog.New(slog.DiscardHandler),
		Origin: Origin{"https://limits.example.com", "http://h/schemas"}})
	if err != nil {
		t.Fatal(err)
	}
	channel := alertEvents(t, nc)
	for want, publish := range map[string]func(ctx context.Context) error{
		"publish event id-1: ": func(ctx context.Context) error {
			_, err := relay.publish(ctx, []engine.Event{exceeded(1)})
			return err
		},
		"publish report of 2026-05-17: ": func(ctx context.Context) error {
			return PublishReport(ctx, nc, Origin{Source: "urn:test", SchemaBase: "http://h/schemas"}, &limits.Report{Date: "2026-05-17"}, time.Now(), slog.New(slog.DiscardHandler))
		},
		"publish event a to alerts.test: ": func(ctx context.Context) error {
			return channel.Send(ctx, &alerts.Message{ID: "a", Kind: alerts.KindTest, Time: 1, Data: json.RawMessage(`{}`)})
		},
	} {
		err := withinASecond(t, publish)
		if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "whether its disk is full") {
			t.Errorf("the error is %v, want %s…", err, want)
		}
	}
}

// TestErrorWithoutAnInboxNamesItsSetting: decisions go on without one, so a worker is ready, but JetStream's answers do not come.
func TestErrorWithoutAnInboxNamesItsSetting(t *testing.T) {
	t.Parallel()
	s := testenv.NATSConfig(t, `jetstream {}
		authorization { users: [{ user: w, password: p, permissions: { subscribe: { deny: ["_INBOX.>"] } } }] }`)
	nc := dial(t, "nats://w:p@"+s.Addr().String())
	err := withinASecond(t, func(ctx context.Context) error {
		_, err := ensureStream(ctx, testenv.JetStream(t, nc), eventStream())
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "--nats-inbox-prefix") {
		t.Error(err)
	}
}
