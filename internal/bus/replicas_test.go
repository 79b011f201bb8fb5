package bus

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits/internal/testenv"
)

// TestABacklogOfAReplicatedStreamIsTaken: more events wait than one pull brings. If messages of a
// pull were lost, they would come again only after [ackWait].
//
// It does not run in parallel, since three servers that wait for the processor take long to elect
// leaders.
func TestABacklogOfAReplicatedStreamIsTaken(t *testing.T) {
	nc := dial(t, testenv.NATSCluster(t)[0].ClientURL())
	js := testenv.JetStream(t, nc, jetstream.WithDefaultTimeout(time.Minute))
	cfg := eventStream()
	cfg.Replicas = 3
	made(t, func() error {
		_, err := js.CreateStream(t.Context(), cfg)
		return err
	})
	const total = 1000
	for n := range total {
		e := exceeded(n)
		if _, err := js.PublishMsgAsync(eventMsg(t, &e)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		t.Fatal("the events were not stored in a minute")
	}
	k := newTaker()
	began := time.Now()
	consume(t, nc, k)
	k.wait(t, total, 0)
	if took := time.Since(began); took >= ackWait {
		t.Errorf("%d events took %s", total, took)
	}
}
