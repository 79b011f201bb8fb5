package limits

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// TestSlowGoroutinesDoNotRefuseCalls: in a busy process goroutines run late, and then no call is
// refused yet.
func TestSlowGoroutinesDoNotRefuseCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b blockingCalls
		late := func(d time.Duration) func() { return func() { time.Sleep(d) } }
		if !b.run(endedContext, late(abandonGrace/2)) {
			t.Error("a call is abandoned before its grace is over")
		}
		for range 1000 {
			if b.run(endedContext, late(stalledAfter)) {
				t.Fatal("waited for a call whose time is over")
			}
		}
		if b.stalled() {
			t.Error("late calls count as stuck")
		}
		time.Sleep(2 * stalledAfter) // each of the thousand began when the one before was abandoned
		if b.stalled() || b.abandoned.Load() != 0 || b.stuck.Load() != 0 {
			t.Errorf("all have returned, and %d are abandoned and %d stuck", b.abandoned.Load(), b.stuck.Load())
		}
		b.run(endedContext, late(10*stalledAfter))
		time.Sleep(2 * stalledAfter)
		if !b.stalled() {
			t.Error("a stuck call is not noticed")
		}
		time.Sleep(10 * stalledAfter)
		if b.stalled() || b.abandoned.Load() != 0 || b.stuck.Load() != 0 {
			t.Errorf("it has returned, and %d are abandoned and %d stuck", b.abandoned.Load(), b.stuck.Load())
		}
	})
}

func TestAbandonedCallsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b blockingCalls
		for range maxAbandoned {
			go b.run(endedContext, func() { time.Sleep(stalledAfter / 2) })
		}
		time.Sleep(stalledAfter / 4)
		if !b.full() {
			t.Errorf("%d calls are abandoned, and one more may run", b.abandoned.Load())
		}
		time.Sleep(stalledAfter / 2)
		if b.full() {
			t.Errorf("%d calls are abandoned, and all have returned", b.abandoned.Load())
		}
	})
}

// TestPanicReachesCaller: an HTTP server recovers panics of its handlers, but not those of other
// goroutines.
func TestPanicReachesCaller(t *testing.T) {
	t.Parallel()
	defer func() {
		text, _ := recover().(string)
		if !strings.HasPrefix(text, "out of order") || !strings.Contains(text, "blocking_test.go") {
			t.Errorf("recovered %q, want the panic and where it was", text)
		}
	}()
	new(blockingCalls).run(t.Context(), func() { panic("out of order") })
	t.Error("no panic")
}

func TestCallsWithNilConnectionFail(t *testing.T) {
	t.Parallel()
	c := NewClient(nil)
	for name, call := range map[string]func() error{
		"consume": func() error { _, err := c.Consume(t.Context(), Per("k", 1, "1m")); return err },
		"record":  func() error { _, err := c.Record(t.Context(), Per("k", 1, "1m")); return err },
		"wait":    func() error { _, err := c.Wait(t.Context(), Per("k", 1, "1m")); return err },
		"watch":   func() error { _, err := c.Watch(t.Context()); return err },
		"log":     func() error { return c.LogRequest(LogEntry{Key: "k", Endpoint: "/", Method: "GET", Status: 200}) },
	} {
		if err := call(); !errors.Is(err, nats.ErrInvalidConnection) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
