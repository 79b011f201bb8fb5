package alerts

import (
	"context"
	"errors"
	"testing"

	"github.com/seed503877ad/limits"
)

// away is a store that does not work.
type away struct{ Store }

var errAway = errors.New("away")

func (away) Take(context.Context, TakeQuery, func(TakeState) (Changes, error)) error { return errAway }

// TestTakeOfNothingAsksTheStore, which tells whether it works. Events that no rule matches do not need it.
func TestTakeOfNothingAsksTheStore(t *testing.T) {
	t.Parallel()
	s := New(Config{Store: away{}, Rules: Default})
	other := denial(1, 0, 1)
	other.Type = limits.EventWarning
	for want, events := range map[error][]Event{errAway: nil, nil: {other}} {
		if err := s.Take(t.Context(), events); !errors.Is(err, want) {
			t.Errorf("%d events: %v, want %v", len(events), err, want)
		}
	}
}

// TestChargeIsValidWhileEachThrottleHoldsIt for a whole window.
func TestChargeIsValidWhileEachThrottleHoldsIt(t *testing.T) {
	t.Parallel()
	hour, brief := Throttle{Limit: 20, Window: "1h"}, Throttle{Name: "a", Limit: 5, Window: "10m"}
	both := []limits.LimitReply{{Reset: start + 90*minute}, {Reset: start + 15*minute}}
	for want, c := range map[int64]struct {
		throttles []Throttle
		reply     limits.Reply
	}{
		start + 30*minute: {[]Throttle{hour}, limits.Reply{Reset: start + 90*minute}},
		start + 5*minute:  {[]Throttle{hour, brief}, limits.Reply{Reset: start + 90*minute, Limits: both}},
	} {
		a := Alert{Throttles: c.throttles}
		if got := a.chargeValidUntil(&c.reply); got != want {
			t.Errorf("%+v: %d, want %d", c, got, want)
		}
	}
}

// lasting is a limiter whose charges end at given times, one after another.
type lasting struct {
	ends []int64
	back int
}

func (l *lasting) Consume(context.Context, limits.Request) (*limits.Reply, error) {
	return &limits.Reply{Allowed: true, Reset: l.ends[l.back]}, nil
}

func (l *lasting) Settle(context.Context, string, int64) (*limits.Reply, error) {
	l.back++
	return &limits.Reply{Allowed: true}, nil
}

// TestChargeIsMadeAgainIfItEndsTooEarly by more than the limiter's clock may be behind.
func TestChargeIsMadeAgainIfItEndsTooEarly(t *testing.T) {
	t.Parallel()
	const now = start + 60*minute
	for early, back := range map[int64]int{0: 0, 1000: 0, 1001: 1} {
		l := &lasting{ends: []int64{now - early + 60*minute, now + 60*minute}}
		a := Alert{Throttles: []Throttle{{Limit: 20, Window: "1h"}}}
		refused, err := New(Config{Limiter: l}).throttle(t.Context(), &a, now)
		if err != nil || refused != "" || l.back != back {
			t.Errorf("%d ms too early, it was given back %d times, want %d; %q, %v", early, l.back, back, refused, err)
		}
	}
}
