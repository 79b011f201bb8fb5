package e2e

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/postgres"
	"github.com/seed503877ad/limits/internal/testenv"
)

type between struct {
	engine.Store
	f func(snap engine.Snapshot)
}

func (s *between) Update(ctx context.Context, b engine.Batch, decide func(engine.Snapshot) engine.Changes) error {
	return s.Store.Update(ctx, b, func(snap engine.Snapshot) engine.Changes {
		c := decide(snap)
		if s.f != nil && !c.Unsure {
			s.f(snap)
		}
		return c
	})
}

func TestARefundIsNeverDecidedWithoutTheLock(t *testing.T) {
	url := testenv.Postgres(t, postgres.Migrate)
	engines := make([]*engine.Engine, 2)
	stores := make([]*between, 2)
	for i := range engines {
		store, err := postgres.Open(t.Context(), postgres.Config{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		stores[i] = &between{Store: store}
		engines[i], err = engine.New(t.Context(), engine.Config{Store: stores[i], NewID: rand.Text, Broadcast: func(f engine.Forget) {
			for _, e := range engines {
				e.Forget(f)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { engines[i].Close(context.Background()) })
	}
	l := engine.Limit{CounterID: engine.CounterID{Key: "k", Name: "w"}, Limit: 5, Window: parseWindow(t, "366d"), Threshold: -1}
	do := func(i int, v engine.Verb) engine.Decision {
		d, err := engines[i].Do(t.Context(), &engine.Request{Verb: v, Limits: []engine.Limit{l}, Cost: 1})
		if err != nil || d.Degraded {
			t.Fatal(d, err)
		}
		return d
	}
	if d := do(1, engine.Consume); !d.Allowed {
		t.Fatal("first")
	}
	for range 4 {
		do(0, engine.Consume)
	}
	do(1, engine.Consume) // denied, raises the event
	do(0, engine.Refund)
	do(0, engine.Consume) // worker 0 wrote last
	optimistic := false
	stores[0].f = func(snap engine.Snapshot) {
		if snap.Until > 0 {
			optimistic = true
			// the other worker looks between the decision and the write
			done := make(chan engine.Decision)
			go func() { done <- do(1, engine.Consume) }()
			select {
			case d := <-done:
				t.Log("other worker between:", d.Allowed)
			case <-time.After(500 * time.Millisecond):
			}
		}
	}
	do(0, engine.Refund)
	stores[0].f = nil
	t.Log("decided without lock:", optimistic)
	if d := do(1, engine.Consume); !d.Allowed {
		t.Errorf("denied after the refund was answered: %+v", d)
	}
}
