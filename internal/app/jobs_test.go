package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// houseNames returns the names of the jobs with their schedules.
func houseNames(o Options, s cleaner) (all []string) {
	for _, j := range maintenanceJobs(&o, s) {
		all = append(all, strings.TrimSpace(j.Name+" "+j.Schedule))
	}
	return all
}

func TestUnlimitedRetentionHasNoPruneJob(t *testing.T) {
	t.Parallel()
	store := &sqlite.Store{}
	want := []string{"expire", "overrides-prune 37 3 * * *"}
	if got := houseNames(Options{}, store); !slices.Equal(got, want) {
		t.Errorf("jobs %q, want %q", got, want)
	}
	want = []string{"expire @every 1m0s", "usage-rollup 7 * * * *", "usage-prune 17 * * * *", "requests-prune 27 * * * *",
		"overrides-prune 37 3 * * *", "history-prune 47 3 * * *"}
	o := Options{CleanupEvery: time.Minute, UsageMinuteDays: 1, UsageDays: 1, RequestDays: 1, JobDays: 1}
	if got := houseNames(o, store); !slices.Equal(got, want) {
		t.Errorf("jobs %q, want %q", got, want)
	}
}

// TestSQLiteJobsRunWithoutAlerts: no separate alerter can run them on a limiter's SQLite file.
func TestSQLiteJobsRunWithoutAlerts(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Alerter, o.CleanupEvery = "off", time.Minute
	nc := running(t, Run, o).connect(t)
	r, err := limits.NewClient(nc, limits.Timeout(patience)).RunJob(t.Context(), "expire")
	if err != nil || r.Run.Outcome != "done" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := nc.Request(limits.SubjectAlertsList, []byte(`{}`), patience); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("alerts: %v", err)
	}
}

// TestMaintenanceJobsRemoveInBatches runs every job on a store that has more than a batch of rows for it.
func TestMaintenanceJobsRemoveInBatches(t *testing.T) {
	t.Parallel()
	store := eachstore.SQLite(t, nil)
	const expired, live = 2*batchSize + 7, 5
	var b engine.Batch
	for i := range expired + live {
		b.Counters = append(b.Counters, engine.CounterID{Key: fmt.Sprintf("k%05d", i), Name: "1m"})
	}
	err := store.Update(t.Context(), b, func(snap engine.Snapshot) (c engine.Changes) {
		for i := range b.Counters {
			change := engine.CounterChange{Slot: i, State: []byte("s"), Spec: []byte("{}"), ExpiresAt: snap.Now}
			if i >= expired {
				change.ExpiresAt = snap.Now + time.Hour.Milliseconds()
			}
			c.Counters = append(c.Counters, change)
		}
		return c
	})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{UsageMinuteDays: 1, UsageDays: 1, RequestDays: 1, JobDays: 1}
	for _, j := range maintenanceJobs(&o, store) {
		want := map[string]string{"expire": fmt.Sprint("removed ", expired), "usage-rollup": "rolled up 0"}[j.Name]
		if want == "" {
			want = "removed 0"
		}
		if note, err := j.Run(t.Context()); note != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", j.Name, note, err, want)
		}
	}
	left, _, err := store.List(t.Context(), "", engine.CounterID{}, expired)
	if err != nil || len(left) != live {
		t.Errorf("%d counters are left, %v; want %d", len(left), err, live)
	}
}

func TestRemovalInBatchesEnds(t *testing.T) {
	t.Parallel()
	endless := func(context.Context, int) (int, error) { return batchSize, nil }
	if note, err := inBatches(t.Context(), "removed", 0, endless); note != "removed 500, more is left" || err != nil {
		t.Errorf("over its time: %q, %v", note, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if note, err := inBatches(ctx, "removed", time.Hour, endless); note != "removed 500" || err == nil {
		t.Errorf("cancelled: %q, %v", note, err)
	}
	broken := func(context.Context, int) (int, error) { return 3, jobs.ErrStopped }
	if note, err := inBatches(t.Context(), "removed", time.Hour, broken); note != "removed 3" || err != jobs.ErrStopped {
		t.Errorf("with an error: %q, %v", note, err)
	}
}

// TestFastBatchesHaveFewerPauses: with fast batches, pauses of 25 ms would take more than half of the time. With slow batches the
// pauses stay, because decisions are slow too then.
func TestFastBatchesHaveFewerPauses(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]struct {
		perSecond int
		together  int // batches without a pause in between
	}{
		0:                      {1_000_000, maxBatches},
		time.Millisecond:       {250_000, maxBatches},
		18 * time.Millisecond:  {24_000, maxBatches},
		200 * time.Millisecond: {2_300, 4},
		time.Second:            {480, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			total, together, most := 0, 0, 0
			var ended time.Time
			began := time.Now()
			_, err := inBatches(t.Context(), "removed", time.Minute, func(_ context.Context, n int) (int, error) {
				if together++; !time.Now().Equal(ended) {
					together = 1
				}
				most = max(most, together)
				time.Sleep(took)
				total, ended = total+n, time.Now()
				if total >= 100_000_000 {
					return 0, nil
				}
				return n, nil
			})
			rate := float64(total) / max(time.Since(began), time.Millisecond).Seconds()
			if err != nil || rate < float64(want.perSecond) || took > 0 && most > want.together {
				t.Errorf("batches of %s: %.0f rows/s with up to %d batches together, %v; want %d and %d", took, rate, most, err, want.perSecond, want.together)
			}
		})
	}
}

// TestBatchesPerPauseHalveWhenSlow, so that decisions do not wait for long.
func TestBatchesPerPauseHalveWhenSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var together []int // batches without a pause in between
		var ended time.Time
		_, err := inBatches(t.Context(), "removed", time.Minute, func(_ context.Context, n int) (int, error) {
			if len(together) == 0 || !time.Now().Equal(ended) {
				together = append(together, 0)
			}
			together[len(together)-1]++
			switch len(together) {
			case 10:
				n = 0
			case 1, 2, 3, 4, 5:
				time.Sleep(time.Millisecond)
			default:
				time.Sleep(time.Second)
			}
			ended = time.Now()
			return n, nil
		})
		if want := []int{1, 2, 4, 8, 16, 16, 8, 4, 2, 1}; err != nil || !slices.Equal(together, want) {
			t.Errorf("%d together, %v; want %d", together, err, want)
		}
	})
}
