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
