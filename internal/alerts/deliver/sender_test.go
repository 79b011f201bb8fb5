package deliver_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/alerts/deliver"
)

func TestConfigNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	cfg := deliver.Config{}
	for _, want := range []string{"Outbox", "Logger", "Channels"} {
		_, err := deliver.NewSender(cfg)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one of %s", err, want)
		}
		switch want {
		case "Outbox":
			cfg.Outbox = newMemory()
		case "Logger":
			cfg.Logger = slog.New(slog.DiscardHandler)
		}
	}
}

func TestDueDeliveriesAreSentOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen tries
		o := newMemory()
		for i := range 100 {
			o.add("a", fmt.Sprint(i))
		}
		take := func(_ context.Context, m *alerts.Message) error { seen.note(m); return nil }
		one := start(t, o, named("a", "x", take))
		two := start(t, o, named("a", "x", take))
		synctest.Wait()
		if o.count(alerts.DeliverySent) != 100 || seen.total() != 100 {
			t.Errorf("%d sent in %d tries, want 100 in 100, at once", o.count(alerts.DeliverySent), seen.total())
		}
		o.add("a", "later")
		one.Wake()
		synctest.Wait()
		if o.get("later").State != alerts.DeliverySent {
			t.Error("a wake was not heeded")
		}
		o.add("a", "polled")
		rest(time.Second)
		if o.get("polled").State != alerts.DeliverySent {
			t.Error("nothing is looked for without a wake")
		}
		before := o.questions()
		rest(10 * time.Second)
		if asked := o.questions() - before; asked > 24 {
			t.Errorf("two idle senders asked the store %d times in 10 s", asked)
		}
		one.stop()
		two.stop()
	})
}

func TestAttemptsAreSpacedByBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen tries
		o := newMemory()
		o.add("a", "m")
		b := start(t, o, named("a", "x", func(_ context.Context, m *alerts.Message) error {
			seen.note(m)
			return errors.New(strings.Repeat("bad\n", 1000))
		}))
		rest(48 * time.Hour)
		d := o.get("m")
		if d.State != alerts.DeliveryDead || d.Attempts != 10 || !strings.HasPrefix(d.Error, "gave up after 10 attempts: bad bad") {
			t.Errorf("ended as %s after %d tries: %.80s", d.State, d.Attempts, d.Error)
		}
		if len(d.Error) > deliver.MaxErrorBytes || strings.Contains(d.Error, "\n") {
			t.Errorf("an error of %d bytes is kept", len(d.Error))
		}
		at := seen.of("m")
		want := []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute,
			time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour}
		if len(at) != len(want)+1 {
			t.Fatalf("%d tries, want %d", len(at), len(want)+1)
		}
		exact := 0
		for i, w := range want {
			gap := at[i+1].Sub(at[i])
			if gap < w*8/10 || gap > w*12/10+time.Second {
				t.Errorf("try %d came after %s, want %s ± 20 %%", i+2, gap, w)
			}
			if gap == w {
				exact++
			}
		}
		if exact == len(want) {
			t.Error("no delay was moved by chance")
		}
		b.seen.want(t, map[string]int{"a retry": 9, "a dead": 1})
	})
}

func TestSlowChannelDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var under, most atomic.Int64
		o := newMemory()
		for i := range 50 {
			o.add("slow", fmt.Sprint("slow", i))
			o.add("fast", fmt.Sprint("fast", i))
		}
		slow := func(context.Context, *alerts.Message) error {
			most.Store(max(most.Load(), under.Add(1)))
			time.Sleep(10 * time.Second)
			under.Add(-1)
			return nil
		}
		start(t, o, named("slow", "x", slow), named("fast", "y", func(context.Context, *alerts.Message) error { return nil }))
		synctest.Wait()
		if n := o.count(alerts.DeliverySent); n != 50 {
			t.Errorf("%d sent at once, want the 50 of the fast channel", n)
		}
		rest(71 * time.Second)
		if n := o.count(alerts.DeliverySent); n != 100 || most.Load() != 8 {
			t.Errorf("%d sent, %d at the same time, want 100 and 8", n, most.Load())
		}
	})
}

func TestWideChannelClaimsMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var under, most, n atomic.Int64
		o := newMemory()
		for i := range 400 {
			o.add("wide", fmt.Sprint("wide", i))
		}
		// No two attempts end at the same time. If each end caused a claim, there would be 400.
		wide := named("wide", "x", func(context.Context, *alerts.Message) error {
			most.Store(max(most.Load(), under.Add(1)))
			time.Sleep(100*time.Millisecond + time.Duration(n.Add(1))*time.Microsecond)
			under.Add(-1)
			return nil
		})
		wide.Parallel = 20
		start(t, o, wide)
		rest(10 * time.Second)
		if n := o.count(alerts.DeliverySent); n != 400 || most.Load() != 20 {
			t.Errorf("%d sent, %d at the same time, want 400 and 20", n, most.Load())
		}
		if n := o.questions(); n > 100 {
			t.Errorf("asked %d times for 400 deliveries", n)
		}
	})
}

func TestPanicIsAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := true
		o := newMemory()
		o.add("a", "m")
		start(t, o, named("a", "x", func(context.Context, *alerts.Message) error {
			if first {
				first = false
				panic("oh")
			}
			return nil
		}))
		synctest.Wait()
		if d := o.get("m"); d.State != alerts.DeliveryWaiting || d.Attempts != 1 || d.Error != "panic: oh" {
			t.Errorf("%+v", d)
		}
		rest(10 * time.Second)
		if d := o.get("m"); d.State != alerts.DeliverySent {
			t.Errorf("%+v", d)
		}
	})
}

// TestDelaysUseStoreClock for a process whose clock is an hour behind, and for one whose clock is
// an hour ahead.
func TestDelaysUseStoreClock(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{-time.Hour, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			o := newMemory()
			o.add("a", "m")
			s, err := deliver.NewSender(deliver.Config{
				Outbox: o, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return time.Now().Add(skew) },
				Channels: func() []deliver.Named {
					return []deliver.Named{named("a", "x", func(context.Context, *alerts.Message) error {
						time.Sleep(time.Second)
						return errors.New("bad")
					})}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); s.Run(ctx) }()
			began := time.Now()
			rest(time.Second)
			if wait := time.UnixMilli(o.get("m").DueAt).Sub(began); wait < 5*time.Second || wait > 7*time.Second {
				t.Errorf("with a clock %s off, the next try is after %s, want 1 s and 5 s ± 20 %%", skew, wait)
			}
			cancel()
			<-ended
		})
	}
}

func TestDeliveriesOfRemovedChannels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ok := func(context.Context, *alerts.Message) error { return nil }
		o := newMemory()
		o.add("old", "m")
		o.add("late", "n")
		b := start(t, o, named("a", "x", ok))
		rest(9 * time.Minute)
		if n := o.count(alerts.DeliveryWaiting); n != 2 {
			t.Fatalf("%d wait, want both for the grace", n)
		}
		b.channels.set(named("a", "x", ok), named("late", "y", ok))
		rest(3 * time.Minute)
		if d := o.get("n"); d.State != alerts.DeliverySent {
			t.Errorf("a channel that came later: %s", d.State)
		}
		if d := o.get("m"); d.State != alerts.DeliveryDead || !strings.Contains(d.Error, `channel "old" is no longer`) {
			t.Errorf("a removed channel: %s %q", d.State, d.Error)
		}
		b.channels.set(named("a", "x", ok))
		rest(2 * time.Second)
		o.add("late", "o")
		rest(5 * time.Minute)
		if d := o.get("o"); d.State != alerts.DeliveryWaiting {
			t.Errorf("a channel that was removed a moment ago: %s", d.State)
		}
		b.seen.want(t, map[string]int{"late sent": 1, " removed": 1})
	})
}

// TestRemovedChannelIsSentToWhenItIsBack, and not meanwhile.
func TestRemovedChannelIsSentToWhenItIsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, ch := newMemory(), named("a", "x", func(context.Context, *alerts.Message) error { return nil })
		b := start(t, o, ch)
		rest(time.Second)
		b.channels.set()
		rest(2 * time.Second)
		o.add("a", "m")
		rest(time.Minute)
		if d, state := o.get("m"), b.State("a").Breaker; d.State != alerts.DeliveryWaiting || state != "" {
			t.Errorf("a removed channel, its circuit %q: %+v", state, d)
		}
		b.channels.set(ch)
		rest(2 * time.Second)
		if d, state := o.get("m"), b.State("a").Breaker; d.State != alerts.DeliverySent || state != "closed" {
			t.Errorf("the channel is back, its circuit %q: %+v", state, d)
		}
	})
}

// TestChannelKnownToAnotherProcess: a new alerts file is rolled out to one of two processes first,
// and the other must not end deliveries that the first one retries. When no process knows the
// channel any more, they end a while after an attempt was due that nobody made.
func TestChannelKnownToAnotherProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fails := func(context.Context, *alerts.Message) error { return errors.New("it answered 500") }
		o := newMemory()
		older, newer := start(t, o, named("a", "x", fails)), start(t, o, named("a", "x", fails), named("new", "y", fails))
		o.add("new", "m")
		rest(40 * time.Minute)
		if d := o.get("m"); d.State != alerts.DeliveryWaiting || d.Attempts < 4 {
			t.Fatalf("%s after %d tries: %s", d.State, d.Attempts, d.Error)
		}
		newer.channels.set(named("a", "x", fails))
		due := time.UnixMilli(o.get("m").DueAt)
		rest(time.Until(due) + 9*time.Minute)
		if d := o.get("m"); d.State != alerts.DeliveryWaiting {
			t.Errorf("%s 9 minutes after it was due", d.State)
		}
		rest(2 * time.Minute)
		if d := o.get("m"); d.State != alerts.DeliveryDead || !strings.Contains(d.Error, `channel "new" is no longer`) {
			t.Errorf("%s 11 minutes after it was due: %s", d.State, d.Error)
		}
		older.stop()
	})
}

func TestSavingOutcomesIsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen tries
		o := newMemory()
		o.failures = 5
		o.add("a", "m")
		start(t, o, named("a", "x", func(_ context.Context, m *alerts.Message) error { seen.note(m); return nil }))
		rest(time.Minute)
		if o.get("m").State != alerts.DeliverySent || seen.total() != 1 {
			t.Errorf("%s after %d tries", o.get("m").State, seen.total())
		}
	})
}

func TestStopFinishesAttemptsInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newMemory()
		o.add("a", "m")
		b := start(t, o, named("a", "x", func(ctx context.Context, _ *alerts.Message) error {
			select {
			case <-time.After(5 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}))
		synctest.Wait()
		o.add("a", "late")
		began := time.Now()
		b.stop()
		if o.get("m").State != alerts.DeliverySent || time.Since(began) != 5*time.Second {
			t.Errorf("%s after %s, want it sent after 5 s", o.get("m").State, time.Since(began))
		}
		if d := o.get("late"); d.State != alerts.DeliveryWaiting || d.DueAt > began.UnixMilli() {
			t.Errorf("what came late: %+v", d)
		}
	})
}

func TestStopPutsOffHangingAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newMemory()
		o.add("a", "m")
		b := start(t, o, named("a", "x", func(ctx context.Context, _ *alerts.Message) error {
			<-ctx.Done()
			return ctx.Err()
		}))
		synctest.Wait()
		b.stop()
		if d := o.get("m"); d.State != alerts.DeliveryWaiting || d.Attempts != 0 || d.DueAt > time.Now().UnixMilli() {
			t.Errorf("%+v, want it due at once, with no try counted", d)
		}
		b.seen.want(t, map[string]int{"a put_off": 1})
	})
}

func TestStopAbandonsUnresponsiveAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newMemory()
		o.add("a", "m")
		release := make(chan struct{})
		defer close(release)
		b := start(t, o, named("a", "x", func(context.Context, *alerts.Message) error { <-release; return nil }))
		synctest.Wait()
		began := time.Now()
		b.stop()
		if took := time.Since(began); took >= 10*time.Second {
			t.Errorf("the stop took %s, want less than the 10 s of a part", took)
		}
		if d := o.get("m"); d.DueAt > time.Now().Add(2*time.Minute).UnixMilli() {
			t.Error("it stays claimed for more than two minutes")
		}
	})
}

func TestAttemptTimeoutIsAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newMemory()
		o.add("a", "m")
		start(t, o, named("a", "x", func(ctx context.Context, _ *alerts.Message) error { <-ctx.Done(); return ctx.Err() }))
		rest(20 * time.Second)
		if d := o.get("m"); d.Attempts != 1 || d.State != alerts.DeliveryWaiting || !strings.Contains(d.Error, "deadline") {
			t.Errorf("%+v", d)
		}
	})
}
