package limits

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// TestAnActThatIsLateDoesNotHang: in a busy process goroutines run late, and then nothing is refused yet.
func TestAnActThatIsLateDoesNotHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a alone
		late := func(d time.Duration) func() { return func() { time.Sleep(d) } }
		if !a.aside(over, late(grace/2)) {
			t.Error("an act is left alone before its grace is over")
		}
		for range 1000 {
			if a.aside(over, late(hangsAfter)) {
				t.Fatal("waited for an act whose time is over")
			}
		}
		if a.hangs() {
			t.Error("acts that are late are taken to hang")
		}
		time.Sleep(2 * hangsAfter) // of the thousand, each began when the one before was left
		if a.hangs() || a.all.Load() != 0 || a.hanging.Load() != 0 {
			t.Errorf("all have ended, and %d go on and %d hang", a.all.Load(), a.hanging.Load())
		}
		a.aside(over, late(10*hangsAfter))
		time.Sleep(2 * hangsAfter)
		if !a.hangs() {
			t.Error("one that hangs is not noticed")
		}
		time.Sleep(10 * hangsAfter)
		if a.hangs() || a.all.Load() != 0 || a.hanging.Load() != 0 {
			t.Errorf("it has ended, and %d go on and %d hang", a.all.Load(), a.hanging.Load())
		}
	})
}

// TestWhatIsLeftAloneIsBounded.
func TestWhatIsLeftAloneIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a alone
		for range maxAlone {
			go a.aside(over, func() { time.Sleep(hangsAfter / 2) })
		}
		time.Sleep(hangsAfter / 4)
		if !a.full() {
			t.Errorf("%d acts go on alone, and one more may", a.all.Load())
		}
		time.Sleep(hangsAfter / 2)
		if a.full() {
			t.Errorf("%d acts go on alone, which all have ended", a.all.Load())
		}
	})
}

// TestAPanicIsTheCallers: an HTTP server recovers those of its handlers, and nobody those of other goroutines.
func TestAPanicIsTheCallers(t *testing.T) {
	t.Parallel()
	defer func() {
		text, _ := recover().(string)
		if !strings.HasPrefix(text, "out of order") || !strings.Contains(text, "alone_test.go") {
			t.Errorf("recovered %q, want the panic and where it was", text)
		}
	}()
	new(alone).aside(t.Context(), func() { panic("out of order") })
	t.Error("no panic")
}

// TestWithoutAConnection.
func TestWithoutAConnection(t *testing.T) {
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
