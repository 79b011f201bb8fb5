package alerts_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

// TestTheThrottleIsExact raises an alert every minute for four hours.
func TestTheThrottleIsExact(t *testing.T) {
	t.Parallel()
	r := newRig(t, atOnce)
	s := r.run()
	for i := range 240 {
		r.take(s, r.exceeded("7", fmt.Sprint("p", i), 1))
		r.seen.wait(t, "told", i+1)
		r.advance(time.Minute)
	}
	sent := toldWithin(t, r.all(), 20, time.Hour)
	// A sliding window may be late by a 60th of its length.
	if sent < 78 {
		t.Errorf("%d sent in 4 hours, want 20 in each", sent)
	}
	if n := len(r.outbox("log")); n != sent {
		t.Errorf("%d deliveries of %d alerts", n, sent)
	}
}

// toldWithin returns how many alerts were sent, and checks that there are at most so many in any interval of a length.
func toldWithin(t *testing.T, all []alerts.Alert, most int, length time.Duration) int {
	t.Helper()
	var at []int64
	for _, a := range all {
		if a.Notice == alerts.Sent {
			at = append(at, a.NoticeAt)
		}
	}
	slices.Sort(at)
	for i := most; i < len(at); i++ {
		if took := time.Duration(at[i]-at[i-most]) * time.Millisecond; took < length {
			t.Errorf("%d alerts within %s", most+1, took)
		}
	}
	return len(at)
}

// TestRewrittenThrottleKeepsItsCounter: the counter stays the same if 1h is written as 60m.
func TestRewrittenThrottleKeepsItsCounter(t *testing.T) {
	t.Parallel()
	r := newRig(t, "{throttle: {limit: 3, window: 1h}, rules: [{name: denials, threshold: {denials: 1}}]}")
	s := r.run()
	for i := range 6 {
		if i == 3 {
			r.load("{throttle: {limit: 3, window: 60m}, rules: [{name: denials, threshold: {denials: 1}}]}")
		}
		r.take(s, r.exceeded("7", fmt.Sprint("p", i), 1))
		r.seen.wait(t, "told", i+1)
	}
	if n := r.seen.count("sent"); n != 3 {
		t.Errorf("%d alerts sent, want 3 in an hour", n)
	}
}

// TestRuleThrottlesAreIndependent: the alerts of one rule do not use up the throttle of another.
func TestRuleThrottlesAreIndependent(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{throttle: {limit: 5, window: 1h}, rules: [
		{name: one, match: {policy: "a*"}, threshold: {denials: 1}, throttle: {limit: 2, window: 1h}},
		{name: two, match: {policy: "b*"}, threshold: {denials: 1}, throttle: {limit: 2, window: 1h}},
		{name: rest, threshold: {denials: 1}, match: {policy: "c*"}}]}`)
	s := r.run()
	for _, c := range []struct {
		policy string
		sent   int
	}{{"a", 2}, {"b", 4}, {"c", 5}} {
		r.throttled(s, "7", c.policy+"1", c.policy+"2", c.policy+"3")
		if n := r.seen.count("sent"); n != c.sent {
			t.Errorf("%d alerts sent with those of %s, want %d", n, c.policy, c.sent)
		}
	}
}

// TestThrottleSharesNoApplicationCounter: an application that limits notifications to the same
// user, under a key such as the design suggests, shares no counter with the throttle, and its
// limit raises alerts like any other.
func TestThrottleSharesNoApplicationCounter(t *testing.T) {
	t.Parallel()
	const all = 40
	r := newRig(t, atOnce)
	notify := limits.Per("notify:user:7", 10, "1h")
	for range notify.Limit {
		if reply, err := r.limiter.Consume(t.Context(), notify); err != nil || !reply.Allowed {
			t.Fatalf("%+v, %v", reply, err)
		}
	}
	s := r.run()
	for i := range all {
		e := r.exceeded("7", fmt.Sprint("p", i), 1)
		e.Key = notify.Key
		r.take(s, e)
		r.seen.wait(t, "told", i+1)
		if _, err := r.limiter.Reset(t.Context(), limits.ResetRequest{Key: notify.Key}); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.seen.count("sent"); n != 20 {
		t.Errorf("%d of %d alerts sent, want 20", n, all)
	}
	if reply, err := r.limiter.Status(t.Context(), notify.Key); err != nil || len(reply.Counters) > 0 {
		t.Errorf("alerts were charged to %+v, %v", reply, err)
	}
}

// dying is the store of a process that dies before it has stored decisions about alerts.
type dying struct {
	alerts.Store
	reached chan struct{}
	once    sync.Once
}

func (d *dying) SaveNotices(context.Context, []alerts.NoticeDecision) ([]string, error) {
	d.once.Do(func() { close(d.reached) })
	return nil, errors.New("the process is dead")
}

// dieCharged lets a service charge the throttle for pending alerts, and die before it has stored the decisions.
func (r *rig) dieCharged(all ...alerts.Event) {
	r.t.Helper()
	d := &dying{Store: r.store, reached: make(chan struct{})}
	s := r.run(d)
	r.take(s, all...)
	select {
	case <-d.reached:
	case <-time.After(patience):
		r.t.Fatal("no alert should have been sent")
	}
	s.stop()
}

// afterDeath is longer than the claim of a dead process lasts.
const afterDeath = 11 * time.Second

func TestCrashBeforeSendSpendsNoSecondSlot(t *testing.T) {
	t.Parallel()
	r := newRig(t, atOnce)
	r.dieCharged(r.exceeded("7", "api", 1))
	if n := r.slots("7"); n != 1 {
		t.Fatalf("%d slots charged before, want 1", n)
	}
	r.advance(afterDeath)
	r.run()
	r.seen.wait(t, "sent", 1)
	if n := r.slots("7"); n != 1 {
		t.Errorf("%d slots charged, want 1", n)
	}
	if n := len(r.outbox("nats")); n != 1 {
		t.Errorf("%d deliveries, want 1", n)
	}
}

// TestThrottleKeepsUserOfRaisedAlert: an alert that is not grouped by user is updated by events of
// other users before it is sent.
func TestThrottleKeepsUserOfRaisedAlert(t *testing.T) {
	t.Parallel()
	r := newRig(t, "rules: [{name: denials, threshold: {denials: 1}, groupBy: [policy]}]")
	r.dieCharged(r.exceeded("7", "api", 1))
	quiet := r.run(&dying{Store: r.store, reached: make(chan struct{})})
	r.take(quiet, r.exceeded("8", "api", 1))
	quiet.stop()
	r.advance(afterDeath)
	r.run()
	r.seen.wait(t, "told", 1)
	if a := r.only(); a.Notice != alerts.Sent || a.User != "7" || a.Denied != 2 {
		t.Errorf("%+v", a)
	}
	if r.slots("7") != 1 || r.slots("8") != 0 {
		t.Errorf("%d slots of user 7 charged and %d of user 8", r.slots("7"), r.slots("8"))
	}
	if of, err := r.store.Alerts(t.Context(), alerts.AlertFilter{User: "7", Max: 10}); err != nil || len(of) != 1 || of[0].User != "7" {
		t.Errorf("alerts of user 7: %+v, %v", of, err)
	}
}

// TestAlertsWaitWithoutLimiter: while the throttle cannot be charged, alerts wait and are not
// lost.
func TestAlertsWaitWithoutLimiter(t *testing.T) {
	t.Parallel()
	r := newRig(t, atOnce)
	s := r.run()
	r.stopLimiter()
	r.take(s, r.exceeded("7", "a", 1), r.exceeded("7", "b", 1))
	r.seen.wait(t, "throttle failed", 2)
	for _, a := range r.all() {
		if a.Notice != alerts.Pending {
			t.Errorf("%+v", a)
		}
	}
	if n := len(r.outbox("nats")); n != 0 {
		t.Errorf("%d deliveries", n)
	}
	r.startLimiter()
	r.advance(afterDeath)
	r.seen.wait(t, "sent", 2)
	if n := len(r.outbox("nats")); n != 2 || r.slots("7") != 2 {
		t.Errorf("%d deliveries, %d slots", n, r.slots("7"))
	}
}

// says is a limiter with fixed answers.
type says struct {
	settles
	reply atomic.Pointer[limits.Reply]
	err   error
}

func (s *says) Consume(context.Context, limits.Request) (*limits.Reply, error) {
	return s.reply.Load(), s.err
}

// TestDegradedAnswerSendsNoAlert: a degraded answer charges nothing, so a user could be sent more
// than 20 in an hour.
func TestDegradedAnswerSendsNoAlert(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, l := newHanding(t), &says{}
		l.reply.Store(&limits.Reply{Allowed: true, Degraded: true})
		h.service.Limiter = l
		h.take(t, 0, 1)
		h.run(t)
		time.Sleep(time.Minute)
		h.told(t, 0)
		l.reply.Store(&limits.Reply{Allowed: true})
		h.told(t, 1)
	})
}

// TestUnchargeableThrottleHoldsAlert for the digest: a retry would not help.
func TestUnchargeableThrottleHoldsAlert(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHanding(t)
		h.service.Limiter = &says{err: &limits.Error{Status: 400, Code: "bad_limit"}}
		h.take(t, 0, 1)
		h.run(t)
		h.store.wait(t, "told", 1)
		all, err := h.store.Alerts(t.Context(), alerts.AlertFilter{Max: 10})
		if err != nil || len(all) != 1 || all[0].Notice != alerts.Held || all[0].Reason != "the throttle could not be charged: bad_limit" {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// TestOutageEndsWhenAnAlertIsSent: between the attempts nothing is pending because it is claimed,
// which is no success.
func TestOutageEndsWhenAnAlertIsSent(t *testing.T) {
	t.Parallel()
	for name, tell := range map[string]func(t *testing.T, h *handing){
		"by this process": func(_ *testing.T, h *handing) { h.limiter.fails.Store(false) },
		"by another": func(t *testing.T, h *handing) {
			all, err := h.store.Alerts(t.Context(), alerts.AlertFilter{Max: 10})
			if err != nil || len(all) != 1 {
				t.Fatal(all, err)
			}
			if _, err := h.store.SaveNotices(t.Context(), []alerts.NoticeDecision{{Alert: all[0].ID, Notice: alerts.Sent}}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				h := newHanding(t)
				h.log = slog.NewTextHandler(&log, nil)
				h.limiter.fails.Store(true)
				h.take(t, 0, 1)
				h.run(t)
				time.Sleep(time.Minute)
				synctest.Wait()
				if !strings.Contains(log.String(), "alerts cannot be sent, will retry") || strings.Contains(log.String(), "sent again") {
					t.Errorf("while the alert waits:\n%s", &log)
				}
				tell(t, h)
				time.Sleep(time.Minute)
				synctest.Wait()
				if strings.Count(log.String(), "alerts cannot be sent, will retry") != 1 || !strings.Contains(log.String(), "sent again") {
					t.Errorf("after that:\n%s", &log)
				}
			})
		})
	}
}
