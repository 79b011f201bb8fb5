package alerts_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// counting is a real store that counts how often it is polled for pending alerts, and how many were decided.
type counting struct {
	alerts.Store
	*seen
}

func (c *counting) PendingAlerts(ctx context.Context, max int, lease time.Duration) ([]alerts.Alert, int64, error) {
	c.add("asked")
	return c.Store.PendingAlerts(ctx, max, lease)
}

func (c *counting) SaveNotices(ctx context.Context, all []alerts.NoticeDecision) ([]string, error) {
	told, err := c.Store.SaveNotices(ctx, all)
	for range told {
		c.add("told")
	}
	return told, err
}

// settles is a limiter that accepts settles.
type settles struct{}

func (settles) Settle(context.Context, string, int64) (*limits.Reply, error) {
	return &limits.Reply{Allowed: true}, nil
}

// limiter allows everything, or fails. Its answers have no reset, as if its clock were far behind.
type limiter struct {
	settles
	fails atomic.Bool
}

func (l *limiter) Consume(context.Context, limits.Request) (*limits.Reply, error) {
	if l.fails.Load() {
		return nil, errors.New("no limiter answers")
	}
	return &limits.Reply{Allowed: true}, nil
}

// handing is a service on a store whose clock can be moved forward.
type handing struct {
	store   *counting
	limiter limiter
	service *alerts.Service
	ahead   atomic.Int64              // of the store's clock
	stands  atomic.Pointer[time.Time] // where the store's clock stands; nil where it goes
	log     slog.Handler
}

func (h *handing) now() time.Time {
	if at := h.stands.Load(); at != nil {
		return *at
	}
	return time.Now().Add(time.Duration(h.ahead.Load()))
}

func newHanding(t *testing.T) *handing {
	h := &handing{log: slog.DiscardHandler}
	store := eachstore.SQLite(t, h.now)
	h.store = &counting{store, newSeen()}
	rules := alerts.Default()
	rules.Rules[0].Threshold = 1
	h.service = alerts.New(alerts.Config{Store: h.store, Limiter: &h.limiter, Rules: func() *alerts.Rules { return rules }, NewID: rand.Text})
	return h
}

// run runs the service until the test ends.
func (h *handing) run(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { h.service.Run(ctx, slog.New(h.log)); close(ended) }()
	t.Cleanup(func() { stop(); <-ended })
}

// take takes the first denials of some users.
func (h *handing) take(t *testing.T, from, to int) {
	t.Helper()
	h.takeAs(t, "e", from, to)
}

// takeAs takes denials of some users, in events whose ids begin with a prefix.
func (h *handing) takeAs(t *testing.T, prefix string, from, to int) {
	t.Helper()
	var events []alerts.Event
	for i := from; i < to; i++ {
		events = append(events, alerts.Event{ID: fmt.Sprint(prefix, i), Type: limits.EventExceeded, Time: time.Now().UnixMilli(),
			Key: fmt.Sprint("k", i), Name: "1m", Window: "1m", User: fmt.Sprint("u", i), Limit: 1, Denied: 1})
	}
	if err := h.service.Take(t.Context(), events); err != nil {
		t.Fatal(err)
	}
}

// told waits until so many alerts were decided.
func (h *handing) told(t *testing.T, want int) {
	t.Helper()
	h.store.wait(t, "told", want)
	waiting, err := h.store.WaitingDeliveries(t.Context())
	if err != nil || waiting["log"] != int64(want) {
		t.Fatalf("%v deliveries wait, want %d, %v", waiting, want, err)
	}
}

func TestRaisedAlertsAreSentWithoutStorePoll(t *testing.T) {
	t.Parallel()
	h := newHanding(t)
	at := time.Now()
	h.stands.Store(&at) // no claim ever ends, so nobody has them from the store
	const batch, batches = 100, 3
	for i := range batches {
		h.take(t, i*batch, (i+1)*batch)
	}
	pending, _, err := h.store.Store.PendingAlerts(t.Context(), 10*batch, time.Hour)
	if err != nil || len(pending) > 0 {
		t.Fatalf("%d alerts are to be had by others, %v", len(pending), err)
	}
	h.run(t)
	h.told(t, batch*batches)
}

// Alerts for which the queue has no room wait in the store and are not lost.
func TestAlertsBeyondTheQueueAreSent(t *testing.T) {
	t.Parallel()
	h := newHanding(t)
	at := time.Now()
	h.stands.Store(&at) // a slow machine takes longer than the claims last
	for i := range 12 {
		h.take(t, i*100, (i+1)*100)
	}
	h.take(t, 1200, 1224)
	h.take(t, 1224, 1225)
	// Ten batches and 24 alerts fit into the queue.
	pending, _, err := h.store.PendingAlerts(t.Context(), 1225, time.Millisecond)
	if err != nil || len(pending) != 201 {
		t.Fatalf("%d alerts are to be had by others, want 201, %v", len(pending), err)
	}
	h.stands.Store(nil)
	h.run(t)
	h.told(t, 1225)
}

// TestDenialsOfAnOpenAlertCauseNoStorePoll, which would find nothing. But an alert that was silenced, and may be pending
// again, is sent at once.
func TestDenialsOfAnOpenAlertCauseNoStorePoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHanding(t)
		silence := alerts.Silence{ID: "s", User: "u3", Reason: "a load test"}
		if _, err := h.store.AddSilence(t.Context(), silence, time.Second); err != nil {
			t.Fatal(err)
		}
		h.run(t)
		h.take(t, 0, 4)
		h.told(t, 3)
		time.Sleep(time.Minute + time.Second/2) // between two polls
		synctest.Wait()
		asked := h.store.count("asked")
		h.takeAs(t, "more", 0, 3)
		synctest.Wait()
		if n := h.store.count("asked") - asked; n != 0 {
			t.Errorf("the store was polled %d times", n)
		}
		h.takeAs(t, "more", 3, 4)
		synctest.Wait()
		h.told(t, 4)
	})
}

// A stop leaves no claimed alert for which the next process would have to wait.
func TestStopSendsQueuedAlerts(t *testing.T) {
	t.Parallel()
	h := newHanding(t)
	h.take(t, 0, 3)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	h.service.Run(ctx, slog.New(slog.DiscardHandler))
	waiting, err := h.store.WaitingDeliveries(t.Context())
	if err != nil || waiting["log"] != 3 {
		t.Errorf("%v deliveries wait after the stop, want 3, %v", waiting, err)
	}
}

// An alert on which the limiter did not decide is handled again when its claim ends.
func TestUndecidedQueuedAlertIsRetried(t *testing.T) {
	t.Parallel()
	h := newHanding(t)
	h.limiter.fails.Store(true)
	h.run(t)
	h.take(t, 0, 3)
	h.store.wait(t, "asked", h.store.count("asked")+2) // they have been tried
	h.limiter.fails.Store(false)
	h.told(t, 0)
	h.ahead.Store(int64(time.Minute))
	h.told(t, 3)
}

// hanging is a limiter that does not answer for a minute.
type hanging struct{ settles }

func (hanging) Consume(ctx context.Context, _ limits.Request) (*limits.Reply, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Minute):
		return nil, errors.New("no limiter answers")
	}
}

// TestStopIsNotBlockedByHangingLimiter: another process finds the undecided alert without being
// woken.
func TestStopIsNotBlockedByHangingLimiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHanding(t)
		h.service.Limiter = hanging{}
		h.take(t, 0, 3)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { h.service.Run(ctx, slog.New(slog.DiscardHandler)); close(ended) }()
		synctest.Wait()
		stop()
		began := time.Now()
		<-ended
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("stopped after %s, want 3s", took)
		}
		h.service.Limiter = &h.limiter
		h.service = alerts.New(h.service.Config)
		h.run(t)
		synctest.Wait()
		h.told(t, 0) // they are claimed yet
		h.told(t, 3)
	})
}

// TestAFullBatchIsFollowedAtOnce by the next, and an empty one after a second: otherwise a flood would be handled slowly, or
// the store would be polled in a tight loop.
func TestAFullBatchIsFollowedAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("full", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			h := newHanding(t)
			h.service.Batch = 10
			h.take(t, 0, 55)
			began := time.Now()
			h.run(t)
			h.told(t, 55)
			if took := time.Since(began); took != 0 {
				t.Errorf("the last was told of after %s, want at once", took)
			}
		})
	})
	t.Run("empty", func(t *testing.T) {
		t.Parallel()
		h := newHanding(t)
		began := time.Now()
		h.run(t)
		h.store.wait(t, "asked", 3)
		if took := time.Since(began); took < 2*time.Second {
			t.Errorf("the store was asked 3 times in %s, want once a second", took)
		}
	})
}

// TestDeadProcessAlertsAreSentUnderLoad: a process that always has alerts in its queue still polls
// the store for those of a dead process.
func TestDeadProcessAlertsAreSentUnderLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHanding(t)
		h.take(t, 0, 1)
		h.service = alerts.New(h.service.Config) // the first has died
		h.run(t)
		const busy = 130 // tenths of a second; a claim lasts for 10 s, and the store is asked each second
		for i := range busy {
			h.take(t, 1+i, 2+i)
			time.Sleep(100 * time.Millisecond)
		}
		if n := h.store.count("told"); n != busy+1 {
			t.Errorf("%d alerts are sent after %d tenths of a second, want %d", n, busy, busy+1)
		}
	})
}

// choosy is a limiter that refuses one user.
type choosy struct {
	settles
	refused string
}

func (c choosy) Consume(_ context.Context, r limits.Request) (*limits.Reply, error) {
	return &limits.Reply{Allowed: !strings.HasSuffix(r.Limits[0].Key, ":"+c.refused)}, nil
}

// TestSenderIsWokenIfAnyAlertIsSent: it is woken if any alert of a batch is sent.
func TestSenderIsWokenIfAnyAlertIsSent(t *testing.T) {
	t.Parallel()
	for _, refused := range []string{"u0", "u1"} {
		synctest.Test(t, func(t *testing.T) {
			h := newHanding(t)
			h.service.Limiter = choosy{refused: refused}
			delivered := 0
			h.service.Delivered = func() { delivered++ }
			h.take(t, 0, 2)
			h.run(t)
			synctest.Wait()
			if n := h.store.count("told"); n != 2 || delivered != 1 {
				t.Errorf("%s is refused: %d alerts are sent, and the sender is woken %d times, want 2 and once", refused, n, delivered)
			}
		})
	}
}
