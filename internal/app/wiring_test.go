package app

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts/deliver"
	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestEveryPartHasItsMetrics, also before anything has happened that they count.
func TestEveryPartHasItsMetrics(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Version = "1.2.3"
	_, body := running(t, Run, o).get(t, "/metrics")
	wanted := []string{
		`limits_build_info{version="1.2.3"} 1`, "limits_outbox_backlog 0", "limits_usage_other_total 0", "limits_queue_depth 0",
		"limits_leased 0", "limits_store_failing 0", "limits_deciding 1",
	}
	for _, o := range []jobs.Outcome{jobs.Done, jobs.Failed, jobs.TimedOut, jobs.Canceled, jobs.Skipped, jobs.Lost} {
		wanted = append(wanted, fmt.Sprintf(`limits_job_runs_total{job="expire",outcome=%q} 0`, o)) // it runs only on request
	}
	for _, o := range []deliver.Outcome{deliver.Sent, deliver.Retry, deliver.PutOff, deliver.Dead, deliver.Disabled} {
		wanted = append(wanted, fmt.Sprintf(`limits_alert_deliveries_total{channel="log",outcome=%q} 0`, o))
	}
	wanted = append(wanted, fmt.Sprintf(`limits_alert_deliveries_total{channel="",outcome=%q} 0`, deliver.Removed))
	for _, want := range wanted {
		if !strings.Contains(body, "\n"+want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}

// TestEventsArePublishedAtOnce, and not when the relay looks by itself, which it does once a second.
func TestEventsArePublishedAtOnce(t *testing.T) {
	t.Parallel()
	nc := running(t, Run, options(t)).connect(t)
	denials, err := nc.SubscribeSync(limits.EventExceeded)
	if err != nil {
		t.Fatal(err)
	}
	client := limits.NewClient(nc, limits.Timeout(patience))
	var took time.Duration
	for i, end := 0, time.Now().Add(patience); time.Now().Before(end); i++ { // a slow machine may need several attempts
		began := time.Now()
		deny(t, client, fmt.Sprint("k", i))
		if _, err := denials.NextMsg(patience); err != nil {
			t.Fatal(err)
		}
		if took = time.Since(began); i > 0 && took < time.Second/2 { // the relay may have looked just behind the first
			return
		}
	}
	t.Errorf("the last event took %s", took)
}

// TestOnErrorAppliesToOtherRequests: those that do not say how they are answered while the store fails.
func TestOnErrorAppliesToOtherRequests(t *testing.T) {
	t.Parallel()
	for onError, allowed := range map[string]bool{"": true, "deny": false} {
		t.Run(onError, func(t *testing.T) {
			t.Parallel()
			o := options(t)
			o.DatabaseURL, o.OnError = testenv.Postgres(t), onError
			client := limits.NewClient(running(t, Run, o).connect(t), limits.Timeout(patience))
			if _, err := database(t, o.DatabaseURL).Exec(t.Context(), `ALTER TABLE journal RENAME TO gone`); err != nil {
				t.Fatal(err)
			}
			if reply, err := client.Consume(t.Context(), limits.Per("k", 1, "1h")); err != nil || !reply.Degraded || reply.Allowed != allowed {
				t.Errorf("%+v, %v", reply, err)
			}
		})
	}
}
