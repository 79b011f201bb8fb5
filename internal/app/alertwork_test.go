package app

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/web"
)

// TestBusyIsCalledFrom100AlertsASecond, and all of them are in the metrics.
func TestBusyIsCalledFrom100AlertsASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		told, registry := 0, prometheus.NewRegistry()
		w := &alertWork{
			AlertMetrics: web.NewMetrics(registry).WatchAlerts(func(context.Context) (map[string]int64, error) { return nil, nil },
				func() []string { return nil }),
			busy: func() { told++ },
		}
		for _, step := range []struct {
			what string
			do   func()
			want int
		}{
			{"99 events", func() { w.EventsMatched(90, 9, 1000) }, 0},
			{"an alert besides", func() { w.AlertChanged("raised", "r") }, 1},
			{"a delivery besides", func() { w.DeliveryTried("log", "sent", time.Millisecond) }, 2},
			{"99 deliveries in the next second", func() {
				time.Sleep(time.Second)
				for range 99 {
					w.DeliveryTried("log", "sent", time.Millisecond)
				}
			}, 2},
			{"50 events in the one after it", func() { time.Sleep(time.Second); w.EventsMatched(50, 0, 0) }, 2},
			{"another 50 in that", func() { w.EventsMatched(50, 0, 0) }, 3},
		} {
			if step.do(); told != step.want {
				t.Errorf("after %s it was told %d times, want %d", step.what, told, step.want)
			}
		}
		counted := map[string]bool{}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.Metric {
				counted[f.GetName()] = counted[f.GetName()] || m.GetCounter().GetValue() > 0
			}
		}
		for _, name := range []string{"limits_alert_events_total", "limits_alerts_total", "limits_alert_deliveries_total"} {
			if !counted[name] {
				t.Errorf("%s counts nothing", name)
			}
		}
	})
}

// TestABacklogOfEventsKeepsALimiterBusy: Busy is called, because it needs all processors then.
func TestABacklogOfEventsKeepsALimiterBusy(t *testing.T) {
	t.Parallel()
	o := options(t)
	busy := make(chan struct{}, 1)
	o.Busy = func() {
		select {
		case busy <- struct{}{}:
		default:
		}
	}
	nc := running(t, Run, o).connect(t)
	client := limits.NewClient(nc, limits.Timeout(patience))
	var denials errgroup.Group
	denials.SetLimit(64)
	for i := range 1000 {
		denials.Go(func() error {
			r := limits.Per(fmt.Sprint("k:", i), 1, "1m")
			r.Cost = 2
			_, err := client.Check(t.Context(), r)
			return err
		})
	}
	if err := denials.Wait(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-busy:
	case <-time.After(patience):
		t.Errorf("Busy was not called for 1000 events within %s", patience)
	}
}
