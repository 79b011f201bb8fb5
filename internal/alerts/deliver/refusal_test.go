package deliver_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/alerts/deliver"
)

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

// TestAPauseIsShownAndCanBeEnded: otherwise a paused channel would look like one in use.
func TestAPauseIsShownAndCanBeEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newMemory()
		var busy atomic.Bool
		busy.Store(true)
		b := start(t, o, named("a", "x", func(context.Context, *alerts.Message) error {
			if busy.Load() {
				return &alerts.Refusal{Err: errors.New("busy"), RetryAfter: 10 * time.Minute}
			}
			return nil
		}))
		synctest.Wait()
		if until := b.State("a").PausedUntil; !until.IsZero() {
			t.Errorf("paused until %s before it was tried", until)
		}
		o.add("a", "m")
		b.Wake()
		synctest.Wait()
		if left := time.Until(b.State("a").PausedUntil); left != 10*time.Minute {
			t.Errorf("paused for %s, want 10m", left)
		}
		busy.Store(false)
		o.add("a", "n")
		rest(time.Minute)
		if o.get("n").State == alerts.DeliverySent {
			t.Error("it is sent in the pause")
		}
		b.Resume("a")
		synctest.Wait()
		if until := b.State("a").PausedUntil; !until.IsZero() || o.get("n").State != alerts.DeliverySent {
			t.Errorf("resumed, it is paused until %s, and what waits is %s", until, o.get("n").State)
		}
		busy.Store(true)
		o.add("a", "again")
		b.Wake()
		synctest.Wait()
		busy.Store(false)
		rest(10 * time.Minute)
		if until := b.State("a").PausedUntil; !until.IsZero() {
			t.Errorf("a pause that is over is until %s", until)
		}
		b.Resume("another") // which is no channel
		if until := b.State("another").PausedUntil; !until.IsZero() {
			t.Errorf("no channel is paused until %s", until)
		}
	})
}

// TestRateLimitedTargetGetsAll: the target accepts one message a second, as a chat does, and
// refuses the others with Retry-After.
func TestRateLimitedTargetGetsAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const all = 300
		o := newMemory()
		for i := range all {
			o.add("chat", fmt.Sprint(i))
		}
		var last atomic.Int64
		b := start(t, o, named("chat", "x", func(context.Context, *alerts.Message) error {
			time.Sleep(100 * time.Millisecond)
			now, before := time.Now().UnixMilli(), last.Load()
			if now-before >= 1000 && last.CompareAndSwap(before, now) {
				return nil
			}
			return &alerts.Refusal{Err: errors.New("it answered 429"), RetryAfter: time.Second}
		}))
		// Each pause counts as a try of one of those in flight, and by chance falls on some again and again: one of 1,000 had
		// seven in every tenth run, and waited for three hours. After 28 hours even the ninth wait is over.
		rest(28 * time.Hour)
		if sent, dead := o.count(alerts.DeliverySent), o.count(alerts.DeliveryDead); sent != all || dead > 0 {
			t.Errorf("%d of %d sent, %d dead letters", sent, all, dead)
		}
		counted := 0
		for i := range all {
			counted += o.get(fmt.Sprint(i)).Attempts
		}
		if refusals := b.seen.of("chat retry"); counted-all > refusals/2 {
			t.Errorf("%d of %d refusals count as tries, want one for each pause", counted-all, refusals)
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

func TestGoneDisablesUntilTargetChanges(t *testing.T) {
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

// TestChannelDisabledByAnotherProcess is sent nothing more.
func TestChannelDisabledByAnotherProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen tries
		o := newMemory()
		start(t, o, named("a", "x", func(_ context.Context, m *alerts.Message) error { seen.note(m); return nil }))
		rest(time.Second)
		if err := o.DisableChannel(t.Context(), alerts.Disabled{Channel: "a", Target: "x", Reason: "it answered 410"}); err != nil {
			t.Fatal(err)
		}
		rest(6 * time.Second)
		o.add("a", "m")
		rest(2 * time.Second)
		if d := o.get("m"); seen.total() != 0 || d.State != alerts.DeliveryDead || d.Error != "the channel is disabled: it answered 410" {
			t.Errorf("%+v after %d tries", d, seen.total())
		}
	})
}

// TestReplayEnables: another process enables the channel a moment before this one, which does not know that yet, claims the
// replayed delivery.
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

func TestBreakerStopsSendingToFailingTarget(t *testing.T) {
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

// slowToTell is an outbox that delays its answer while hold is set.
type slowToTell struct {
	*memory
	hold chan struct{}
}

func (o *slowToTell) DueDeliveries(ctx context.Context, channel string, max int, lease time.Duration) ([]alerts.Delivery, error) {
	if o.hold != nil {
		<-o.hold
	}
	return o.memory.DueDeliveries(ctx, channel, max, lease)
}

// took is an observer that records how long attempts with an outcome took.
type took struct {
	outcome string
	all     []time.Duration
}

func (o *took) DeliveryTried(_, outcome string, took time.Duration) {
	if outcome == o.outcome {
		o.all = append(o.all, took)
	}
}

// TestDeliveryPutOffByOpenCircuitTookNoTime: the circuit opens while more deliveries are being
// claimed, so they are not sent. The clock advances with each call.
func TestDeliveryPutOffByOpenCircuitTookNoTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, seen, fail := &slowToTell{memory: newMemory()}, &took{outcome: "put_off"}, make(chan struct{})
		o.add("a", "1", "2", "3", "4", "5")
		var looks atomic.Int64
		s, err := deliver.NewSender(deliver.Config{Outbox: o, Observer: seen, Logger: slog.New(slog.DiscardHandler),
			Now: func() time.Time { return time.Now().Add(time.Duration(looks.Add(1)) * time.Microsecond) },
			Channels: func() []deliver.Named {
				return []deliver.Named{named("a", "x", func(context.Context, *alerts.Message) error { <-fail; return errors.New("down") })}
			}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); s.Run(ctx) }()
		synctest.Wait()
		o.hold = make(chan struct{})
		o.add("a", "6", "7", "8")
		s.Wake()
		synctest.Wait() // it asks for more
		close(fail)
		synctest.Wait() // the five have failed
		close(o.hold)
		synctest.Wait()
		cancel()
		<-ended
		if want := make([]time.Duration, 3); !slices.Equal(seen.all, want) {
			t.Errorf("put off after %v, want %v", seen.all, want)
		}
	})
}
