package alerts

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// damaged is a store that cannot give pending alerts while it is.
type damaged struct {
	Store
	is atomic.Bool
}

func (d *damaged) PendingAlerts(context.Context, int, time.Duration) ([]Alert, int64, error) {
	if d.is.Load() {
		return nil, 0, errors.New("a row is damaged")
	}
	return nil, 0, nil
}

// TestStoreThatKeepsAlertsFromBeingSentIsAFailure after some seconds, until it works again. Single failed tries are none.
func TestStoreThatKeepsAlertsFromBeingSentIsAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &damaged{}
		s := New(Config{Store: d, Rules: Default})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx, slog.New(slog.DiscardHandler))
		for _, c := range []struct {
			is    bool
			after time.Duration
			want  string
		}{
			{false, time.Minute, ""}, {true, 3 * time.Second, ""}, {false, 10 * time.Second, ""}, {true, 3 * time.Second, ""},
			{true, 20 * time.Second, "send alerts: a row is damaged"}, {false, 8 * time.Second, ""}, // the pause between two tries grows to 7.5 s
		} {
			d.is.Store(c.is)
			time.Sleep(c.after)
			got := ""
			if err := s.Failure(); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("%t for %s: %q, want %q", c.is, c.after, got, c.want)
			}
		}
	})
}
