package bus

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestStopWhileServerIsDownLeavesNoSubscriptions: nats.go subscribes again to what it drains and
// then forgets it, while the server would go on sending this worker its share of the requests.
func TestStopWhileServerIsDownLeavesNoSubscriptions(t *testing.T) {
	t.Parallel()
	server := testenv.NATSServer(t)
	s, _ := serve(t, &fakeEngine{submit: allowing}, func(c *ServiceConfig) { c.Conn = connect(t, server.URL) })
	server.Kill()
	waitFor(t, "the connection has ended", func() bool { return !s.cfg.Conn.IsConnected() })
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop(t.Context()) }()
	waitFor(t, "the stop has begun", s.current.Stopped)
	server.Start()
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if m, err := dial(t, server.URL).Request(limits.SubjectConsume, []byte(hot), patience); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("somebody is asked still: %v, %v", m, err)
	}
}

// TestAnUnfinishedStopTakesNoRequests: what arrives is left to nats.go, which knows which
// subscription it is for.
func TestAnUnfinishedStopTakesNoRequests(t *testing.T) {
	t.Parallel()
	s, nc := serve(t, &fakeEngine{submit: allowing})
	other, err := s.cfg.Conn.SubscribeSync(limits.SubjectConsume) // which the stop waits for
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if err := nc.PublishRequest(limits.SubjectConsume, "inbox", []byte(hot)); err != nil {
		t.Fatal(err)
	}
	if _, err := other.NextMsg(patience); err != nil {
		t.Errorf("it was taken: %v", err)
	}
}
