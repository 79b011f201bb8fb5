package deliver_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/alerts/deliver"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience bounds every wait; it is long because a busy machine must not fail these tests.
const patience = 90 * time.Second

// receiver takes messages and keeps how often each came and was accepted.
type receiver struct {
	mu             sync.Mutex
	came, accepted map[string]int
	// judge says what becomes of the n-th try of a message.
	judge func(id string, n int) error
}

func (r *receiver) Send(_ context.Context, m *alerts.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.came[m.ID]++
	if err := r.judge(m.ID, r.came[m.ID]); err != nil {
		return err
	}
	r.accepted[m.ID]++
	return nil
}

func newReceiver(judge func(id string, n int) error) *receiver {
	return &receiver{came: map[string]int{}, accepted: map[string]int{}, judge: judge}
}

// ends counts how deliveries ended.
type ends struct {
	deliver.Observer
	left atomic.Int64
	all  chan struct{}
}

func newEnds(n int) *ends {
	e := &ends{all: make(chan struct{})}
	e.left.Store(int64(n))
	return e
}

func (e *ends) DeliveryTried(_, outcome string, _ time.Duration) {
	switch deliver.Outcome(outcome) {
	case deliver.Sent, deliver.Dead, deliver.Disabled:
		if e.left.Add(-1) == 0 {
			close(e.all)
		}
	}
}

func (e *ends) wait(t *testing.T) {
	t.Helper()
	select {
	case <-e.all:
	case <-time.After(patience):
		t.Fatalf("%d deliveries have not ended after %s", e.left.Load(), patience)
	}
}

// forgetful is a store that fails now and then to keep how tries ended.
type forgetful struct {
	alerts.Store
	writes atomic.Int64
}

func (f *forgetful) SaveResults(ctx context.Context, all []alerts.DeliveryResult) error {
	if f.writes.Add(1)%3 == 1 {
		return errors.New("the connection broke")
	}
	return f.Store.SaveResults(ctx, all)
}

// runSender runs a sender until the test stops it.
func runSender(t *testing.T, o deliver.Outbox, e *ends, all ...deliver.Named) (stop func()) {
	t.Helper()
	s, err := deliver.NewSender(deliver.Config{Outbox: o, Channels: func() []deliver.Named { return all }, Observer: e,
		Logger: slog.New(slog.DiscardHandler), Poll: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(stop)
	return stop
}

// put adds deliveries of n messages to the outbox for a channel, and returns the ids of the messages.
func put(t *testing.T, s alerts.Store, channel string, n int) (ids []string) {
	t.Helper()
	for i := range n {
		id := fmt.Sprintf("%s-%03d.raised", channel, i)
		if err := s.AddDelivery(t.Context(), alerts.NewDelivery(alerts.Message{ID: id, Kind: alerts.KindRaised}, channel)); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// holdEnded checks that nothing waits, and that each delivery has the wanted state.
func holdEnded(t *testing.T, s alerts.Store, ids []string, want alerts.DeliveryState) {
	t.Helper()
	for _, id := range ids {
		all, err := s.DeliveriesOf(t.Context(), strings.TrimSuffix(id, ".raised"), 10)
		if err != nil || len(all) != 1 || all[0].State != want {
			t.Errorf("%s: %+v, %v; want it %s", id, all, err, want)
		}
	}
	if waiting, err := s.WaitingDeliveries(t.Context()); err != nil || len(waiting) != 0 {
		t.Errorf("left waiting: %v, %v", waiting, err)
	}
}

// TestSendersOverStores has two processes on one store send over a channel that fails now and then, while the store fails to
// keep how tries ended, and over one whose target is gone.
func TestSendersOverStores(t *testing.T) {
	t.Parallel()
	eachstore.Run(t, func(t *testing.T, s alerts.Store) {
		const many = 60
		fails := newReceiver(func(id string, n int) error {
			if n == 1 && strings.HasSuffix(id, "7.raised") { // tried again after 5 s
				return errors.New("500")
			}
			return nil
		})
		gone := newReceiver(func(string, int) error {
			return &alerts.Refusal{Err: errors.New("410"), Gone: true}
		})
		sent, dead := put(t, s, "fails", many), put(t, s, "gone", many)
		e := newEnds(2 * many)
		channels := []deliver.Named{{Name: "fails", Target: "x", Channel: fails}, {Name: "gone", Target: "y", Channel: gone}}
		one, two := runSender(t, s, e, channels...), runSender(t, &forgetful{Store: s}, e, channels...)
		e.wait(t)
		one()
		two()
		holdEnded(t, s, sent, alerts.DeliverySent)
		holdEnded(t, s, dead, alerts.DeliveryDead)
		for _, id := range sent {
			if fails.accepted[id] != 1 {
				t.Errorf("%s was accepted %d times", id, fails.accepted[id])
			}
		}
		if len(fails.came) != many || len(gone.accepted) != 0 {
			t.Errorf("%d ids came, want %d; %d accepted by a target that is gone", len(fails.came), many, len(gone.accepted))
		}
		if disabled, err := s.DisabledChannels(t.Context()); err != nil || len(disabled) != 1 || disabled[0].Channel != "gone" {
			t.Errorf("disabled: %+v, %v", disabled, err)
		}
	})
}

// TestDeliveriesOfDeadProcessAreSent once their claim is over, under the same ids.
func TestDeliveriesOfDeadProcessAreSent(t *testing.T) {
	t.Parallel()
	eachstore.Run(t, func(t *testing.T, s alerts.Store) {
		ids := put(t, s, "a", 5)
		claimed, err := s.DueDeliveries(t.Context(), "a", 3, time.Second)
		if err != nil || len(claimed) != 3 {
			t.Fatalf("%+v, %v", claimed, err)
		}
		all := newReceiver(func(string, int) error { return nil })
		e := newEnds(5)
		stop := runSender(t, s, e, deliver.Named{Name: "a", Target: "x", Channel: all})
		e.wait(t)
		stop()
		holdEnded(t, s, ids, alerts.DeliverySent)
		// The process that died was only slow: its result comes too late.
		late := alerts.DeliveryResult{ID: claimed[0].ID, State: alerts.DeliveryWaiting, Error: "late", Counts: true}
		if err := s.SaveResults(t.Context(), []alerts.DeliveryResult{late}); err != nil {
			t.Fatal(err)
		}
		holdEnded(t, s, ids, alerts.DeliverySent)
		for _, id := range ids {
			if all.accepted[id] != 1 {
				t.Errorf("%s was accepted %d times", id, all.accepted[id])
			}
		}
	})
}
