package bus

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestAConsumerThatIsMissingWhenItIsAskedIsRecreated: whoever holds on to it would fail for ever. What asks it is not
// always a pull.
func TestAConsumerThatIsMissingWhenItIsAskedIsRecreated(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(c *Consumer) error{
		"for losses": func(c *Consumer) error {
			c.losses.checkedAt = time.Time{}
			return c.pass(t.Context())
		},
		"why it delivers nothing": func(c *Consumer) error {
			c.idle.askedAt = time.Time{}
			_, _, _, err := c.checkIdle(t.Context())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newSmallStream(t)
			l.publish(1)
			l.pass(1, 0)
			if err := l.js.DeleteConsumer(t.Context(), limits.EventStream, consumerName); err != nil {
				t.Fatal(err)
			}
			if err := ask(l.c); !errors.Is(err, jetstream.ErrConsumerNotFound) {
				t.Errorf("%v, want %v", err, jetstream.ErrConsumerNotFound)
			}
			l.publish(1)
			l.pass(2, 0)
		})
	}
}

// TestMissingStreamIsAFailureOfTheLossCheck: losses are not said to be none.
func TestMissingStreamIsAFailureOfTheLossCheck(t *testing.T) {
	t.Parallel()
	l := newSmallStream(t)
	l.publish(1)
	l.pass(1, 0)
	if err := l.js.DeleteStream(t.Context(), limits.EventStream); err != nil {
		t.Fatal(err)
	}
	l.c.losses.checkedAt = time.Time{}
	if err := l.c.pass(t.Context()); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("%v, want %v", err, jetstream.ErrStreamNotFound)
	}
}

// TestADisconnectedConsumerLooksAgain for the stream and its consumer when it is connected again: the server may have lost
// them.
func TestADisconnectedConsumerLooksAgain(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	l := &smallStream{t: t, nc: connect(t, server.ClientURL()), k: newTaker()}
	l.js = stream(t, l.nc)
	l.restart()
	l.publish(1)
	l.pass(1, 0)
	server.Shutdown()
	waitFor(t, "the connection is down", func() bool { return !connected(l.nc) })
	if err := l.c.pass(t.Context()); !errors.Is(err, nats.ErrDisconnected) {
		t.Errorf("%v, want %v", err, nats.ErrDisconnected)
	}
	if l.c.consumer != nil {
		t.Error("the consumer is not looked up again")
	}
}

// TestAPushConsumerIsNotTaken: the error says how to get another one.
func TestAPushConsumerIsNotTaken(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	l := &smallStream{t: t, nc: nc, js: stream(t, nc), k: newTaker()}
	_, err := l.js.CreatePushConsumer(t.Context(), limits.EventStream, jetstream.ConsumerConfig{Durable: consumerName,
		DeliverSubject: "elsewhere", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	l.restart()
	const want = "is a push consumer instead of a pull consumer; remove it and it is recreated: nats consumer rm LIMITS alerter"
	if err := l.c.pass(t.Context()); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want an error that ends with %q", err, want)
	}
	if err := l.js.DeleteConsumer(t.Context(), limits.EventStream, consumerName); err != nil {
		t.Fatal(err)
	}
	l.publish(1)
	l.pass(1, 0)
}
