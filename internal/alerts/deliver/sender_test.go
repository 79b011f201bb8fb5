package deliver_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
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

// tries keeps when each message was tried.
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

// channels may be swapped while a sender runs.
type channels struct {
	atomic.Pointer[[]deliver.Named]
}

func (c *channels) set(all ...deliver.Named) { c.Store(&all) }
func (c *channels) get() []deliver.Named     { return *c.Load() }

func named(name, at string, f target) deliver.Named {
	return deliver.Named{Name: name, Target: at, Channel: f}
}

// bench is a sender in a bubble.
type bench struct {
	*deliver.Sender
	outbox   *memory
	channels channels
	seen     counts
	stop     func()
}

// start runs a sender; the test ends it, if stop was not called.
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
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(b.stop)
	return b
}

// rest lets a time pass in the bubble, and then all that is due in it.
func rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

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

func TestWhatIsDueIsSentOnce(t *testing.T) {
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

func TestTriesAreSpacedByBackoff(t *testing.T) {
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
		if d.State != alerts.DeliveryDead || d.Attempts != 10 || !strings.HasPrefix(d.Error, "given up after 10 tries: bad bad") {
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

func TestRetryAfterHoldsTheWholeChannel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen tries
		o := newMemory()
		o.add("a", "m")
		busy := true
		b := start(t, o, named("a", "x", func(_ context.Context, m *alerts.Message) error {
			seen.note(m)
			if busy {
				return &alerts.Refusal{Err: errors.New("busy"), RetryAfter: time.Hour}
			}
			return nil
		}))
		synctest.Wait()
		if wait := time.Until(time.UnixMilli(o.get("m").DueAt)); wait < time.Hour {
			t.Errorf("other processes may try it again after %s, want an hour at least", wait)
		}
		busy = false
		o.add("a", "n")
		b.Wake()
		rest(59 * time.Minute)
		if n := seen.total(); n != 1 {
			t.Fatalf("%d tries in the hour the target asked for, want 1", n)
		}
		rest(time.Minute + time.Second)
		if o.get("n").State != alerts.DeliverySent {
			t.Error("the other delivery was not sent when the hour was over")
		}
		rest(2 * time.Minute)
		if d := o.get("m"); d.State != alerts.DeliverySent || d.Attempts != 2 {
			t.Errorf("the delivery is %s after %d tries", d.State, d.Attempts)
		}
	})
}

func TestAnotherTargetIsNotPaused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newMemory()
		o.add("a", "m")
		b := start(t, o, named("a", "x", func(context.Context, *alerts.Message) error {
			return &alerts.Refusal{Err: errors.New("busy"), RetryAfter: time.Hour}
		}))
		synctest.Wait()
		b.channels.set(named("a", "y", func(context.Context, *alerts.Message) error { return nil }))
		o.add("a", "n")
		rest(2 * time.Second)
		if o.get("n").State != alerts.DeliverySent {
			t.Error("another target is paused by what the first one asked")
		}
	})
}

func TestFinalIsADeadLetter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newMemory()
		o.add("a", "m")
		b := start(t, o, named("a", "x", func(context.Context, *alerts.Message) error {
			return &alerts.Refusal{Err: errors.New("no such user"), Final: true}
		}))
		synctest.Wait()
		if d := o.get("m"); d.State != alerts.DeliveryDead || d.Attempts != 1 || d.Error != "no such user" {
			t.Errorf("%+v", d)
		}
		b.seen.want(t, map[string]int{"a dead": 1})
	})
}

func TestGoneDisablesUntilThereIsAnotherTarget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen tries
		o := newMemory()
		gone := named("a", "x", func(_ context.Context, m *alerts.Message) error {
			seen.note(m)
			return &alerts.Refusal{Err: errors.New("it answered 410 Gone"), Gone: true}
		})
		o.add("a", "m")
		b := start(t, o, gone)
		synctest.Wait()
		if d := o.gone["a"]; d.Target != "x" || !strings.Contains(d.Reason, "410") || d.At == 0 {
			t.Fatalf("disabled as %+v", d)
		}
		for i := range 20 {
			o.add("a", fmt.Sprint("more", i))
		}
		b.Wake()
		synctest.Wait()
		if dead := o.count(alerts.DeliveryDead); dead != 21 || !strings.Contains(o.get("more3").Error, "disabled: it answered 410") {
			t.Errorf("%d dead letters, want 21: %q", dead, o.get("more3").Error)
		}
		b.seen.want(t, map[string]int{"a disabled": 21})
		b.stop()

		o.add("a", "restarted")
		again := start(t, o, gone)
		synctest.Wait()
		if n := seen.total(); n != 1 || o.get("restarted").State != alerts.DeliveryDead {
			t.Errorf("after a restart a target that is gone was tried %d times", n-1)
		}
		again.channels.set(named("a", "y", func(context.Context, *alerts.Message) error { return nil }))
		rest(2 * time.Second)
		o.add("a", "elsewhere")
		rest(2 * time.Second)
		if o.get("elsewhere").State != alerts.DeliverySent || len(o.gone) != 0 {
			t.Errorf("another target: %s, disabled %v", o.get("elsewhere").State, o.gone)
		}
	})
}

// TestReplayEnables has another process enable the channel a moment before this one, which does not know yet, finds what was
// replayed.
func TestReplayEnables(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newMemory()
		o.add("a", "m")
		gone := true
		b := start(t, o, named("a", "x", func(context.Context, *alerts.Message) error {
			if gone {
				return &alerts.Refusal{Err: errors.New("gone"), Gone: true}
			}
			return nil
		}))
		synctest.Wait()
		gone = false
		if found, _ := o.EnableChannel(t.Context(), "a"); !found {
			t.Fatal("the channel was not disabled")
		}
		o.replay(t, "m")
		b.Wake()
		synctest.Wait()
		if d := o.get("m"); d.State != alerts.DeliverySent {
			t.Errorf("replayed: %s, %s", d.State, d.Error)
		}
	})
}

func TestBreakerLeavesAFailingTargetAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen tries
		var works atomic.Bool
		o := newMemory()
		for i := range 200 {
			o.add("a", fmt.Sprint(i))
		}
		b := start(t, o, named("a", "x", func(_ context.Context, m *alerts.Message) error {
			seen.note(m)
			if works.Load() {
				return nil
			}
			return errors.New("down")
		}))
		rest(25 * time.Second)
		if n := seen.total(); n < 5 || n > 12 {
			t.Errorf("%d tries of a target that is down, want 5 and those that were under way", n)
		}
		rest(10 * time.Minute)
		if n := seen.total(); n > 12+21 {
			t.Errorf("%d tries in 10 minutes, want one each 30 s", n)
		}
		works.Store(true)
		rest(15 * time.Minute)
		if n := o.count(alerts.DeliverySent); n != 200 {
			t.Errorf("%d sent, want 200", n)
		}
		if n := b.seen.of("a put_off"); n > 16 {
			t.Errorf("%d deliveries were claimed to be put off, want no more than the few that were under way", n)
		}
		for i := range 200 {
			id := fmt.Sprint(i)
			if d := o.get(id); d.Attempts != len(seen.of(id)) {
				t.Errorf("delivery %s counts %d tries and had %d", id, d.Attempts, len(seen.of(id)))
			}
		}
	})
}

func TestSlowChannelKeepsNoOther(t *testing.T) {
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

// TestDelaysAreOfTheStoresClock has a process whose clock is an hour late, and one whose clock is an hour ahead.
func TestDelaysAreOfTheStoresClock(t *testing.T) {
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
			ended := make(chan error)
			go func() { ended <- s.Run(ctx) }()
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
		if d := o.get("m"); d.State != alerts.DeliveryDead || !strings.Contains(d.Error, `no channel "old"`) {
			t.Errorf("a channel that is no more: %s %q", d.State, d.Error)
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

func TestOutcomesAreKeptWithPatience(t *testing.T) {
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

func TestStopFinishesWhatIsUnderWay(t *testing.T) {
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

func TestStopPutsOffWhatHangs(t *testing.T) {
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

func TestStopLeavesBehindWhatHeedsNothing(t *testing.T) {
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
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("the stop took %s", took)
		}
		if d := o.get("m"); d.DueAt > time.Now().Add(2*time.Minute).UnixMilli() {
			t.Error("it stays claimed for more than two minutes")
		}
	})
}

func TestTryThatTakesTooLongIsAnError(t *testing.T) {
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
