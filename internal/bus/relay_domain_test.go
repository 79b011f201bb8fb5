package bus

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestLeafWithoutJetStreamNeedsADomain: a leaf node asks for the JetStream of a hub with a domain only if its configuration
// names that domain, and without that the error says so.
func TestLeafWithoutJetStreamNeedsADomain(t *testing.T) {
	t.Parallel()
	hub := testenv.NATSConfig(t, "server_name: hub\njetstream { domain: hub }\nleafnodes { listen: \"127.0.0.1:-1\" }\n")
	v, err := hub.Varz(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf := func(config string) *nats.Conn {
		config += fmt.Sprintf("\nleafnodes { remotes: [{ url: \"nats-leaf://127.0.0.1:%d\" }] }\n", v.LeafNode.Port)
		return dial(t, testenv.NATSConfig(t, config).ClientURL())
	}
	box, log := &fakeOutbox{}, &logBuffer{}
	box.add(exceeded(1))
	runRelay(t, RelayConfig{Conn: leaf("server_name: without"), Outbox: box, Logger: slog.New(slog.NewTextHandler(log, nil))})
	waitFor(t, "the relay fails", func() bool { return strings.Contains(log.String(), "events cannot be published") })
	if said := log.String(); !strings.Contains(said, "default_js_domain") {
		t.Errorf("said %q", said)
	}
	runRelay(t, RelayConfig{Conn: leaf("server_name: with\ndefault_js_domain: { \"$G\": hub }"), Outbox: box})
	drained(t, box)
	stored(t, dial(t, hub.ClientURL()), 1)
}

// TestEventsStoredByAnotherDomainFail: if two domains are joined by a leaf node, the stream of either may acknowledge an event.
func TestEventsStoredByAnotherDomainFail(t *testing.T) {
	t.Parallel()
	config := "server_name: %s\njetstream { domain: %[1]s }\nleafnodes { %s }\n"
	hub := testenv.NATSConfig(t, fmt.Sprintf(config, "HUB", `listen: "127.0.0.1:-1"`))
	v, err := hub.Varz(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf := testenv.NATSConfig(t, fmt.Sprintf(config, "LEAF", fmt.Sprintf(`remotes: [{ url: "nats-leaf://127.0.0.1:%d" }]`, v.LeafNode.Port)))
	nc := dial(t, leaf.ClientURL())
	box, log := &fakeOutbox{}, &logBuffer{}
	runRelay(t, RelayConfig{Conn: nc, Outbox: box, Logger: slog.New(slog.NewTextHandler(log, nil))})
	ofLeaf := stream(t, nc)
	box.add(exceeded(1))
	drained(t, box)
	ofHub := stream(t, dial(t, hub.ClientURL()))
	waitFor(t, "the hub gets what the leaf publishes", func() bool {
		if err := nc.Publish(limits.EventReport, nil); err != nil {
			t.Fatal(err)
		}
		s, err := ofHub.Stream(t.Context(), limits.EventStream)
		return err == nil && s.CachedInfo().State.Msgs > 0
	})
	if err := ofLeaf.DeleteStream(t.Context(), limits.EventStream); err != nil {
		t.Fatal(err)
	}
	box.add(exceeded(2))
	drained(t, box)
	if said := log.String(); !strings.Contains(said, `JetStream domain \"HUB\" has acknowledged it, and \"LEAF\" others before`) {
		t.Errorf("said %q", said)
	}
	if _, err := ofLeaf.Stream(t.Context(), limits.EventStream); err != nil {
		t.Errorf("the stream was not made again: %v", err)
	}
}
