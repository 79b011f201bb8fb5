package deliver_test

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/alerts/deliver"
)

// target is a channel of a test.
type target func(ctx context.Context, m *alerts.Message) error

func (f target) Send(ctx context.Context, m *alerts.Message) error { return f(ctx, m) }

// tries records when each message was tried.
type tries struct {
	mu sync.Mutex
	at map[string][]time.Time
}

func (s *tries) note(m *alerts.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = map[string][]time.Time{}
	}
	s.at[m.ID] = append(s.at[m.ID], time.Now())
}

func (s *tries) of(id string) []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.at[id])
}

func (s *tries) total() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.at {
		n += len(at)
	}
	return n
}

// counts is an observer.
type counts struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counts) DeliveryTried(channel, outcome string, _ time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[channel+" "+outcome]++
}

func (c *counts) of(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[key]
}

func (c *counts) want(t *testing.T, want map[string]int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !maps.Equal(c.n, want) {
		t.Errorf("observed %v, want %v", c.n, want)
	}
}

// channels are channels that can be replaced while a sender runs.
type channels struct {
	atomic.Pointer[[]deliver.Named]
}

func (c *channels) set(all ...deliver.Named) { c.Store(&all) }
func (c *channels) get() []deliver.Named     { return *c.Load() }

func named(name, at string, f target) deliver.Named {
	return deliver.Named{Name: name, Target: at, Channel: f}
}

// bench is a sender in a synctest bubble.
type bench struct {
	*deliver.Sender
	outbox   *memory
	channels channels
	seen     counts
	stop     func()
}

// start runs a sender until the test ends, or stop is called.
func start(t *testing.T, outbox *memory, all ...deliver.Named) *bench {
	t.Helper()
	b := &bench{outbox: outbox}
	b.channels.set(all...)
	s, err := deliver.NewSender(deliver.Config{Outbox: outbox, Channels: b.channels.get, Observer: &b.seen,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	b.Sender = s
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(b.stop)
	return b
}

// rest lets time pass in the bubble, and waits for everything that is due by then.
func rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
