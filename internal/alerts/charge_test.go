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

// TestAChargeIsValidForTheShortestOfItsThrottles: an alert that is sent on it counts for a whole window of each.
func TestAChargeIsValidForTheShortestOfItsThrottles(t *testing.T) {
	t.Parallel()
	const hour, day = 60 * minute, 24 * 60 * minute
	a := Alert{Throttles: []Throttle{{Limit: 20, Window: "1h"}, {Name: "one", Limit: 5, Window: "1d"}}}
	for _, c := range []struct{ ofHour, ofDay, want int64 }{
		{start + hour, start + day + 1, start}, {start + hour + 1, start + day, start}, {start, start + day, start - hour},
	} {
		reply := &limits.Reply{Reset: start + 2*day, Limits: []limits.LimitReply{{Reset: c.ofHour}, {Reset: c.ofDay}}}
		if got := a.chargeValidUntil(reply); got != c.want {
			t.Errorf("resets %d and %d from now: valid for %d ms, want %d", c.ofHour-start, c.ofDay-start, got-start, c.want-start)
		}
	}
	a.Throttles = a.Throttles[:1] // a reply about one limit lists none
	if got := a.chargeValidUntil(&limits.Reply{Reset: start + hour + 7}); got != start+7 {
		t.Errorf("of one throttle: valid for %d ms, want 7", got-start)
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
