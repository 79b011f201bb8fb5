package deliver

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"

	"github.com/sony/gobreaker/v2"
)

// idle is a loop that does not run, whose channel has the target "now".
func idle(t *testing.T, log *slog.Logger) *loop {
	t.Helper()
	s, err := NewSender(Config{Outbox: struct{ Outbox }{}, Logger: log, Channels: func() []Named { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	return newLoop(s, Named{Name: "a", Target: "now", Channel: refusing{}})
}

// claimed is an attempt that has just begun, of a delivery that has been tried before.
func claimed(tries int, before string, err error) *attempt {
	now := time.Now()
	return &attempt{claimed: now, target: "now", err: err,
		delivery: alerts.Delivery{ID: "m", Channel: "a", Attempts: tries, Error: before, DueAt: now.Add(leaseFor).UnixMilli()}}
}

// TestDeliveryThatWasNotTriedIsPutOff: it loses no try, waits about as long as the circuit is open, and keeps what is known.
func TestDeliveryThatWasNotTriedIsPutOff(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err           error
		before, want  string
		least, atMost time.Duration
	}{
		{gobreaker.ErrOpenState, "", "put off: circuit breaker is open", 24 * time.Second, 36 * time.Second},
		{gobreaker.ErrOpenState, "it answered 500", "it answered 500", 24 * time.Second, 36 * time.Second},
		{gobreaker.ErrTooManyRequests, "it answered 500", "it answered 500", 24 * time.Second, 36 * time.Second},
		{errStopped, "", "put off: the process is stopping", 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			got := idle(t, slog.New(slog.DiscardHandler)).evaluate(t.Context(), claimed(maxAttempts-1, c.before, c.err))
			wait := time.Duration(got.DueAt-time.Now().UnixMilli()) * time.Millisecond
			if got.State != alerts.DeliveryWaiting || got.Counts || got.Error != c.want || wait < c.least || wait > c.atMost {
				t.Errorf("%v after %q: %+v, in %s", c.err, c.before, got, wait)
			}
		})
	}
}

// TestPauseCostsOneTry of all the deliveries that were under way when the target asked for it, whatever they had left.
func TestPauseCostsOneTry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, busy := idle(t, slog.New(slog.DiscardHandler)), &alerts.Refusal{Err: errors.New("busy"), RetryAfter: time.Minute}
		for i, want := range []struct {
			tries  int
			state  alerts.DeliveryState
			counts bool
		}{
			{maxAttempts - 2, alerts.DeliveryWaiting, true}, {maxAttempts - 1, alerts.DeliveryWaiting, false}, {0, alerts.DeliveryWaiting, false},
		} {
			got := l.evaluate(t.Context(), claimed(want.tries, "", busy))
			if wait := got.DueAt - time.Now().UnixMilli(); got.State != want.state || got.Counts != want.counts || wait < time.Minute.Milliseconds() {
				t.Errorf("number %d: %+v, in %d ms; want %+v", i+1, got, wait, want)
			}
		}
		if got := l.evaluate(t.Context(), claimed(maxAttempts-1, "", errors.New("down"))); got.State != alerts.DeliveryDead {
			t.Errorf("%+v after the last try", got)
		}
	})
}

// TestOnePauseIsOneWarning, however many deliveries were under way when the target asked for it.
func TestOnePauseIsOneWarning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		l, busy := idle(t, slog.New(slog.NewTextHandler(&log, nil))), &alerts.Refusal{Err: errors.New("busy"), RetryAfter: time.Minute}
		for range 32 {
			l.evaluate(t.Context(), claimed(0, "", busy))
			time.Sleep(time.Millisecond) // the answers come one after another
		}
		if n := strings.Count(log.String(), "channel paused"); n != 1 {
			t.Errorf("%d warnings of one pause", n)
		}
	})
}

// TestPausesAreOfTheTarget that asks, and the longest that it asks for counts.
func TestPausesAreOfTheTarget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := idle(t, slog.New(slog.DiscardHandler))
		if l.pause("before", time.Hour) || !l.paused().IsZero() {
			t.Error("a target that the channel had before pauses it")
		}
		if l.pause("now", time.Minute) || !l.pause("now", time.Second) || !l.paused().Equal(time.Now().Add(time.Minute)) {
			t.Errorf("paused until %s, want a minute from %s", l.paused(), time.Now())
		}
		time.Sleep(time.Minute) // of the test's clock
		if !l.paused().IsZero() || l.pause("now", time.Second) {
			t.Error("paused when the minute is over")
		}
	})
}

// TestLastErrorIsOfTheTarget of now, and neither a stop nor a try that works leaves one.
func TestLastErrorIsOfTheTarget(t *testing.T) {
	t.Parallel()
	l := idle(t, slog.New(slog.DiscardHandler))
	l.record("before", errors.New("down"))
	l.record("now", errStopped)
	if got := l.lastErr(); got != "" {
		t.Errorf("%q", got)
	}
	l.record("now", errors.New("down"))
	l.record("now", errStopped)
	l.record("before", nil)
	if got := l.lastErr(); got != "down" {
		t.Errorf("%q, want down", got)
	}
	l.record("now", nil)
	if got := l.lastErr(); got != "" {
		t.Errorf("%q after it worked", got)
	}
}

// TestStopIsNoFailure: attempts that a stop ends say nothing of their target, and calls that it ends nothing of the store.
func TestStopIsNoFailure(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	l := idle(t, slog.New(slog.NewTextHandler(&lines, nil)))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errStopped)
	for range breakAfter {
		ch, breaker := l.current()
		l.send(ctx, &attempt{target: ch.Target}, ch.Channel, breaker)
	}
	if _, breaker := l.current(); breaker.State() != gobreaker.StateClosed || lines.Len() > 0 {
		t.Errorf("the circuit is %s: %s", breaker.State(), lines.String())
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if l.s.logStore(stopped, "read", context.Canceled); lines.Len() > 0 {
		t.Error(lines.String())
	}
	if l.s.logStore(t.Context(), "read", errors.New("away")); !strings.Contains(lines.String(), "the store is failing") {
		t.Errorf("a failure of the store is logged as %q", lines.String())
	}
}

// TestNamesInLogAndMetricsAreBounded: a file may have had any number of channels.
func TestNamesInLogAndMetricsAreBounded(t *testing.T) {
	t.Parallel()
	for want, names := range map[string]string{"": "", "a": "a a", "a, b": "b a b", "a, b, c, d, e, f, g, h, i, j": "j i h g f e d c b a a",
		"a, b, c, d, e, f, g, h, i, j and 1 more": "k j i h g f e d c b a"} {
		if got := listNames(strings.Fields(names)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	l := idle(t, slog.New(slog.DiscardHandler))
	l.s.loops["a"] = l
	if a, b := l.s.label("a"), l.s.label("b"); a != "a" || b != "" {
		t.Errorf("labels %q and %q", a, b)
	}
}
