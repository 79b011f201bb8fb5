package bus

import (
	"errors"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestStalledConsumerIsNotCaughtUp: otherwise alerts would resolve while their cause goes on.
func TestStalledConsumerIsNotCaughtUp(t *testing.T) {
	t.Parallel()
	l := newSmallStream(t)
	l.publish(3)
	l.pass(3, 0)
	l.pass(3, 0)
	before := l.c.CaughtUp()
	if before.IsZero() || l.pending != 0 {
		t.Fatalf("caught up at %s, and %d pending", before, l.pending)
	}
	l.pause(time.Now().Add(time.Hour))
	l.publish(2)
	for range 3 {
		l.c.idle.askedAt = time.Time{}
		l.pass(3, 0)
	}
	if l.pending != 2 || !l.c.CaughtUp().Equal(before) {
		t.Errorf("%d pending, want 2; caught up at %s, want %s as before", l.pending, l.c.CaughtUp(), before)
	}
	l.lines.Reset()
	l.pass(3, 0) // too soon to ask again
	if l.pending != 2 || l.lines.Len() > 0 {
		t.Errorf("%d pending; %s", l.pending, l.lines.String())
	}
	l.pause(time.Time{})
	for l.c.CaughtUp().Equal(before) {
		l.c.idle.askedAt = time.Time{}
		if err := l.c.pass(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.k.events) != 5 || l.pending != 0 {
		t.Errorf("%d taken, %d pending; want 5, 0", len(l.k.events), l.pending)
	}
	if said := l.lines.String(); strings.Count(said, "delivers events again") != 1 {
		t.Errorf("said %q", said)
	}
}

// TestReturnedEventsDoNotCountAsTaken: they wait in the stream although none of them counts as
// pending.
func TestReturnedEventsDoNotCountAsTaken(t *testing.T) {
	t.Parallel()
	l := newSmallStream(t)
	l.publish(3)
	l.k.refuse = func([]alerts.Event) error { return errors.New("away") }
	if err := l.c.pass(t.Context()); err == nil {
		t.Fatal("a pass without a store")
	}
	l.pause(time.Now().Add(time.Hour))
	l.k.refuse = nil
	for range 2 {
		l.c.idle.askedAt = time.Time{}
		l.pass(0, 0)
	}
	if at := l.c.CaughtUp(); at.UnixMilli() != 0 {
		t.Errorf("caught up at %s with three events to come again", at)
	}
	if said := l.lines.String(); strings.Count(said, "nats consumer resume LIMITS alerter") != 1 {
		t.Errorf("said %q", said)
	}
	l.pause(time.Time{})
	waitFor(t, "all are taken", func() bool {
		l.c.idle.askedAt = time.Time{}
		if err := l.c.pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		return l.c.CaughtUp().UnixMilli() != 0
	})
	if len(l.k.events) != 3 {
		t.Errorf("%d taken, want 3", len(l.k.events))
	}
}

// TestConsumerWithoutPullPermissionIsNotCaughtUp: the log says which permission is missing.
func TestConsumerWithoutPullPermissionIsNotCaughtUp(t *testing.T) {
	t.Parallel()
	const pull = "$JS.API.CONSUMER.MSG.NEXT.LIMITS.alerter"
	server := testenv.NATS(t, func(o *natsserver.Options) {
		o.Users = []*natsserver.User{{Username: "all"}, {Username: "some",
			Permissions: &natsserver.Permissions{Publish: &natsserver.SubjectPermission{Deny: []string{pull}}}}}
	})
	l := &smallStream{t: t, k: newTaker(), nc: dial(t, strings.Replace(server.ClientURL(), "://", "://some:@", 1))}
	l.js = stream(t, dial(t, strings.Replace(server.ClientURL(), "://", "://all:@", 1)))
	l.restart()
	l.publish(2)
	for range 3 {
		l.c.idle.askedAt = time.Time{}
		l.pass(0, 0)
	}
	if at := l.c.CaughtUp(); at.UnixMilli() != 0 || l.pending != 2 {
		t.Errorf("caught up at %s, and %d pending; want never, and 2", at, l.pending)
	}
	if said := l.lines.String(); strings.Count(said, pull) != 1 {
		t.Errorf("said %q", said)
	}
}

// TestStalledConsumerIsLoggedOnce: the log says once what to do about it.
func TestStalledConsumerIsLoggedOnce(t *testing.T) {
	t.Parallel()
	l := newSmallStream(t)
	l.pass(0, 0)
	l.pause(time.Now().Add(time.Hour))
	l.publish(1)
	for range 3 {
		l.c.idle.askedAt = time.Time{}
		l.pass(0, 0)
	}
	if said := l.lines.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "nats consumer resume LIMITS alerter") {
		t.Errorf("said %q", said)
	}
	// What is full hands out nothing either.
	l.pause(time.Time{})
	cfg := consumerConfig()
	cfg.MaxAckPending = 1
	made(t, func() error {
		_, err := l.js.UpdateConsumer(t.Context(), limits.EventStream, cfg)
		return err
	})
	other, err := l.js.Consumer(t.Context(), limits.EventStream, consumerName)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Next(jetstream.FetchMaxWait(patience)); err != nil {
		t.Fatal(err)
	}
	l.publish(1)
	l.lines.Reset()
	l.c.idle = idlePulls{}
	for range 3 {
		l.c.idle.askedAt = time.Time{}
		l.pass(0, 0)
	}
	if said := l.lines.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "as many unacknowledged messages") {
		t.Errorf("said %q", said)
	}
}

func (l *smallStream) pause(until time.Time) {
	l.t.Helper()
	if _, err := l.js.PauseConsumer(l.t.Context(), limits.EventStream, consumerName, until); err != nil {
		l.t.Fatal(err)
	}
}
