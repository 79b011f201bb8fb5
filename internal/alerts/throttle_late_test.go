package alerts_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

// raise makes denials of user 7 by so many policies.
func (r *rig) raise(n int, name string) (all []alerts.Event) {
	for i := range n {
		all = append(all, r.exceeded("7", fmt.Sprint(name, i), 1))
	}
	return all
}

// TestLateAlertsAreChargedWhenSent: a process dies after the charges, and they are old when
// another sends the alerts.
func TestLateAlertsAreChargedWhenSent(t *testing.T) {
	t.Parallel()
	const ofARule = "rules: [{name: denials, threshold: {denials: 1}, throttle: {limit: 5, window: %s}}]"
	for _, c := range []struct {
		rules  string
		most   int
		window time.Duration
		away   time.Duration
	}{
		{atOnce, 20, time.Hour, 2 * time.Minute},
		{atOnce, 20, time.Hour, 14 * time.Minute},
		{atOnce, 20, time.Hour, 40 * time.Minute}, // and nobody has removed what expired
		{atOnce, 20, time.Hour, 2 * time.Hour},
		{fmt.Sprintf(ofARule, "10m"), 5, 10 * time.Minute, 4 * time.Minute},
		{fmt.Sprintf(ofARule, "30s"), 5, 30 * time.Second, 20 * time.Second},
		{fmt.Sprintf(ofARule, "5s"), 5, 5 * time.Second, 12 * time.Second},
	} {
		t.Run(fmt.Sprint(c.most, " in ", c.window, " away for ", c.away), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.rules)
			r.dieCharged(r.raise(c.most, "before")...)
			r.advance(c.away)
			s := r.run()
			r.seen.wait(t, "sent", c.most)
			r.advance(max(c.window/30, c.window*62/60-c.away)) // the first charges have ended
			r.take(s, r.raise(c.most, "behind")...)
			r.seen.wait(t, "told", 2*c.most)
			if n := toldWithin(t, r.all(), c.most, c.window); n != c.most {
				t.Errorf("%d alerts are sent, want %d", n, c.most)
			}
			r.advance(c.window * 62 / 60)
			r.take(s, r.raise(1, "later")...)
			r.seen.wait(t, "sent", c.most+1)
		})
	}
}

// losing is a limiter whose answers get lost.
type losing struct {
	alerts.Limiter
	lost atomic.Bool
}

func (l *losing) Consume(ctx context.Context, r limits.Request) (*limits.Reply, error) {
	reply, err := l.Limiter.Consume(ctx, r)
	if l.lost.Load() {
		return nil, errors.New("no answer")
	}
	return reply, err
}

// TestLateAlertsAreChargedWhenSentWithoutCrash: no process dies, but the answers to the charges
// get lost for a while.
func TestLateAlertsAreChargedWhenSentWithoutCrash(t *testing.T) {
	t.Parallel()
	r := newRig(t, atOnce)
	l := &losing{Limiter: r.limiter}
	l.lost.Store(true)
	s := r.runOver(r.store, l)
	r.take(s, r.raise(20, "before")...)
	r.seen.wait(t, "throttle failed", 20)
	l.lost.Store(false)
	r.advance(9 * time.Minute)
	r.seen.wait(t, "sent", 20)
	r.advance(53 * time.Minute)
	r.take(s, r.raise(20, "behind")...)
	r.seen.wait(t, "told", 40)
	if n := toldWithin(t, r.all(), 20, time.Hour); n != 20 {
		t.Errorf("%d alerts are sent, want 20", n)
	}
}

// TestCrashWhileRechargingSpendsNoSecondSlot, at whichever step the process dies.
func TestCrashWhileRechargingSpendsNoSecondSlot(t *testing.T) {
	t.Parallel()
	for _, behind := range []bool{false, true} {
		for i, step := range []string{"pending", "consume", "settle", "consume anew", "tell"} {
			t.Run(fmt.Sprintf("%s %t", step, behind), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, atOnce)
				r.dieCharged(r.exceeded("7", "api", 1))
				r.advance(5 * time.Minute)
				f := &fuse{behind: behind, burnt: make(chan struct{})}
				f.left.Store(int64(i + 1))
				m := &mortal{Store: r.store, limiter: r.limiter, fuse: f}
				s := r.runOver(m, m)
				select {
				case <-f.burnt:
				case <-time.After(patience):
					t.Fatal("it lives")
				}
				s.stop()
				r.advance(5 * time.Minute) // what was charged anew is old, too
				if r.run(); r.untold("7") > 0 {
					r.seen.wait(t, "sent", 1)
				}
				if n := len(r.outbox("log")); n != 1 || r.slots("7") != 1 {
					t.Errorf("%d deliveries, %d slots, want 1 of each", n, r.slots("7"))
				}
			})
		}
	}
}

// behind is a limiter whose clock is an hour behind. It counts the charges that were given back.
type behind struct{ back atomic.Int64 }

func (*behind) Consume(context.Context, limits.Request) (*limits.Reply, error) {
	return &limits.Reply{Allowed: true, Reset: time.Now().Truncate(time.Minute).Add(time.Minute).UnixMilli()}, nil
}

func (b *behind) Settle(context.Context, string, int64) (*limits.Reply, error) {
	b.back.Add(1)
	return &limits.Reply{Allowed: true}, nil
}

// TestLimiterClockBehindStopsRecharging: while the limiter's clock is behind, new charges end no
// later than the old ones.
func TestLimiterClockBehindStopsRecharging(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, l := newHanding(t), &behind{}
		h.service.Limiter = l
		h.take(t, 0, 1)
		h.run(t)
		h.told(t, 1)
		if n := l.back.Load(); n != 1 {
			t.Errorf("%d charges were given back, want 1", n)
		}
	})
}
