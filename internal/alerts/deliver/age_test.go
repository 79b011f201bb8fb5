package deliver_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

// TestOldDeliveriesAreDeadLettered: while a target stays away, it is tried so seldom that most
// waiting deliveries never are.
func TestOldDeliveriesAreDeadLettered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const all = 600
		o := newMemory()
		for i := range all {
			o.add("away", fmt.Sprintf("%03d", i))
		}
		o.grow(48*time.Hour - 10*time.Minute)
		away := func(context.Context, *alerts.Message) error {
			return &alerts.Refusal{Err: errors.New("busy"), RetryAfter: 20 * time.Hour}
		}
		one, two := start(t, o, named("away", "x", away)), start(t, o, named("away", "x", away))
		rest(10*time.Minute - time.Second)
		if n := o.count(alerts.DeliveryDead); n != 0 {
			t.Fatalf("%d dead letters before their time", n)
		}
		o.add("away", "new")
		rest(time.Minute)
		if dead, waiting := o.count(alerts.DeliveryDead), o.count(alerts.DeliveryWaiting); dead != all || waiting != 1 {
			t.Fatalf("%d dead letters and %d wait, want %d and the new one", dead, waiting, all)
		}
		if n := one.seen.of("away dead") + two.seen.of("away dead"); n != all {
			t.Errorf("%d dead letters were counted, want %d", n, all)
		}
		never := 0
		for i := range all {
			d := o.get(fmt.Sprintf("%03d", i))
			switch {
			case d.Attempts > 0 && d.Error != "not delivered in 2 days: busy":
				t.Errorf("after %d tries: %q", d.Attempts, d.Error)
			case d.Attempts == 0:
				never++
				if d.Error != "not delivered in 2 days: never tried, because the channel is failing: busy" {
					t.Errorf("never tried: %q", d.Error)
				}
			}
		}
		if never < all/2 {
			t.Errorf("%d of %d were never tried, want most", never, all)
		}
		o.replay(t, "599")
		o.grow(47 * time.Hour)
		rest(59 * time.Minute)
		if d := o.get("599"); d.State != alerts.DeliveryWaiting {
			t.Errorf("a replayed one is %s: %s", d.State, d.Error)
		}
		rest(2 * time.Minute)
		if d := o.get("599"); d.State != alerts.DeliveryDead || !strings.HasPrefix(d.Error, "not delivered in 2 days: ") {
			t.Errorf("a replayed one is %s: %s", d.State, d.Error)
		}
	})
}

// TestAttemptInFlightDoesNotEndByAge: it may succeed.
func TestAttemptInFlightDoesNotEndByAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newMemory()
		o.add("a", "m")
		o.grow(48*time.Hour - 10*time.Second)
		o.all["m"].DueAt = time.Now().Add(20 * time.Second).UnixMilli()
		start(t, o, named("a", "x", func(context.Context, *alerts.Message) error {
			time.Sleep(15 * time.Second) // a sweep is in it
			return nil
		}))
		rest(time.Minute)
		if d := o.get("m"); d.State != alerts.DeliverySent {
			t.Errorf("%s: %s", d.State, d.Error)
		}
	})
}

// TestDeliveriesFromClockAheadAreSent: all such deliveries are sent, and none while an attempt may
// be in flight.
func TestDeliveriesFromClockAheadAreSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const all = 600
		o := newMemory()
		for i := range all {
			o.add("a", fmt.Sprint(i))
		}
		o.grow(-365 * 24 * time.Hour)
		for _, d := range o.all {
			d.DueAt = d.CreatedAt
		}
		start(t, o, named("a", "x", func(context.Context, *alerts.Message) error { return nil }))
		rest(time.Minute)
		if n := o.count(alerts.DeliverySent); n != 0 {
			t.Errorf("%d are sent before a try ended that may have gone on", n)
		}
		for range 60 {
			if o.count(alerts.DeliverySent) == 0 {
				rest(30 * time.Second) // a sweep
			}
		}
		if n := o.count(alerts.DeliverySent); n != all {
			t.Errorf("%d of %d are sent after one sweep", n, all)
		}
	})
}
