package bus

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestServerLimitsAreKept: a server may allow less than the streams and the consumer are made with, and than a pull asks for.
func TestServerLimitsAreKept(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATSConfig(t, `jetstream { limits { max_request_batch: 100, max_ack_pending: 500, duplicate_window: "1m" } }`).ClientURL())
	k := newTaker()
	consume(t, nc, k)
	js := stream(t, nc)
	publishEvents(t, js, 0, 150)
	k.wait(t, 150, 0)
	if got := settled(t, js).Config; got.MaxAckPending != 500 || got.MaxRequestBatch != 100 {
		t.Errorf("max_ack_pending %d, max_batch %d", got.MaxAckPending, got.MaxRequestBatch)
	}
	read := 0
	if _, err := ReadHistory(t.Context(), HistoryConfig{Conn: nc, Since: time.UnixMilli(1), Max: 1000}, func(alerts.Event) bool { read++; return true }); err != nil || read != 150 {
		t.Errorf("a preview reads %d events: %v", read, err)
	}
	if _, err := ensureStream(t.Context(), js, alertStream()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{limits.EventStream, limits.AlertStream} {
		s, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.CachedInfo().Config.Duplicates; got != time.Minute {
			t.Errorf("%s drops repeats of %s, want of a minute", name, got)
		}
	}
}

// TestConsumerLimitsAreKept, which an operator may lower at any time.
func TestConsumerLimitsAreKept(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js := stream(t, nc)
	k := newTaker()
	cfg := jetstream.ConsumerConfig{Durable: consumerName, AckPolicy: jetstream.AckExplicitPolicy, MaxRequestBatch: 3, MaxRequestExpires: 20 * time.Millisecond}
	if _, err := js.CreateConsumer(t.Context(), limits.EventStream, cfg); err != nil {
		t.Fatal(err)
	}
	consume(t, nc, k)
	publishEvents(t, js, 0, 10)
	k.wait(t, 10, 0)
	cfg.MaxRequestBatch = 1
	if _, err := js.UpdateConsumer(t.Context(), limits.EventStream, cfg); err != nil {
		t.Fatal(err)
	}
	publishEvents(t, js, 10, 15)
	k.wait(t, 15, 0)
}
