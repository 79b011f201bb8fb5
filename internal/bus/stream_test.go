package bus

import (
	"strings"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestAStreamInTheWayIsNamed: with subjects of another one a stream cannot be made, or given them.
func TestAStreamInTheWayIsNamed(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	add := func(name string, subjects ...string) {
		t.Helper()
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: subjects}); err != nil {
			t.Fatal(err)
		}
	}
	named := func() {
		t.Helper()
		if err := ensureStream(t.Context(), js, eventStream()); err == nil || !strings.Contains(err.Error(), "nats stream ls --subject SUBJECT") {
			t.Errorf("%v", err)
		}
	}
	add("OTHER", limits.EventExceeded)
	named()
	add(limits.EventStream, limits.EventWarning)
	named()
}

// TestAStreamThatAcknowledgesNothingIsNamed: the outbox would never empty, and the log would tell of a deadline alone.
func TestAStreamThatAcknowledgesNothingIsNamed(t *testing.T) {
	t.Parallel()
	js, err := jetstream.New(dial(t, testenv.NATS(t).ClientURL()))
	if err != nil {
		t.Fatal(err)
	}
	mute := eventStream()
	mute.NoAck = true
	if _, err := js.CreateStream(t.Context(), mute); err != nil {
		t.Fatal(err)
	}
	if err := ensureStream(t.Context(), js, eventStream()); err == nil || !strings.Contains(err.Error(), "no_ack") {
		t.Errorf("%v", err)
	}
}

// TestAStreamThatHasNoRoomIsNamed: a server takes for its streams three quarters of what is free on its disk, unless set,
// and reserves the whole of each.
func TestAStreamThatHasNoRoomIsNamed(t *testing.T) {
	t.Parallel()
	js, err := jetstream.New(dial(t, testenv.NATS(t, func(o *natsserver.Options) { o.JetStreamMaxStore = 512 << 20 }).ClientURL()))
	if err != nil {
		t.Fatal(err)
	}
	if err := ensureStream(t.Context(), js, alertStream()); err != nil {
		t.Fatal(err)
	}
	err = ensureStream(t.Context(), js, eventStream())
	for _, want := range []string{"create it", "1024 MiB", "max_file_store", "nats stream add LIMITS"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
}
