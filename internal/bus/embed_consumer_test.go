package bus

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
)

// TestConsumerWithDamagedStateBeginsAnew: a write that was cut off leaves a file of which the server
// can make no consumer, neither at its start nor when the alerter asks for it. What an operator has
// set stays, and so does the file.
func TestConsumerWithDamagedStateBeginsAnew(t *testing.T) {
	t.Parallel()
	var log logBuffer
	cfg := EmbedConfig{Listen: "127.0.0.1:0", StoreDir: filepath.Join(t.TempDir(), "nats"), Logger: slog.New(slog.NewTextHandler(&log, nil))}
	start := func() (*Embedded, jetstream.JetStream) {
		t.Helper()
		e, err := Embed(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return e, stream(t, dial(t, e.URL()))
	}
	take := func(js jetstream.JetStream, events int) {
		t.Helper()
		k := newTaker()
		stop := consume(t, js.Conn(), k)
		k.wait(t, events, 0)
		settled(t, js)
		stop()
	}
	e, js := start()
	ours := consumerConfig()
	ours.MaxAckPending = 77
	if _, err := js.CreateConsumer(t.Context(), limits.EventStream, ours); err != nil {
		t.Fatal(err)
	}
	publishEvents(t, js, 0, 3)
	take(js, 3)
	e.Shutdown()
	state := filepath.Join(cfg.StoreDir, "jetstream", "$G", "streams", limits.EventStream, "obs", consumerName, "o.dat")
	for range 2 { // it may happen again
		if err := os.Truncate(state, 5); err != nil {
			t.Fatal(err)
		}
		e, js = start()
		take(js, 3) // once more, since nobody knows what was taken
		c, err := js.Consumer(t.Context(), limits.EventStream, consumerName)
		if err != nil || c.CachedInfo().Config.MaxAckPending != 77 {
			t.Errorf("%v; the consumer is not as it was set: %+v", err, c)
		}
		e.Shutdown()
	}
	if kept, err := os.ReadFile(state + ".damaged"); err != nil || len(kept) != 5 {
		t.Errorf("the damaged file has %d bytes: %v", len(kept), err)
	}
	if n := strings.Count(log.String(), "events come again"); n != 2 || !strings.Contains(log.String(), state) {
		t.Errorf("%d lines tell of it, want 2:\n%s", n, &log)
	}
	log.text.Reset()
	e, _ = start()
	e.Shutdown()
	if log.String() != "" {
		t.Errorf("nothing is damaged any more, and the log says\n%s", &log)
	}
}

// TestConsumerWithoutStoreErrorSaysWhatToDo, for servers that are not embedded.
func TestConsumerWithoutStoreErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	err := wrapConsumer("create", &jetstream.APIError{Code: 500, ErrorCode: errConsumerStore, Description: "error creating store for consumer"})
	for _, want := range []string{"create consumer alerter of stream LIMITS: ", "err_code=10012", "jetstream/ACCOUNT/streams/LIMITS/obs/alerter"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s in it", err, want)
		}
	}
}
