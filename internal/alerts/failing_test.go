package alerts

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits"
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

// refusing gives its one pending alert, claimed for the lease, and takes no notice while it refuses.
type refusing struct {
	Store
	refuses atomic.Bool
	stored  atomic.Bool
	claimed time.Time // until when
}

func (r *refusing) alert() Alert {
	a := Alert{ID: "A", Notice: Pending, RaisedAt: time.Now().UnixMilli(), Channels: []string{"log"}}
	if r.stored.Load() {
		a.Notice = Sent
	}
	return a
}

func (r *refusing) PendingAlerts(_ context.Context, _ int, lease time.Duration) ([]Alert, int64, error) {
	now := time.Now()
	if r.stored.Load() || now.Before(r.claimed) {
		return nil, now.UnixMilli(), nil
	}
	r.claimed = now.Add(lease)
	return []Alert{r.alert()}, now.UnixMilli(), nil
}

func (r *refusing) Alert(context.Context, string) (Alert, bool, error)     { return r.alert(), true, nil }
func (r *refusing) Silences(context.Context, bool, int) ([]Silence, error) { return nil, nil }

func (r *refusing) SaveNotices(context.Context, []NoticeDecision) ([]string, error) {
	if r.refuses.Load() {
		return nil, errors.New("permission denied for table alert_deliveries")
	}
	r.stored.Store(true)
	return []string{"A"}, nil
}

type allowing struct{}

func (allowing) Consume(context.Context, limits.Request) (*limits.Reply, error) {
	return &limits.Reply{Allowed: true}, nil
}

func (allowing) Settle(context.Context, string, int64) (*limits.Reply, error) {
	return &limits.Reply{Allowed: true}, nil
}

// TestStoreThatTakesNoNoticeIsAFailure all the time, also while the alert is claimed, so that a poll finds none; and no longer
// once the notice is stored, here or by another process.
func TestStoreThatTakesNoNoticeIsAFailure(t *testing.T) {
	t.Parallel()
	for _, elsewhere := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := &refusing{}
			store.refuses.Store(true)
			s := New(Config{Store: store, Rules: Default, Limiter: allowing{}})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go s.Run(ctx, slog.New(slog.DiscardHandler))
			time.Sleep(30 * time.Second)
			for range 100 {
				if time.Sleep(time.Second); s.Failure() == nil {
					t.Fatal("no failure while no alert can be sent")
				}
			}
			if store.refuses.Store(false); elsewhere {
				store.stored.Store(true)
			}
			time.Sleep(2 * pendingLease)
			if err := s.Failure(); err != nil {
				t.Errorf("stored elsewhere %t: %v after it was", elsewhere, err)
			}
		})
	}
}
