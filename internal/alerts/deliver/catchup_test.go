package deliver_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

// outage is a target that fails until it is back.
type outage struct {
	seen tries
	back atomic.Bool
}

func (a *outage) send(_ context.Context, m *alerts.Message) error {
	a.seen.note(m)
	if a.back.Load() {
		return nil
	}
	return errors.New("it answered 500")
}

// TestAfterAnOutageNothingWaitsForHours: as soon as the target takes a message, it gets also what was tried in the outage.
func TestAfterAnOutageNothingWaitsForHours(t *testing.T) {
	t.Parallel()
	for name, returns := range map[string]func(t *testing.T, o *memory, b *bench, c *outage){
		"a new alert is taken": func(_ *testing.T, o *memory, b *bench, _ *outage) { o.add("a", "new"); b.Wake() },
		"somebody asks for it": func(_ *testing.T, _ *memory, b *bench, _ *outage) { b.Resume("a") },
		"the process restarted": func(t *testing.T, o *memory, b *bench, c *outage) {
			b.stop()
			o.add("a", "new")
			start(t, o, named("a", "x", c.send))
		},
		"it is another target": func(_ *testing.T, o *memory, b *bench, c *outage) {
			b.channels.set(named("a", "y", c.send))
			rest(2 * time.Second) // until it is known
			o.add("a", "new")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o, c := newMemory(), &outage{}
				o.add("a", "1", "2", "3", "4", "5", "6", "7")
				o.add("other", "o")
				b := start(t, o, named("a", "x", c.send), named("other", "z", (&outage{}).send))
				rest(5 * time.Hour)
				other := o.get("o")
				c.back.Store(true)
				returns(t, o, b, c)
				rest(2 * time.Minute) // the circuit may be open for half a minute, and what is due within a minute stays so
				for id := range o.all {
					if d := o.get(id); d.Channel == "a" && d.State != alerts.DeliverySent {
						t.Errorf("%s is %s after %d tries, the next one in %s", id, d.State, d.Attempts, time.Until(time.UnixMilli(d.DueAt)))
					}
				}
				if d := o.get("o"); d.DueAt < other.DueAt {
					t.Errorf("brought forward for a channel that still fails: %+v, was %+v", d, other)
				}
			})
		})
	}
}

// TestBringingForwardIsForTheEndOfAnOutage, and not for each message.
func TestBringingForwardIsForTheEndOfAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o, c := newMemory(), &outage{}
		c.back.Store(true)
		b := start(t, o, named("a", "x", c.send))
		send := func() {
			t.Helper()
			for i := range 20 {
				o.add("a", fmt.Sprint(time.Now().UnixMilli(), i))
				b.Wake()
				rest(time.Second)
			}
		}
		for _, want := range []int{1, 1} { // the first time, because an earlier process may have failed
			if send(); o.advances != want {
				t.Errorf("asked for it %d times, want %d", o.advances, want)
			}
		}
		c.back.Store(false)
		send()
		c.back.Store(true)
		rest(10 * time.Minute)
		if send(); o.advances != 2 || o.count(alerts.DeliveryWaiting) != 0 {
			t.Errorf("asked for it %d times after an outage, want 2, and %d wait", o.advances, o.count(alerts.DeliveryWaiting))
		}
	})
}

// TestManyAreBroughtForwardInSteps: each is a short transaction.
func TestManyAreBroughtForwardInSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const all = 2000
		o, c := newMemory(), &outage{}
		for i := range all {
			o.add("a", fmt.Sprint(i))
		}
		for _, d := range o.all {
			d.DueAt += 6 * time.Hour.Milliseconds()
		}
		o.add("a", "new")
		c.back.Store(true)
		start(t, o, named("a", "x", c.send))
		rest(time.Minute)
		if n := o.count(alerts.DeliverySent); n != all+1 || o.advances != all/256+1 {
			t.Errorf("%d of %d sent, brought forward in %d steps", n, all+1, o.advances)
		}
	})
}

// TestPausedTargetIsLeftAlone: a message that it takes was under way when it asked for the pause.
func TestPausedTargetIsLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newMemory()
		o.add("a", "busy", "under way")
		start(t, o, named("a", "x", func(_ context.Context, m *alerts.Message) error {
			if m.ID == "busy" {
				return &alerts.Refusal{Err: errors.New("it answered 429"), RetryAfter: time.Hour}
			}
			time.Sleep(time.Second)
			return nil
		}))
		rest(time.Minute)
		if wait := time.Until(time.UnixMilli(o.get("busy").DueAt)); wait < 59*time.Minute || o.get("under way").State != alerts.DeliverySent {
			t.Errorf("tried again in %s, want what is left of an hour; the other is %s", wait, o.get("under way").State)
		}
	})
}

// TestTargetThatTakesOneInTenIsNotHammered: its deliveries have not had all their tries after an hour and a half, so that it
// may still be repaired.
func TestTargetThatTakesOneInTenIsNotHammered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		o := newMemory()
		start(t, o, named("a", "x", func(context.Context, *alerts.Message) error {
			if n.Add(1)%10 == 0 {
				return nil
			}
			return errors.New("it answered 500")
		}))
		for i := range 90 {
			o.add("a", fmt.Sprint(i))
			rest(time.Minute)
		}
		if dead, tried := o.count(alerts.DeliveryDead), n.Load(); dead > 0 || tried > 90*6 {
			t.Errorf("%d dead letters, %d tries of 90 messages", dead, tried)
		}
	})
}
