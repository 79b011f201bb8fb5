package web

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestAlertMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	away := error(nil)
	a := NewMetrics(reg).WatchAlerts(func(context.Context) (map[string]int64, error) { return map[string]int64{"pager": 8}, away }, noChannels)
	a.EventsMatched(1, 2, 3)
	a.EventsReturned(4)
	a.EventPoisoned()
	a.EventsLost(5)
	a.EventsPending(6)
	a.AlertChanged("raised", "denials")
	a.ThrottleFailed()
	a.DeliveryTried("pager", "sent", 10*time.Millisecond)
	a.DeliveryTried("pager", "removed", 0) // nothing was sent
	compare := func(want string, names ...string) {
		t.Helper()
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), names...); err != nil {
			t.Error(err)
		}
	}
	compare(`
# HELP limits_alert_events_total Events of the stream: taken (matched a rule), repeated, unmatched, returned to come again, poison.
# TYPE limits_alert_events_total counter
limits_alert_events_total{outcome="poison"} 1
limits_alert_events_total{outcome="repeated"} 2
limits_alert_events_total{outcome="returned"} 4
limits_alert_events_total{outcome="taken"} 1
limits_alert_events_total{outcome="unmatched"} 3
`, "limits_alert_events_total")
	compare(`
# HELP limits_alert_delivery_seconds How long tries to deliver took.
# TYPE limits_alert_delivery_seconds histogram
limits_alert_delivery_seconds_bucket{channel="pager",le="0.005"} 0
limits_alert_delivery_seconds_bucket{channel="pager",le="0.02"} 1
limits_alert_delivery_seconds_bucket{channel="pager",le="0.1"} 1
limits_alert_delivery_seconds_bucket{channel="pager",le="0.5"} 1
limits_alert_delivery_seconds_bucket{channel="pager",le="2"} 1
limits_alert_delivery_seconds_bucket{channel="pager",le="5"} 1
limits_alert_delivery_seconds_bucket{channel="pager",le="15"} 1
limits_alert_delivery_seconds_bucket{channel="pager",le="+Inf"} 1
limits_alert_delivery_seconds_sum{channel="pager"} 0.01
limits_alert_delivery_seconds_count{channel="pager"} 1
`, "limits_alert_delivery_seconds")
	for name, want := range map[string]float64{"limits_alert_events_lost_total": 5, "limits_alert_events_pending": 6, "limits_alerts_total": 1,
		"limits_alert_throttle_failures_total": 1, "limits_alert_deliveries_waiting": 8} {
		if got := single(t, reg, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	// 0 would mean that nothing waits.
	a.EventsPendingUnknown()
	away = errors.New("no route to host")
	compare("", "limits_alert_events_pending", "limits_alert_deliveries_waiting")
}

func noChannels() []string { return nil }

// TestDeliveriesAreCountedFromZero for the channels of the current file, because Prometheus sees no increase in a series that
// begins with 1. Files that change leave only what was counted.
func TestDeliveriesAreCountedFromZero(t *testing.T) {
	t.Parallel()
	reg, channels := prometheus.NewPedanticRegistry(), []string{"log"}
	a := NewMetrics(reg).WatchAlerts(func(context.Context) (map[string]int64, error) { return nil, nil }, func() []string { return channels })
	const name = "limits_alert_deliveries_total"
	compare := func(series ...string) {
		t.Helper()
		want := "# HELP " + name + " Tries to deliver, by how they ended.\n# TYPE " + name + " counter\n"
		for _, s := range append(series, `channel="",outcome="dead"} 0`, `channel="",outcome="removed"} 0`) {
			want += name + "{" + s + "\n"
		}
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), name); err != nil {
			t.Error(err)
		}
	}
	compare(`channel="log",outcome="dead"} 0`, `channel="log",outcome="disabled"} 0`, `channel="log",outcome="put_off"} 0`,
		`channel="log",outcome="retry"} 0`, `channel="log",outcome="sent"} 0`)
	a.DeliveryTried("log", "dead", time.Second)
	channels = []string{"pager"}
	compare(`channel="log",outcome="dead"} 1`,
		`channel="pager",outcome="dead"} 0`, `channel="pager",outcome="disabled"} 0`, `channel="pager",outcome="put_off"} 0`,
		`channel="pager",outcome="retry"} 0`, `channel="pager",outcome="sent"} 0`)
	channels = nil
	for range 2 {
		a.DeliveryTried("log", "dead", time.Second)
	}
	compare(`channel="log",outcome="dead"} 3`)
}

// single returns the value of a metric with one series.
func single(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name && len(f.Metric) == 1 {
			return f.Metric[0].GetGauge().GetValue() + f.Metric[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("%s does not have one series", name)
	return 0
}

// TestScrapeIsNotHeldUpByHangingStore: the number of waiting deliveries is missing after a second.
func TestScrapeIsNotHeldUpByHangingStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		NewMetrics(reg).WatchAlerts(func(ctx context.Context) (map[string]int64, error) { <-ctx.Done(); return nil, ctx.Err() }, noChannels)
		began := time.Now()
		if n, err := testutil.GatherAndCount(reg, "limits_alert_deliveries_waiting"); n != 0 || err != nil || time.Since(began) != time.Second {
			t.Errorf("%d values, %v, after %s", n, err, time.Since(began))
		}
	})
}

func TestFileMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	m := NewMetrics(reg)
	m.WatchPolicies(func() (string, float64, int64) { return "ab12", 1.5, 2 })
	m.WatchAlertsFile(func() (string, float64, int64) { return "cd34", 2.5, 3 })
	for name, want := range map[string]float64{"limits_policies_info": 1, "limits_policies_loaded_timestamp_seconds": 1.5,
		"limits_policies_reload_failures_total": 2, "limits_alerts_file_info": 1, "limits_alerts_file_loaded_timestamp_seconds": 2.5,
		"limits_alerts_file_reload_failures_total": 3} {
		if got := single(t, reg, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}
